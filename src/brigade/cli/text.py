"""Text that others wrote, shown so that it can neither move the cursor nor pass for markup or shell code."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["ascii_json", "cell", "quoted", "short", "visible"]

_UNUSUAL = re.compile(r"[^\n\x20-\x7e]")


def visible(text: str) -> str:
    """The text on one line, with every character that doesn't print written as an escape: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def short(text: str, width: int = 60) -> str:
    """The beginning of a text, visible, on one line."""
    head = visible(text[: width + 1])
    return head if len(head) <= width else f"{head[: width - 1]}…"


def cell(value: Any, *, style: str = "") -> Text:
    """A value for a table, as it is: text, or JSON for anything else."""
    from rich.text import Text

    if not isinstance(value, str):
        value = "" if value is None else msgspec.json.encode(value).decode()
    return Text(visible(value), style=style)


def ascii_json(text: str) -> str:
    """JSON in which characters that don't print are escapes. It means the same."""
    return text if text.isascii() and "\x7f" not in text else _UNUSUAL.sub(_json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    one = found[0]
    if one.isprintable():
        return one
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def quoted(value: str, *, terminal: bool) -> str:
    """A shell word. For the eyes of somebody at a terminal, what doesn't print is written as bash's `$'…'`."""
    if value.isprintable() or not terminal:
        return shlex.quote(value)
    parts = [_ansi_c(one) for one in value]
    return f"$'{''.join(parts)}'"


def _ansi_c(one: str) -> str:
    if one in "\\'":
        return f"\\{one}"
    return one if one.isprintable() else "".join(f"\\x{byte:02x}" for byte in one.encode())
