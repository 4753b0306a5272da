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

    def start(self) -> None:
        """Start listening, unless that is under way. Once news is heard `told(None)` says so."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._listen())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

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
            self._told(None)
            async for notice in conn.notifies():
                self._told(_queue_id(notice.payload))
        except psycopg.Error as error:
            log.info("the connection that listens for notifications was lost (%s); making a new one", error)
        finally:
            with contextlib.suppress(Exception):
                await conn.close()


def _queue_id(payload: str) -> int | None:
    """None for what is not ours: anybody may notify on this channel, and that must not end the listening."""
    try:
        return int(payload)
    except ValueError:
        return None
