"""Names that users choose: checked in one place, so that no key is ever built from an unchecked one."""

from __future__ import annotations

import re

from brigade.errors import ConfigError

__all__ = ["check_group", "check_own_id", "check_owner", "check_queue_name"]

_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def check_queue_name(name: object, *, what: str = "queue name") -> str:
    """The name, if it is 1 to 100 letters, digits, dots, dashes or underscores and doesn't start with a dot or dash."""
    if not isinstance(name, str):
        raise ConfigError(f"{what} must be a string, not {type(name).__name__}")
    if not _QUEUE.fullmatch(name):
        raise ConfigError(
            f"{what} {name[:120]!r} is not allowed; use 1 to 100 letters, digits, '.', '_' or '-', "
            "starting with a letter, a digit or '_'"
        )
    return name


def _text(value: object, what: str, longest: int) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a string, not {type(value).__name__}")
    if not value or len(value) > longest:
        raise ConfigError(f"{what} has {len(value)} characters; use 1 to {longest}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {value!r} is not valid Unicode text; take lone surrogates out") from None
    return value


def check_group(group: object) -> str:
    """A message group: any text of 1 to 256 characters."""
    return _text(group, "group", 256)


def check_own_id(own: object) -> str:
    """A message id of the user's own: any text of 1 to 512 characters."""
    return _text(own, "id", 512)


def check_owner(owner: object) -> str:
    """The name under which leases are held: any text of 1 to 256 characters."""
    return _text(owner, "owner", 256)
