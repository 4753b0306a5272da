"""From a URL to a store: the kinds of store there are, the options each takes, and where it is made."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from brigade.blobs.cloud_options import OPTIONS
from brigade.crypto.keys import check_reference
from brigade.errors import ConfigError
from brigade.stores import ProtectedStore, Store

__all__ = [
    "KINDS",
    "Kind",
    "Opener",
    "everywhere",
    "local_place",
    "open_store",
    "parse_url",
    "shown_url",
    "switch",
    "text",
]

_SECRET = re.compile(r"([?&][^=&]*(?:key|secret|token|password|signature|sig)[^=&]*=)[^&]*", re.IGNORECASE)
_USER = re.compile(r"://[^/@]*@")
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
    {
        "schema": text,
        "pool_size": count,
        "install": switch,
        **dict.fromkeys(_LIBPQ.split(), text),
        "encryption": check_reference,
        "encryption_strict": switch,
    },
    raw=True,
)
_ENCRYPTION: dict[str, Callable[[str, object], Any]] = {"encryption": check_reference, "encryption_strict": switch}
_REMOTE: dict[str, Callable[[str, object], Any]] = dict.fromkeys(("token", "token_file", "ca", "cert", "key"), text)
KINDS: dict[str, Kind] = {
    "memory": Kind("brigade.stores.bucket.opening:open_memory", {**_ENCRYPTION}),
    "file": Kind("brigade.stores.bucket.opening:open_file", {"fsync": switch, "watch": switch, **_ENCRYPTION}),
    "sqlite": Kind("brigade.stores.bucket.opening:open_sqlite", {"fsync": switch, "watch": switch, **_ENCRYPTION}),
    **{
        scheme: Kind("brigade.stores.bucket.opening:open_cloud", {**options, **_ENCRYPTION})
        for scheme, options in OPTIONS.items()
    },
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "http": Kind("brigade.stores.remote.opening:open_remote", _REMOTE),
    "https": Kind("brigade.stores.remote.opening:open_remote", _REMOTE),
}
"""Every scheme. A new kind of store is a module and a line here."""


def shown_url(url: str) -> str:
    """A URL as it may be shown: without the user, password and options that are secret."""
    return _SECRET.sub(r"\1…", _USER.sub("://…@", url))


def parse_url(url: str, options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Scheme, place and options of a store's URL; a bad one is a ConfigError that says what to write."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"the store's URL must be a string, not {type(url).__name__}")
    scheme, mark, rest = url.partition("://")
    if not mark:
        shown = re.sub(r":[^:@]*@", ":***@", url)
        raise ConfigError(
            f"{shown!r} is not a store's URL; write memory://name, file://path, sqlite://path or s3://bucket/prefix"
        )
    known = ", ".join(f"{one}://" for one in KINDS)
    kind = KINDS.get(scheme)
    if kind is None:
        raise ConfigError(f"{scheme}:// is not a kind of store; use one of {known}")
    where, _, query = rest.partition("?")
    in_url = dict(parse_qsl(query, keep_blank_values=True))
    if kind.options is _REMOTE and "token" in in_url:
        raise ConfigError(
            "a token must not stand in the URL, which ends up in logs and process lists; pass token= to connect, set "
            "BRIGADE_TOKEN, or name a file with token_file"
        )
    given = {**in_url, **options}
    for name, value in given.items():
        if name not in kind.options:
            has = f"; it has {', '.join(sorted(kind.options))}" if kind.options else ""
            raise ConfigError(f"{scheme}:// has no option {name!r}{has}")
        given[name] = kind.options[name](name, value)
    place = where if kind.raw else unquote(where)
    if "\0" in place:
        raise ConfigError("the store's URL has a NUL character in it; take it out")
    return scheme, place, given


def local_place(url: str) -> str | None:
    """Where a file:// or sqlite:// URL keeps its store on this machine."""
    scheme, _, rest = url.partition("://")
    return unquote(rest.partition("?")[0]) if scheme in ("file", "sqlite") else None


def everywhere(url: str) -> str:
    """The same store, named so that processes that run in another directory find it."""
    place = local_place(url)
    if not place:
        return url
    scheme, _, rest = url.partition("://")
    _, mark, options = rest.partition("?")
    return f"{scheme}://{quote(str(Path(place).absolute()))}{mark}{options}"


def open_store(url: str, options: dict[str, Any]) -> Store:
    """The store behind a URL, not yet open."""
    scheme, place, given = parse_url(url, options)
    module, _, name = KINDS[scheme].opener.partition(":")
    opener: Opener = getattr(import_module(module), name)
    reference, strict = given.pop("encryption", None), given.pop("encryption_strict", None)
    if "encryption" in KINDS[scheme].options:
        reference = reference or os.environ.get("BRIGADE_ENCRYPTION") or None
        if strict is None and "BRIGADE_ENCRYPTION_STRICT" in os.environ:
            strict = switch("BRIGADE_ENCRYPTION_STRICT", os.environ["BRIGADE_ENCRYPTION_STRICT"])
    store = opener(scheme, place, given)
    if reference:
        _protect(store, check_reference("encryption", reference), strict=bool(strict))
    elif strict:
        raise ConfigError("encryption_strict is on and encryption is not; say where keys are with encryption=")
    return store


def _protect(store: Store, reference: str, *, strict: bool) -> None:
    """Turn encryption on in a store. Its libraries are not imported before that."""
    from brigade.crypto.fields import fields_from

    assert isinstance(store, ProtectedStore)
    store.protect(fields_from(reference, strict=strict))
