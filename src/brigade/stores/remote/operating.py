"""What operators look at and decide through a server."""

from __future__ import annotations

from collections.abc import Sequence

from brigade.model import MessageInfo
from brigade.stores.operating import Action, Match, Sought
from brigade.stores.remote.client import Client
from brigade.stores.remote.wire import LONGEST, Count
from brigade.stores.remote.wire_ports import Days, Override
from brigade.survey import Day, Page, Tail

__all__ = ["browse", "outcomes", "override", "tail"]

PAGE = 1000
MOST_LOOKED = 1_000_000


async def browse(
    client: Client, path: str, queue: str, match: Match, limit: int, most: int, after: str | None, held: bool
) -> Page:
    """The server matches what is plain data. What only this process can judge comes here to be judged, by pages."""
    sought = match if isinstance(match, Sought) else Sought(also=match)
    asked: dict[str, str | int] = {"queue": queue, "held": held, "state": sought.state, "attempts": sought.attempts}
    asked |= {"text": sought.text} if sought.text else {}
    asked |= {"now_ms": sought.now_ms} if sought.now_ms else {}
    asked |= {"newest_ms": max(sought.newest_ms, 0)} if sought.newest_ms is not None else {}
    found: list[MessageInfo] = []
    looked = 0
    most = min(most, MOST_LOOKED)
    while True:
        asked |= {"limit": min(limit - len(found), PAGE), "most": most - looked}
        page = await client.ask(path + "browse", Page, asked | ({"after": after} if after else {}))
        found += [one for one in page.messages if sought.also is None or sought.also(one)]
        looked += page.looked
        after = page.after
        done = after is None or len(found) >= limit or looked >= most or not page.looked
        if done or sought.also is None:
            return Page(found, after, looked)


async def override(client: Client, path: str, queue: str, ids: Sequence[str], action: Action) -> int:
    known = [one for one in ids if len(one) <= LONGEST]
    total = 0
    for start in range(0, len(known), PAGE):
        body = Override(queue=queue, ids=known[start : start + PAGE], action=action)
        total += (await client.post(path + "override", body, Count)).count
    return total


async def tail(client: Client, path: str, queue: str, after: str | None, since_ms: int, limit: int) -> Tail:
    asked: dict[str, str | int] = {"queue": queue, "since_ms": max(since_ms, 0), "limit": limit}
    return await client.ask(path + "tail", Tail, asked | ({"after": after} if after else {}))


async def outcomes(client: Client, path: str, queue: str, days: Sequence[str], sample: int) -> list[Day]:
    return (await client.get(path + "outcomes", Days, queue=queue, days=",".join(days), sample=sample)).days
