"""A PostgreSQL store from a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brigade.errors import ConfigError
from brigade.stores.postgres.queries import check_schema

if TYPE_CHECKING:
    from brigade.stores.postgres.store import PostgresStore

__all__ = ["open_postgres", "settings_of"]


def settings_of(place: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What libpq is to know, and what is ours. The password is in the former and nowhere else."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ConfigError(
            "postgresql:// needs psycopg, which is not installed; pip install 'bucket-brigade[postgres]'"
        ) from None
    check_schema(options.get("schema", "brigade"))
    ours = {name: options[name] for name in ("schema", "pool_size", "install") if name in options}
    try:
        settings = conninfo_to_dict(f"postgresql://{place}")
        conninfo_to_dict("", **{name: value for name, value in options.items() if name not in ours})
    except ProgrammingError:
        raise ConfigError(
            "the URL is not one that PostgreSQL understands; write postgresql://user:password@host:5432/database "
            "and percent-encode what is special in user and password"
        ) from None
    settings.update({name: value for name, value in options.items() if name not in ours})
    return settings, ours


def open_postgres(_scheme: str, place: str, options: dict[str, Any]) -> PostgresStore:
    settings, ours = settings_of(place, options)
    from brigade.stores.postgres.store import PostgresStore

    return PostgresStore(settings, **ours)
