"""Group commit by key: what comes together goes out together, and nothing is kept of what is over."""

from __future__ import annotations

import asyncio

import pytest

from brigade.errors import StoreUnavailable
from brigade.stores.groupcommit import GroupCommits


async def test_items_of_one_key_that_come_while_a_write_is_under_way_go_out_together() -> None:
    written: list[tuple[str, list[int]]] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def write(key: str, items: list[int]) -> list[int]:
        written.append((key, items))
        begun.set()
        await go_on.wait()
        return [10 * item for item in items]

    commits = GroupCommits(write)
    first = asyncio.ensure_future(commits.submit("a", [1]))
    await begun.wait()
    rest = asyncio.gather(commits.submit("a", [2, 3]), commits.submit("a", [4]), commits.submit("b", [5]))
    while len(written) < 2:
        await asyncio.sleep(0)
    go_on.set()
    assert await first == [10]
    assert await rest == [[20, 30], [40], [50]]
    assert sorted(written) == [("a", [1]), ("a", [2, 3, 4]), ("b", [5])]
    assert len(commits) == 0


async def test_items_that_come_at_once_go_out_in_the_order_of_their_callers() -> None:
    written: list[list[int]] = []

    async def write(_: str, items: list[int]) -> list[int]:
        written.append(items)
        return items

    commits = GroupCommits(write)
    await asyncio.gather(*(commits.submit("a", [2 * n, 2 * n + 1]) for n in range(4)))
    assert written == [list(range(8))]


async def test_keys_are_forgotten_where_writes_fail_or_callers_go_away() -> None:
    async def write(key: int, items: list[int]) -> list[int]:
        await asyncio.sleep(0.001 * key)
        raise StoreUnavailable("it is down")

    commits = GroupCommits(write)
    for key in range(3):
        with pytest.raises(StoreUnavailable):
            await commits.submit(key, [1])
    gone = asyncio.ensure_future(commits.submit(50, [1]))
    await asyncio.sleep(0.002)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert len(commits) == 0
