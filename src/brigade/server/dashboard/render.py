"""From values to HTML: the templates, everything escaped, and the words that numbers, ages and times are told in."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import jinja2
import msgspec
from markupsafe import Markup

from brigade._version import __version__
from brigade.ids import digest

__all__ = ["STATIC", "Renderer", "age", "amount", "count", "pretty", "preview", "size", "spark"]

HERE = Path(__file__).parent
STATIC = HERE / "static"
SHOWN = 64 * 1024
"""Bytes of a value that a page shows."""


def count(value: int | None) -> str:
    """1234567 as 1,234,567."""
    return "–" if value is None else f"{value:,}"


def amount(value: float | None) -> str:
    """A rate, with as many digits as mean something."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if value < 10:
        return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def money(value: float) -> str:
    return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.4f}"


def age(seconds: float | None) -> str:
    """A duration in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit} {rest} {below}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def size(value: int) -> str:
    if value < 1024:
        return f"{value} B"
    for unit, length in (("KiB", 1024), ("MiB", 1024**2), ("GiB", 1024**3)):
        if value < length * 1024:
            return f"{value / length:.1f} {unit}"
    return f"{value / 1024**4:.1f} TiB"


def moment(ms: int | None, now: int | None = None) -> Markup:
    """A time for people, with the exact one for whoever points at it."""
    if ms is None:
        return Markup("–")
    at = datetime.fromtimestamp(ms / 1000, UTC)
    exact = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    shown = exact
    if now is not None:
        gone = (now - ms) / 1000
        shown = f"{age(gone)} ago" if gone >= 0 else f"in {age(-gone)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), exact, shown)


def short_id(id: str) -> str:
    """An id that fits a table."""
    return id if len(id) <= 28 else f"{id[:12]}…{id[-12:]}"


def pretty(value: Any, most: int = SHOWN) -> tuple[str, bool]:
    """A value as text for people, and whether it was cut."""
    if isinstance(value, bytes | bytearray):
        data = bytes(value)
        try:
            text = data[: most + 4].decode()
        except UnicodeDecodeError:
            lines = [data[at : at + 16] for at in range(0, min(len(data), 1024), 16)]
            dump = "\n".join(
                f"{at * 16:06x}  {line.hex(' '):<47}  "
                + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
                for at, line in enumerate(lines)
            )
            return dump, len(data) > 1024
    elif isinstance(value, str):
        text = value
    else:
        try:
            text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        except (TypeError, ValueError, RecursionError):
            text = repr(value)
    return (text[:most], True) if len(text) > most else (text, False)


def preview(value: Any, most: int = 120) -> str:
    """A value in one line."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes | bytearray):
        text = bytes(value)[: most * 4].decode("utf-8", "backslashreplace")
    else:
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError, RecursionError):
            text = repr(value)
    text = " ".join(text[: most * 4].split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def spark(values: Sequence[float], width: int = 120, height: int = 24) -> str:
    """The points of a line through the values, for an SVG of that size; empty where there is nothing to show."""
    if len(values) < 2:
        return ""
    bottom, top = min(values), max(values)
    step = width / (len(values) - 1)
    low, room = height - 3, height - 6
    if top == bottom:
        level = low if top == 0 else height / 2
        return f"0.0,{level:.1f} {width:.1f},{level:.1f}"
    bottom = min(bottom, top / 2)
    return " ".join(
        f"{place * step:.1f},{low - (value - bottom) / (top - bottom) * room:.1f}" for place, value in enumerate(values)
    )


def _versions() -> dict[str, str]:
    """A short digest of each file's bytes, so that browsers may keep them for ever."""
    made: dict[str, str] = {}
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            name = path.relative_to(STATIC).as_posix()
            made[name] = digest(path.read_bytes().decode("latin-1"))
    return made


@functools.cache
def _environment() -> jinja2.Environment:
    """All templates, compiled: the first visitor does not wait for that."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters.update(
        count=count,
        amount=amount,
        money=money,
        age=age,
        size=size,
        moment=moment,
        short_id=short_id,
        preview=preview,
        pretty=pretty,
    )
    versions = _versions()

    def static(name: str) -> str:
        """The address of a file that the wheel brings."""
        return f"/static/{name}?v={versions[name]}"

    cast("dict[str, Any]", env.globals).update(static=static, spark=spark, version=__version__)
    for name in env.list_templates():
        env.get_template(name)
    return env


class Renderer:
    """The templates of all pages."""

    def __init__(self) -> None:
        self._env = _environment()

    def __call__(self, template: str, **values: Any) -> str:
        return self._env.get_template(template).render(**values)

    def part(self, template: str, macro: str, *values: Any) -> str:
        """One macro of a template, for a part of a page that is sent again."""
        module = self._env.get_template(template).module
        return str(getattr(module, macro)(*values)).strip()
