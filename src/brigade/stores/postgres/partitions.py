"""History's partitions: one a day, made in advance, dropped when no queue needs their day any more."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import psycopg

from brigade.errors import BrigadeError
from brigade.stores.postgres.link import Link
from brigade.stores.postgres.migrate import AHEAD, partition_for
from brigade.stores.postgres.payloads import one
from brigade.stores.postgres.queries import quoted
from brigade.stores.postgres.steps import Ask

__all__ = ["tend_partitions"]

DAY = 86_400_000
_DAY = re.compile(r"history_(\d+)")


async def tend_partitions(link: Link, schema: str) -> int:
    """Make the partitions of the next days and drop old ones; returns how many were dropped.

    It takes the tables' owner to do so. Another user's finished messages go to the default partition.
    """
    rows = await link.run(lambda _: one(Ask("partitions")))
    longest, now = (await link.run(lambda _: one(Ask("longest_retention"))))[0]
    days = {int(match[1]) for row in rows if (match := _DAY.fullmatch(row[0]))}
    today, oldest = now // DAY, (now - longest) // DAY
    missing = [day for day in range(today + 1, today + AHEAD + 1) if day not in days]
    old = sorted(day for day in days if day < oldest)
    if not missing and not old:
        return 0
    conn = await link.connect()
    dropped = 0
    try:
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            query: Any = "SET lock_timeout = '2s'"
            await conn.execute(query)
            for day in missing:
                with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.CheckViolation):
                    query = partition_for(schema, day)
                    await conn.execute(query)
            for day in old:
                with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                    query = f"DROP TABLE {quoted(schema)}.history_{day}"
                    await conn.execute(query)
                    dropped += 1
            if old:
                await link.feed(conn, one(Ask("forget_days", {"day": oldest})))
    except psycopg.Error as error:
        raise BrigadeError(f"history's partitions could not be tended: {str(error).splitlines()[0]}") from None
    finally:
        await conn.close()
    return dropped
