"""Threads for calls that block. Whoever asks after the end is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from brigade.errors import StoreUnavailable

__all__ = ["Threads"]

T = TypeVar("T")


class Threads:
    """A few threads of one store."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """What the call returns or raises, once a thread has made it."""
        if self._closed:
            raise StoreUnavailable("the hub was closed while this call was under way; open another one to go on")
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *args, **options))

    async def close(self) -> None:
        """Let what is under way come to its end; nothing begins after this."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown)
