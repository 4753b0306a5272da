"""What `obstore` has no call for, by plain HTTP: the date of an answer, and a delete under a condition."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from brigade.blobs.cloud_errors import Cause, Trouble, from_status

__all__ = ["Answer", "date_of", "request", "trouble_of"]

_CODE = re.compile(rb"<Code>(\w+)</Code>")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that sends elsewhere is an answer."""

    def redirect_request(self, req: object, fp: object, code: int, msg: str, headers: object, newurl: str) -> None:
        return None


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    timeout: float,
    insecure: bool = False,
    ca_file: str | None = None,
    proxy: str | None = None,
) -> Answer:
    """Ask once. Raises OSError where there is no answer."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if proxy is not None:
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    if url.startswith("https://"):
        context = ssl.create_default_context()
        if ca_file is not None:
            context.load_verify_locations(ca_file)
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    asked = urllib.request.Request(url, method=method, headers=dict(headers))  # noqa: S310
    try:
        with opener.open(asked, timeout=timeout) as got:
            return Answer(got.status, dict(got.headers.items()), got.read(65536))
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return Answer(error.code, dict(error.headers.items()), error.read(65536))
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer was cut short: {error!r}") from error


def date_of(answer: Answer) -> int | None:
    """When the store made the answer, in milliseconds; whole seconds."""
    found = next((value for name, value in answer.headers.items() if name.lower() == "date"), None)
    if found is None:
        return None
    try:
        return round(parsedate_to_datetime(found).timestamp() * 1000)
    except (TypeError, ValueError):
        return None


def trouble_of(answer: Answer | OSError) -> Trouble | None:
    """What is wrong with an answer, or with there being none; None where it is a success."""
    if isinstance(answer, OSError):
        reason = answer.reason if isinstance(answer, urllib.error.URLError) else answer
        refused = isinstance(reason, ConnectionRefusedError)
        return Trouble(Cause.UNREACHABLE if refused else Cause.DOUBT, 0, "", str(reason))
    if answer.status < 300:
        return None
    code = _CODE.search(answer.body)
    return from_status(answer.status, code[1].decode() if code else "")
