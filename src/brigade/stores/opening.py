"""From a URL to a store: the kinds of store there are, the options each takes, and where it is made."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from brigade.errors import ConfigError
from brigade.stores import Store

__all__ = ["KINDS", "Kind", "Opener", "open_store", "parse_url", "switch", "text"]

Opener = Callable[[str, str, dict[str, Any]], Store]
"""Makes a store from scheme, place and options. It does no I/O: that is for the store's `open`."""

_LATER = {"s3", "az", "gs", "postgresql"}


class Kind(NamedTuple):
    """A kind of store: where its opener lives, and its options with what turns their text into a value."""

    opener: str
    options: dict[str, Callable[[str, object], Any]]


def switch(name: str, value: object) -> bool:
    """An option that is on or off."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ConfigError(f"option {name!r} is {value!r}; use true or false")


def text(name: str, value: object) -> str:
    """An option that is text."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"option {name!r} must be text, not {type(value).__name__}")
    return value


KINDS: dict[str, Kind] = {
    "memory": Kind("brigade.stores.bucket.opening:open_memory", {}),
    "file": Kind("brigade.stores.bucket.opening:open_file", {"fsync": switch, "watch": switch}),
    "http": Kind("brigade.stores.remote.opening:open_remote", {"token": text}),
    "https": Kind("brigade.stores.remote.opening:open_remote", {"token": text}),
}
"""Every scheme. A new kind of store is a module and a line here."""


def parse_url(url: str, options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Scheme, place and options of a store's URL; a bad one is a ConfigError that says what to write."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"the store's URL must be a string, not {type(url).__name__}")
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ConfigError(f"{url!r} is not a store's URL; write memory://name or file://path")
    known = ", ".join(f"{one}://" for one in KINDS)
    if scheme in _LATER and scheme not in KINDS:
        raise ConfigError(f"{scheme}:// is not supported by this version; use one of {known}")
    kind = KINDS.get(scheme)
    if kind is None:
        raise ConfigError(f"{scheme}:// is not a kind of store; use one of {known}")
    where, _, query = rest.partition("?")
    given = {**dict(parse_qsl(query, keep_blank_values=True)), **options}
    for name, value in given.items():
        if name not in kind.options:
            has = f"; it has {', '.join(sorted(kind.options))}" if kind.options else ""
            raise ConfigError(f"{scheme}:// has no option {name!r}{has}")
        given[name] = kind.options[name](name, value)
    place = unquote(where)
    if "\0" in place:
        raise ConfigError("the store's URL has a NUL character in it; take it out")
    return scheme, place, given


def open_store(url: str, options: dict[str, Any]) -> Store:
    """The store behind a URL, not yet open."""
    scheme, place, given = parse_url(url, options)
    module, _, name = KINDS[scheme].opener.partition(":")
    opener: Opener = getattr(import_module(module), name)
    return opener(scheme, place, given)
