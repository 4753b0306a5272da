"""What the bucket store can beyond a queue: bulk jobs, scans, notes, history, tokens, and an operator's view."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from brigade.stores import Block, Outgoing, Payloads, ScannedTable, Staged
from brigade.stores.bucket import browse, bulk, history, notes, records, scan
from brigade.stores.bucket.incoming import check_sizes, inline_drafts
from brigade.stores.bucket.keys import QueueKeys
from brigade.stores.bucket.override import override
from brigade.stores.bucket.process import BucketProcess
from brigade.stores.bucket.tokens import drop_token, list_tokens, write_token
from brigade.stores.bucket.wire import BulkPart
from brigade.stores.history import HistoryPart, Record
from brigade.stores.operating import Action, Match
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail, Upkeep

__all__ = ["BucketPorts"]

_parts = msgspec.msgpack.Encoder()
_read_parts = msgspec.msgpack.Decoder(list[BulkPart])


class BucketPorts(BucketProcess):
    """The ports of `brigade.stores` that not every store has."""

    async def browse(self, queue: str, match: Match, *, limit: int, most: int, after: str | None, held: bool) -> Page:
        view = (await self._queue(queue)).view
        return await self.run(browse.browse(self.env, view, match, limit=limit, most=most, after=after, held=held))

    async def story(self, queue: str, message_id: str) -> Story:
        return await self.run(browse.story(self.env, (await self._queue(queue)).view, message_id))

    async def leases(self, queue: str, limit: int) -> list[Held]:
        return await self.run(browse.leases(self.env, (await self._queue(queue)).view, limit))

    async def groups(self, queue: str, limit: int) -> list[GroupInfo]:
        return await self.run(browse.groups(self.env, (await self._queue(queue)).view, limit))

    def upkeep(self) -> Upkeep:
        now = self.env.clock.monotonic()
        swept = {name: now - held.swept_at for name, held in self._queues.items() if held.swept_at is not None}
        return Upkeep(self.env.conflicts, swept)

    async def tail(self, queue: str, after: str | None, *, since_ms: int, limit: int) -> Tail:
        view = (await self._queue(queue)).view
        return await self.run(records.tail(self.env, view, after, since_ms=since_ms, limit=limit))

    async def outcomes(self, queue: str, days: Sequence[str], sample: int) -> list[Day]:
        return await self.run(records.outcomes(self.env, (await self._queue(queue)).view, days, sample))

    async def override(self, queue: str, ids: Sequence[str], action: Action) -> int:
        held = await self._queue(queue)
        count, changed = await self.run(override(self.env, held.view, ids, action))
        for name in changed:
            held.returned(name)
        await self._finish_now(held)
        return count

    async def write_token(self, id: str, body: bytes) -> bool:
        return await self.run(write_token(self.env, id, body))

    async def tokens(self) -> list[tuple[str, bytes]]:
        return await self.run(list_tokens(self._tokens))

    async def drop_token(self, id: str) -> bool:
        return await self.run(drop_token(id))

    async def history_parts(self, queue: str, since: int) -> list[HistoryPart]:
        return await self.run(history.list_parts(QueueKeys(queue), since))

    async def read_history(self, part: HistoryPart) -> list[Record]:
        return await self.run(history.read_part(self.env, part))

    async def stage(self, queue: str, job: str, messages: Sequence[Outgoing]) -> Staged:
        view = (await self._queue(queue)).view
        now = self.env.now()
        if isinstance(messages, Payloads) and not view.policy.ordering_guarantee:
            check_sizes(view, messages)
            parts = await self.run(bulk.stage_packed(self.env, view, job, messages))
        else:
            parts = await self.run(bulk.stage(self.env, view, job, inline_drafts(view, messages, now)))
        return Staged(len(messages), now, _parts.encode(parts))

    async def publish(self, queue: str, job: str, staged: Sequence[Staged], *, epoch: int | None = None) -> int:
        held = await self._queue(queue)
        count = await self.run(
            bulk.publish_job(
                self.env,
                held.view,
                job,
                epoch or 0,
                [part for one in staged for part in _read_parts.decode(one.detail)],
                since=min((one.at_ms for one in staged), default=self.env.now()),
                count=sum(one.count for one in staged),
                keep=epoch is not None,
            )
        )
        held.wake()
        return count

    async def discard(self, queue: str, job: str, staged: Sequence[Staged]) -> None:
        held = await self._queue(queue)
        parts = [part for one in staged for part in _read_parts.decode(one.detail)]
        await self.run(bulk.discard(self.env, held.view, job, parts))

    async def write_note(self, queue: str, name: str, value: bytes) -> bytes:
        held = await self._queue(queue)
        return await self.run(notes.write_note(self.env, held.view, name, value))

    async def read_note(self, queue: str, name: str) -> bytes | None:
        held = await self._queue(queue)
        return await self.run(notes.read_note(self.env, held.view, name))

    async def drop_note(self, queue: str, name: str) -> None:
        held = await self._queue(queue)
        await self.run(notes.drop_note(held.view, name))

    async def pieces(self, queue: str, table: ScannedTable, most: int, *, since: int = 0) -> list[bytes]:
        held = await self._queue(queue)
        return await self.run(scan.pieces(held.view, table, most, since))

    async def scan(self, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
        held = await self._queue(queue)
        for step in scan.steps(self.env, held.view, table, piece):
            for block in await self.run(step):
                yield block
