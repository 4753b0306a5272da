"""LISTEN: one connection a hub that hears of news in queues, and comes back when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import psycopg
from psycopg import AsyncConnection, sql

from brigade.errors import BrigadeError
from brigade.stores.postgres.link import Link

__all__ = ["Listener"]

log = logging.getLogger("brigade")
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0


class Listener:
    """Calls `told(queue_id)` at each notification, and `told(None)` when anything may have been missed."""

    def __init__(self, link: Link, channel: str, told: Callable[[int | None], None]) -> None:
        self._link = link
        self._channel = channel
        self._told = told
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether news is heard at this moment."""
        return self._ready.is_set()

    async def start(self, patience: float) -> bool:
        """Start listening; returns whether it does after at most `patience` seconds."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._ready.wait()
        return self.ready

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._ready.clear()

    async def _listen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                conn = await self._link.connect()
            except BrigadeError as error:
                log.debug("cannot listen for notifications now (%s)", error)
            else:
                pause = FIRST_PAUSE
                await self._hear(conn)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _hear(self, conn: AsyncConnection) -> None:
        """Until the connection is lost."""
        try:
            await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._link.requests["listen"] += 1
            self._ready.set()
            self._told(None)
            async for notice in conn.notifies():
                self._told(int(notice.payload) if notice.payload.isdigit() else None)
        except psycopg.Error as error:
            log.info("the connection that listens for notifications was lost (%s); making a new one", error)
        finally:
            self._ready.clear()
            with contextlib.suppress(Exception):
                await conn.close()
