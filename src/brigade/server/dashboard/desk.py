"""What all pages share: the server's queues, the figures, jobs, templates, and who may see what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from brigade.doctor import Report
from brigade.hub import AsyncHub
from brigade.server.dashboard.access import Access
from brigade.server.dashboard.jobs import Jobs
from brigade.server.dashboard.redaction import Redaction
from brigade.server.dashboard.render import Renderer
from brigade.server.dashboard.watch import Watch
from brigade.server.service import Service

__all__ = ["Desk", "Examination", "without_secrets"]

_SECRET = re.compile(r"secret|password|passw|token|credential|key|sas|signature", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """An address without the password and the options that look like secrets."""
    try:
        parts = urlsplit(url)
        host = parts.netloc
        if "@" in host:
            user, _, rest = host.rpartition("@")
            host = f"{user.partition(':')[0]}:***@{rest}" if ":" in user else host
        query = [(name, "***" if _SECRET.search(name) else value) for name, value in parse_qsl(parts.query)]
        return urlunsplit((parts.scheme, host, parts.path, urlencode(query, safe="*/:"), ""))
    except ValueError:
        return "(an address that cannot be shown)"


def hidden_options(options: dict[str, Any]) -> dict[str, str]:
    """Options with secrets hidden, also those inside other options."""
    shown: dict[str, str] = {}
    for name, value in options.items():
        if _SECRET.search(name):
            shown[name] = "***"
        elif isinstance(value, dict):
            shown[name] = str(hidden_options(cast("dict[str, Any]", value)))
        else:
            shown[name] = repr(value)
    return shown


@dataclass(slots=True)
class Examination:
    """The doctor's last report, or how far it is."""

    step: str = ""
    number: int = 0
    of: int = 0
    report: Report | None = None
    at_ms: int = 0
    error: str | None = None


class Desk:
    """One server's dashboard."""

    def __init__(self, service: Service, *, redaction: Redaction | None = None) -> None:
        self.service = service
        self.hub: AsyncHub = service.hub
        self.redaction = redaction or Redaction()
        self.access = Access(service.gate)
        self.watch = Watch(self.hub)
        self.jobs = Jobs(self.watch)
        self.render = Renderer()
        self.examination: Examination | None = None
        self.streams = 0
        self.shown_url = without_secrets(self.hub.address[0])
        self.started_ms = self.hub.clock.now()

    def options(self) -> dict[str, str]:
        return hidden_options(self.hub.address[1])

    def stop(self) -> None:
        """End the streams and whatever is under way: the server goes."""
        self.watch.close()
        self.jobs.close()
