"""What the PostgreSQL store can beyond a queue: bulk jobs, scans, notes, history, tokens, and an operator's view."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from brigade.stores import Block, Outgoing, ScannedTable, Staged
from brigade.stores.history import HistoryPart, Record
from brigade.stores.operating import Action, Match
from brigade.stores.postgres import bulk, history, operate, scan
from brigade.stores.postgres.payloads import one
from brigade.stores.postgres.process import PostgresProcess
from brigade.stores.postgres.sealing import open_block, open_record
from brigade.stores.postgres.steps import Ask
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail, Upkeep

__all__ = ["PostgresPorts"]


class PostgresPorts(PostgresProcess):
    """The ports of `brigade.stores` that not every store has."""

    async def browse(self, queue: str, match: Match, *, limit: int, most: int, after: str | None, held: bool) -> Page:
        one = await self._queue(queue)
        return await self.link.run(
            lambda _: operate.browse(
                queue, one.id, match, limit=limit, most=most, after=after, only_held=held, fields=self._fields
            )
        )

    async def story(self, queue: str, message_id: str) -> Story:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.story(queue, held.id, message_id, self._fields))

    async def leases(self, queue: str, limit: int) -> list[Held]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.leases(held.id, limit))

    async def groups(self, queue: str, limit: int) -> list[GroupInfo]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.groups(held.id, limit))

    def upkeep(self) -> Upkeep:
        now = self.clock.monotonic()
        swept = {name: now - held.swept_at for name, held in self._queues.items() if held.swept_at is not None}
        return Upkeep(self.link.conflicts, swept)

    async def tail(self, queue: str, after: str | None, *, since_ms: int, limit: int) -> Tail:
        held = await self._queue(queue)
        return await self.link.run(
            lambda _: operate.tail(queue, held.id, after, since_ms=since_ms, limit=limit, fields=self._fields)
        )

    async def outcomes(self, queue: str, days: Sequence[str], sample: int) -> list[Day]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.outcomes(queue, held.id, days, sample, self._fields))

    async def override(self, queue: str, ids: Sequence[str], action: Action) -> int:
        held = await self._queue(queue)
        count = await self.link.run(lambda _: operate.override(held.id, ids, action, lifo=held.lifo), atomic=True)
        if count and action != "discard":
            self._back(held.id)
        return count

    async def write_token(self, id: str, body: bytes) -> bool:
        return bool(await self.link.run(lambda _: one(Ask("write_token", {"id": id, "value": body}))))

    async def tokens(self) -> list[tuple[str, bytes]]:
        return [(id, value) for id, value in await self.link.run(lambda _: one(Ask("list_tokens")))]

    async def drop_token(self, id: str) -> bool:
        return bool(await self.link.run(lambda _: one(Ask("drop_token", {"id": id}))))

    async def history_parts(self, queue: str, since: int) -> list[HistoryPart]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: history.list_parts(queue, held.id, since))

    async def read_history(self, part: HistoryPart) -> list[Record]:
        held = await self._queue(part.queue)
        records = await self.link.run(lambda _: history.read_part(part, held.id))
        return [open_record(self._fields, record) for record in records]

    async def stage(self, queue: str, job: str, messages: Sequence[Outgoing]) -> Staged:
        held = await self._queue(queue)
        part = self.ids.bits(62) + 1
        now = await self.link.run(
            lambda doubt: bulk.stage(queue, held.id, held.policy, part, messages, self._fields, doubt=doubt),
            atomic=True,
        )
        return Staged(len(messages), now, str(part).encode())

    async def publish(self, queue: str, job: str, staged: Sequence[Staged], *, epoch: int | None = None) -> int:
        held = await self._queue(queue)
        token = self.ids.bits(62) + 1
        published = await self.link.run(
            lambda _: bulk.publish(
                queue,
                held.id,
                job,
                [int(one.detail) for one in staged],
                count=sum(one.count for one in staged),
                epoch=epoch or 0,
                keep=epoch is not None,
                token=token,
                lifo=held.lifo,
            ),
            atomic=True,
        )
        held.forget()
        held.wake()
        if published.awaited:
            self._tell(held.id)
        return published.count

    async def discard(self, queue: str, job: str, staged: Sequence[Staged]) -> None:
        held = await self._queue(queue)
        await self.link.run(lambda _: bulk.discard(held.id, [int(one.detail) for one in staged]))

    async def write_note(self, queue: str, name: str, value: bytes) -> bytes:
        held = await self._queue(queue)
        return await self.link.run(lambda _: bulk.write_note(queue, held.id, name, value))

    async def read_note(self, queue: str, name: str) -> bytes | None:
        held = await self._queue(queue)
        return await self.link.run(lambda _: bulk.read_note(held.id, name))

    async def drop_note(self, queue: str, name: str) -> None:
        held = await self._queue(queue)
        await self.link.run(lambda _: one(Ask("drop_note", {"queue": held.id, "name": name})))

    async def pieces(self, queue: str, table: ScannedTable, most: int, *, since: int = 0) -> list[bytes]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: scan.pieces(held.id, table, most, since))

    async def scan(self, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
        held = await self._queue(queue)
        block = await self.link.run(lambda _: scan.scan(queue, held.id, table, piece))
        if block is not None:
            yield open_block(self._fields, queue, block)
