"""`brigade migrate`: the schema of a PostgreSQL store, looked at and brought up to date."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from brigade.cli.common import json_option, print_json, url_option
from brigade.errors import ConfigError
from brigade.stores.opening import parse_url

if TYPE_CHECKING:
    from brigade.stores.postgres.migrate import Migration, Standing

__all__ = ["migrate"]


@click.group(short_help="Install and upgrade the schema of a PostgreSQL store.")
def migrate() -> None:
    """Install and upgrade the schema of a PostgreSQL store.

    Whoever connects with rights to do so installs it by itself; with `install=false` in the URL nobody does.

    \b
    Examples:
      brigade migrate status --url postgresql://app@db/app
      brigade migrate up --dry-run
      brigade migrate up
    """


@migrate.command(short_help="Which version the schema has.")
@url_option
@json_option
def status(url: str, as_json: bool) -> None:
    """Say which version the schema has, and which steps are missing.

    \b
    Examples:
      brigade migrate status --url postgresql://app@db/app
      brigade migrate status --json | jq .version
    """
    found, _ = asyncio.run(_run(url, up=False))
    if as_json:
        pending = [{"version": step.version, "name": step.name} for step in found.pending]
        print_json({"schema": found.schema, "version": found.version, "newest": found.newest, "pending": pending})
        return
    state = f"version {found.version} of {found.newest}" if found.version else "not installed"
    click.echo(f"schema {found.schema}: {state}")
    for step in found.pending:
        click.echo(f"  missing: {step.version:03d} {step.name}")


@migrate.command(short_help="Bring the schema up to date.")
@click.option("--dry-run", is_flag=True, help="Print the SQL instead of running it.")
@url_option
@json_option
def up(url: str, dry_run: bool, as_json: bool) -> None:
    """Bring the schema up to date, in one transaction. Two of these at once are no harm.

    \b
    Examples:
      brigade migrate up --url postgresql://app@db/app
      brigade migrate up --dry-run > upgrade.sql
    """
    found, done = asyncio.run(_run(url, up=not dry_run))
    if as_json:
        steps = found.pending if dry_run else done
        plain = [{"version": step.version, "name": step.name} for step in steps]
        print_json({"schema": found.schema, "pending" if dry_run else "applied": plain})
        return
    if dry_run:
        for step in found.pending:
            click.echo(f"-- {step.version:03d} {step.name}\n{step.text(found.schema)}")
    for step in done:
        click.echo(f"applied {step.version:03d} {step.name}")
    if not (found.pending if dry_run else done):
        click.echo(f"schema {found.schema} is up to date: version {found.version}")


async def _run(url: str, *, up: bool) -> tuple[Standing, list[Migration]]:
    """How the schema stands, and what was done to it."""
    scheme, place, options = parse_url(url, {})
    if scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"{scheme}:// has no schema to migrate; this is for postgresql://")
    from brigade.stores.postgres.opening import open_postgres

    store = open_postgres(scheme, place, options)
    from brigade.stores.postgres.migrate import migrate, standing

    conn = await store.link.connect()
    try:
        found = await standing(conn, store.schema)
        return found, await migrate(conn, store.schema) if up else []
    finally:
        await conn.close()
