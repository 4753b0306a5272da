"""The options of s3://, az:// and gs://, and what turns their text into values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from brigade.errors import ConfigError

__all__ = ["OPTIONS"]

Convert = Callable[[str, object], Any]


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"option {name!r} must be text")
    return value


def _switch(name: str, value: object) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    found = known.get(str(value).lower())
    if found is None:
        raise ConfigError(f"option {name!r} is {value!r}; use true or false")
    return found


def _seconds(name: str, value: object) -> float:
    try:
        seconds = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise ConfigError(f"option {name!r} is {value!r}; use a number of seconds above 0, up to 3600")
    return seconds


def _count(name: str, value: object) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = -1
    if not 0 <= count <= 1000:
        raise ConfigError(f"option {name!r} is {value!r}; use a whole number from 0 to 1000")
    return count


def _some(name: str, value: object) -> int:
    return _count(name, value) or _count(name, "one at least")


def _endpoint(name: str, value: object) -> str:
    text = _text(name, value).rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"option {name!r} is {text!r}; write it as https://host or http://host:port")
    return text


def _style(name: str, value: object) -> str:
    if value not in ("path", "virtual"):
        raise ConfigError(f"option {name!r} is {value!r}; use path or virtual")
    return str(value)


_COMMON: dict[str, Convert] = {
    "endpoint": _endpoint,
    "allow_http": _switch,
    "anonymous": _switch,
    "ca_file": _text,
    "insecure": _switch,
    "proxy": _text,
    "timeout": _seconds,
    "connect_timeout": _seconds,
    "retries": _count,
    "concurrency": _some,
    "listing_ttl": _seconds,
    "poll_interval": _seconds,
}
_S3: dict[str, Convert] = {
    "region": _text,
    "access_key": _text,
    "secret_key": _text,
    "session_token": _text,
    "profile": _text,
    "style": _style,
    "encryption": _text,
    "kms_key": _text,
    "bulk_delete": _switch,
}
_AZ: dict[str, Convert] = {
    "account": _text,
    "account_key": _text,
    "sas": _text,
    "tenant_id": _text,
    "client_id": _text,
    "client_secret": _text,
    "azure_cli": _switch,
}
_GS: dict[str, Convert] = {"service_account": _text, "token": _text}

OPTIONS: dict[str, dict[str, Convert]] = {
    "s3": {**_COMMON, **_S3},
    "az": {**_COMMON, **_AZ},
    "gs": {**_COMMON, **_GS},
}
"""Every option of each scheme, with what turns its text into a value."""
