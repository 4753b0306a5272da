"""`brigade key`: keys for encryption at rest, made, rotated and looked at."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from brigade.cli.common import check_place, console, json_option, print_json, say, table, url_option
from brigade.clock import wall_ns
from brigade.crypto.keys import Keys, KeySource, new_key, write_keys
from brigade.errors import ConfigError
from brigade.stores import ProtectedStore
from brigade.stores.opening import open_store, parse_url

__all__ = ["key"]


@click.group(short_help="Make and rotate keys for encryption at rest.")
def key() -> None:
    """Make and rotate keys for encryption at rest.

    Keys live in a file, the environment or whatever a command prints; the option `encryption`, or BRIGADE_ENCRYPTION,
    says where. The first key seals, all of them open.

    \b
    Examples:
      brigade key create --file keys
      BRIGADE_ENCRYPTION=file:keys brigade enqueue tasks '{"secret": true}'
      brigade key rotate --file keys
      BRIGADE_ENCRYPTION=file:keys brigade key status
    """


@key.command(short_help="Make the first key.")
@click.option("--file", "path", metavar="FILE", help="Write it to a new file that only you can read.")
@click.option("--id", "name", metavar="ID", help="Call it this. Default: the day and something random.")
@json_option
def create(path: str | None, name: str | None, as_json: bool) -> None:
    """Make a key and write it to FILE, or print it, for a secret store or an environment variable.

    Whoever has the key can read everything; without it nobody can, you included. Keep a copy in a safe place.

    \b
    Examples:
      brigade key create --file /etc/brigade/keys
      export BRIGADE_KEYS="$(brigade key create)" BRIGADE_ENCRYPTION=env:BRIGADE_KEYS
      brigade key create --json | jq -r .key
    """
    made, secret = new_key(wall_ns() // 1_000_000, name)
    keys = Keys(made, {made: secret})
    if path is None:
        if as_json:
            print_json({"id": made, "fingerprint": keys.fingerprint(made), "key": keys.text().strip()})
        else:
            click.echo(keys.text().strip())
        return
    write_keys(Path(path), keys, replace=False)
    _told(keys, path, as_json, f"key {made} is in {path}; use it with encryption=file:{Path(path).absolute()}")


@key.command(short_help="Put a new primary key into a file.")
@click.option("--file", "path", metavar="FILE", required=True, help="The file with the keys.")
@click.option("--id", "name", metavar="ID", help="Call it this. Default: the day and something random.")
@json_option
def rotate(path: str, name: str | None, as_json: bool) -> None:
    """Put a new key in front of those in FILE: from now on it seals, and the others still open.

    Programs that run notice within a minute. Where the file is copied to several machines, copy it to all readers
    before anybody seals with the new key: first add it as the last line everywhere, then move it to the top.
    `brigade key status` tells when an old key is no longer needed.

    \b
    Examples:
      brigade key rotate --file /etc/brigade/keys
      brigade key rotate --file keys --id 2027 --json
    """
    keys = KeySource(f"file:{path}").read()
    made, secret = new_key(wall_ns() // 1_000_000, name)
    keys = keys.with_primary(made, secret)
    write_keys(Path(path), keys, replace=True)
    _told(keys, path, as_json, f"key {made} seals from now on; {len(keys.by_id) - 1} more in {path} still open")


@key.command(short_help="Which keys there are, and which are in use.")
@url_option
@json_option
def status(url: str, as_json: bool) -> None:
    """Say which keys are known and how many stored objects or rows are sealed under each.

    A key that seals nothing any more, and that no copy or backup needs, can be taken out. Everything in the store is
    looked at, so on a large one this takes a while.

    \b
    Examples:
      BRIGADE_ENCRYPTION=file:keys brigade key status
      brigade key status --url 'file://./jobs?encryption=file:keys' --json
    """
    check_place(url)
    keys, found = asyncio.run(_counted(url))
    known = list(keys.by_id) if keys else []
    rows: list[dict[str, Any]] = [
        {
            "id": name,
            "role": "seals" if keys and name == keys.primary else "opens" if name in known else "missing",
            "fingerprint": keys.fingerprint(name) if keys and name in known else None,
            "sealed": found.get(name, 0),
        }
        for name in dict.fromkeys([*known, *(name for name in found if name)])
    ]
    clear = found.get("", 0)
    if as_json:
        print_json({"keys": rows, "clear": clear})
        return
    shown = table("key", "role", "fingerprint", "sealed")
    for row in rows:
        shown.add_row(row["id"], row["role"], row["fingerprint"] or "–", f"{row['sealed']:,}")
    console().print(shown)
    say(f"not sealed: {clear:,}")


async def _counted(url: str) -> tuple[Keys | None, dict[str, int]]:
    reference = parse_url(url, {})[2].get("encryption") or os.environ.get("BRIGADE_ENCRYPTION")
    keys = KeySource(reference).read() if reference else None
    store = open_store(url, {})
    if not isinstance(store, ProtectedStore):
        raise ConfigError("keys belong to the store behind the server; name the store itself with --url")
    await store.open()
    try:
        return keys, await store.key_usage()
    finally:
        await store.close()


def _told(keys: Keys, path: str, as_json: bool, text: str) -> None:
    if as_json:
        shown = [{"id": name, "fingerprint": keys.fingerprint(name)} for name in keys.by_id]
        print_json({"file": path, "primary": keys.primary, "keys": shown})
    else:
        say(text, err=True)
