"""An async generator read from code that isn't async: how executors, which Spark calls plainly, read a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar

__all__ = ["in_turn"]

T = TypeVar("T")


def in_turn(made: AsyncGenerator[T]) -> Iterator[T]:
    """What the generator yields, one by one, on a loop of its own. It is closed in the end, whatever happens."""
    with asyncio.Runner() as runner:
        # Runner.run would look at the signal handlers each time, and Python describes those with all that they hold.
        run = runner.get_loop().run_until_complete
        try:
            while (one := run(_next(made))) is not None:
                yield one
        finally:
            run(made.aclose())


async def _next(made: AsyncGenerator[T]) -> T | None:
    return await anext(made, None)
