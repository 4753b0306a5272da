"""From a URL to a store: the kinds of store there are, the options each takes, and where it is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from brigade.blobs.cloud_options import OPTIONS
from brigade.errors import ConfigError
from brigade.stores import Store

__all__ = ["KINDS", "Kind", "Opener", "open_store", "parse_url", "switch", "text"]

Opener = Callable[[str, str, dict[str, Any]], Store]
"""Makes a store from scheme, place and options. It does no I/O: that is for the store's `open`."""


class Kind(NamedTuple):
    """A kind of store: where its opener lives, and its options with what turns their text into a value.

    Its place is given to the opener unquoted, or, with `raw`, as it stands in the URL.
    """

    opener: str
    options: dict[str, Callable[[str, object], Any]]
    raw: bool = False


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
    """An option that is handed on as it is."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(f"option {name!r} must be text")
    return str(value)


def count(name: str, value: object) -> int:
    """An option that is a whole number above 0."""
    if not isinstance(value, bool) and isinstance(value, str | int) and str(value).isdecimal() and int(value) > 0:
        return int(value)
    raise ConfigError(f"option {name!r} is {value!r}; use a whole number above 0")


_LIBPQ = (
    "channel_binding connect_timeout dbname gssencmode host hostaddr keepalives keepalives_count keepalives_idle "
    "keepalives_interval krbsrvname load_balance_hosts options passfile password port require_auth requirepeer service "
    "ssl_max_protocol_version ssl_min_protocol_version sslcert sslcrl sslcrldir sslkey sslmode sslpassword sslrootcert "
    "sslsni target_session_attrs tcp_user_timeout user"
)
_POSTGRES = Kind(
    "brigade.stores.postgres.opening:open_postgres",
    {"schema": text, "pool_size": count, "install": switch, **dict.fromkeys(_LIBPQ.split(), text)},
    raw=True,
)
KINDS: dict[str, Kind] = {
    "memory": Kind("brigade.stores.bucket.opening:open_memory", {}),
    "file": Kind("brigade.stores.bucket.opening:open_file", {"fsync": switch, "watch": switch}),
    **{scheme: Kind("brigade.stores.bucket.opening:open_cloud", options) for scheme, options in OPTIONS.items()},
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
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
        shown = re.sub(r":[^:@]*@", ":***@", url)
        raise ConfigError(f"{shown!r} is not a store's URL; write memory://name, file://path or s3://bucket/prefix")
    known = ", ".join(f"{one}://" for one in KINDS)
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
    place = where if kind.raw else unquote(where)
    if "\0" in place:
        raise ConfigError("the store's URL has a NUL character in it; take it out")
    return scheme, place, given


def open_store(url: str, options: dict[str, Any]) -> Store:
    """The store behind a URL, not yet open."""
    scheme, place, given = parse_url(url, options)
    module, _, name = KINDS[scheme].opener.partition(":")
    opener: Opener = getattr(import_module(module), name)
    return opener(scheme, place, given)
