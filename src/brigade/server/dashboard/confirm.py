"""Asking before something is done that cannot be undone: the same form again, with a yes in it."""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse, Response

from brigade.server.dashboard.visit import Form, Visit

__all__ = ["confirm"]


def confirm(visit: Visit, form: Form, *, title: str, text: str, button: str, cancel: str) -> Response | None:
    """The question, as a dialog where htmx asks and as a page otherwise; None where it was answered with yes."""
    if form.get("confirmed") == "yes":
        return None
    values: dict[str, Any] = {
        "title": title,
        "text": text,
        "button": button,
        "cancel": cancel,
        "fields": form.without("csrf", "confirmed"),
        "action": visit.request.url.path,
    }
    if visit.partial:
        return HTMLResponse(visit.desk.render("confirm_part.html", csrf=visit.token, **values))
    return visit.page("confirm.html", **values)
