"""`brigade token`: who may use the servers in front of a store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from brigade.cli.app import Nothing
from brigade.cli.common import check_place, console, json_option, print_json, say, table, url_option, when, yes_option
from brigade.cli.common import confirm as confirmed
from brigade.clock import to_datetime, wall_ns
from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.stores import TokenStore

__all__ = ["token"]

T = TypeVar("T")
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.group(short_help="Make and revoke tokens for `brigade serve`.")
def token() -> None:
    """Make, list and revoke tokens for `brigade serve --auth tokens`.

    Tokens lie in the store, hashed, so that every server in front of it knows them: name the store with --url, not a
    server. A revoked token is refused within five seconds.

    \b
    Examples:
      brigade token create web --scope 'orders-*:enqueue' --expires 90d
      brigade token list
      brigade token revoke 3f2a9c0d11e47b58
    """


@token.command(short_help="Make a token.")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="PATTERN:RIGHTS",
    help="Queues, with * as a wildcard, and rights: enqueue, claim, read, admin or all. Repeatable.",
)
@click.option("--expires", metavar="LENGTH", help="After 30d, 12h, 90m; default never.")
@url_option
@json_option
def create(name: str, scopes: tuple[str, ...], expires: str | None, url: str, as_json: bool) -> None:
    """Make a token called NAME and print it. It is shown this once and kept nowhere: only its hash is.

    \b
    Examples:
      brigade token create web --scope 'orders-*:enqueue' --expires 90d > web.token
      brigade token create worker --scope 'orders-*:claim' --scope 'orders-dead:read,admin'
      brigade token create ops --scope '*:all' --json | jq -r .token
    """
    from brigade.server.auth.tokens import mint

    made, text = mint(name, scopes, now_ms=wall_ns() // 1_000_000, expires_in=_seconds(expires))

    async def write(store: TokenStore) -> None:
        if not await store.write_token(made.id, made.body()):
            raise ConfigError("the new token's id is taken; try again")

    _on_store(url, write)
    if as_json:
        print_json({**_plain(made), "token": text})
        return
    click.echo(text)
    until = "it does not expire" if made.expires_at_ms is None else f"it expires {_date(made.expires_at_ms)}"
    say(f"token {made.id} for {name}: {', '.join(map(str, made.scopes))}; {until}. It is not shown again.", err=True)


@token.command("list", short_help="List tokens.")
@url_option
@json_option
def list_(url: str, as_json: bool) -> None:
    """List the tokens of a store: ids, names, scopes and times. Secrets are not kept and can't be shown.

    \b
    Examples:
      brigade token list
      brigade token list --json | jq -r '.[] | select(.expired) | .id'
    """
    from brigade.server.auth.tokens import is_token_id, read_token

    check_place(url)
    found = [read_token(id, body) for id, body in _on_store(url, lambda store: store.tokens()) if is_token_id(id)]
    if as_json:
        print_json([_plain(one) for one in found])
    if not found:
        raise Nothing("the store has no tokens; `brigade token create` makes one")
    if as_json:
        return
    shown = table("id", "name", "scopes", "created", "expires")
    for one in found:
        expires = "never" if one.expires_at_ms is None else _date(one.expires_at_ms)
        if one.expired(wall_ns() // 1_000_000):
            expires += " (expired)"
        shown.add_row(one.id, one.name, "\n".join(map(str, one.scopes)), _date(one.created_at_ms), expires)
    console().print(shown)


@token.command(short_help="Revoke tokens.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@url_option
@json_option
@yes_option
def revoke(ids: tuple[str, ...], url: str, as_json: bool, yes: bool) -> None:
    """Revoke tokens by their ids: servers refuse them within five seconds.

    \b
    Examples:
      brigade token revoke 3f2a9c0d11e47b58
      brigade token list --json | jq -r '.[] | select(.expired) | .id' | xargs brigade token revoke --yes
    """
    for id in ids:
        if not re.fullmatch(r"[0-9a-f]{16}", id):
            raise click.UsageError(
                "ID must be one that `brigade token list` shows: 16 hexadecimal digits, not the token"
            )
    check_place(url)
    confirmed(f"Revoke {len(ids)} token{'s' if len(ids) > 1 else ''}?", yes=yes)

    async def drop(store: TokenStore) -> list[str]:
        return [id for id in ids if await store.drop_token(id)]

    gone = _on_store(url, drop)
    if as_json:
        print_json({"revoked": gone})
    missing = [id for id in ids if id not in gone]
    if missing:
        raise Nothing(f"there is no token {', '.join(missing)}; `brigade token list` shows those there are")
    if not as_json:
        say(f"revoked {', '.join(gone)}", err=True)


def _on_store(url: str, work: Callable[[TokenStore], Awaitable[T]]) -> T:
    async def run() -> T:
        async with AsyncHub(url) as hub:
            if not isinstance(hub.store, TokenStore):
                raise ConfigError("tokens lie in the store behind the server; name the store itself with --url")
            return await work(hub.store)

    if url.startswith(("http://", "https://")):
        raise ConfigError("tokens lie in the store behind the server; name the store itself with --url")
    return asyncio.run(run())


def _seconds(text: str | None) -> float | None:
    if text is None or text == "never":
        return None
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--expires is {text!r}; write a length of time such as 90d, 12h or 30m")
    return float(found[1]) * _UNITS[found[2]]


def _date(ms: int) -> str:
    moment: datetime = to_datetime(ms)
    return f"{moment:%Y-%m-%d %H:%M}Z"


def _plain(one: Any) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "scopes": [str(scope) for scope in one.scopes],
        "created_at": when(to_datetime(one.created_at_ms)),
        "expires_at": None if one.expires_at_ms is None else when(to_datetime(one.expires_at_ms)),
        "expired": one.expired(wall_ns() // 1_000_000),
    }
