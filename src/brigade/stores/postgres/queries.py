"""The statements of `queries.sql`, by name, made out for one schema."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

from brigade.errors import ConfigError

__all__ = ["Queries", "check_schema", "quoted"]

_NAME = re.compile(r"^-- name: (\w+)\n((?:--[^\n]*\n)*)", re.MULTILINE)
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")

_LOG = "CASE WHEN jsonb_array_length(m.log) >= 50 THEN m.log - 0 ELSE coalesce(m.log, '[]') END"
_ENTRY = "'version', m.version, 'owner', m.owner, 'claimed_at', m.claimed_at"
PARTS = {
    "delivered": (
        "m.id, m.priority, m.due_at, m.enqueued_at, m.attempts, "
        "coalesce(m.max_attempts, (SELECT max_attempts FROM {schema}.queues WHERE id = %(queue)s)), m.version, m.size, "
        "m.checksum, m.content_type, m.correlation_id, m.own_id, m.group_name, m.attributes::text, m.failure::text, "
        "m.payload, m.claimed_at, m.expires_at, m.owner, m.derived"
    ),
    "seen": (
        "m.id, m.state, m.priority, m.attempts, coalesce(m.max_attempts, q.max_attempts), m.enqueued_at, m.due_at, "
        "m.correlation_id, m.own_id, m.attributes::text, m.group_name, m.content_type, m.size, m.payload, m.owner, "
        "m.version, m.expires_at, m.failure::text, m.log -> -1 ->> 'error', m.checksum, m.derived"
    ),
    "logged_expired": f"{_LOG} || jsonb_build_object({_ENTRY}, 'ended_at', m.expires_at, 'how', 'expired')",
    "logged_back": (
        f"{_LOG} || jsonb_build_object({_ENTRY}, 'ended_at', c.now, 'error', w.error, "
        "'how', CASE WHEN w.counts THEN 'nacked' ELSE 'released' END)"
    ),
    "slot": "coalesce(%(slot)s::bigint, pg_backend_pid() %% 64)",
}
"""What several statements share: the columns of a message, the log of its leases, and where a transaction counts."""


def check_schema(name: object) -> str:
    """A schema's name, if it can be written without quotes."""
    if not isinstance(name, str) or not _SCHEMA.fullmatch(name):
        raise ConfigError(
            f"schema is {name!r}; use 1 to 48 small letters, digits and underscores, not starting with a digit"
        )
    return name


def quoted(schema: str) -> str:
    """The schema's name as it stands in SQL."""
    return f'"{schema}"'


class Queries:
    """Statements for one schema. `text(name, lifo=True)` is the one that goes through a queue backwards."""

    def __init__(self, schema: str) -> None:
        self._fifo = _made_out(schema, "ASC", "DESC")
        self._lifo = _made_out(schema, "DESC", "ASC")

    def text(self, name: str, *, lifo: bool = False) -> str:
        return (self._lifo if lifo else self._fifo)[name]


@functools.cache
def _made_out(schema: str, first: str, last: str) -> dict[str, str]:
    parts = {**PARTS, "first": first, "last": last}
    made: dict[str, str] = {}
    for name, text in _read().items():
        for part, meaning in parts.items():
            text = text.replace(f"{{{part}}}", meaning)  # noqa: PLW2901 - made out part by part
        made[name] = text.replace("{schema}", quoted(schema))
    return made


@functools.cache
def _read() -> dict[str, str]:
    """The file's statements as they are written."""
    text = files(__package__ or "").joinpath("queries.sql").read_text(encoding="utf-8")
    found = list(_NAME.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {match[1]: text[match.end() : end].strip().rstrip(";") for match, end in zip(found, ends, strict=True)}
