"""The verbs that write, on a store whose answers cannot be trusted: every conditional write leaves its caller in doubt.

A write that timed out, or that the client library tried twice, may have been applied. Nothing that users see changes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator

import pytest

from brigade import AsyncHub
from brigade.blobs import CONFLICT, UNKNOWN, Create, Op, Swap
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.stores.bucket.store import BucketStore
from brigade.testing.conformance import Harness, suite


class Applied(MemoryBlobs):
    """Applies every write and says that it doesn't know, or, as after a second try, that there was a conflict."""

    _turn = itertools.count()

    def try_now(self, op: Op) -> object:
        answer = super().try_now(op)
        if isinstance(op, Create | Swap) and isinstance(answer, str):
            return CONFLICT if next(self._turn) % 2 else UNKNOWN
        return answer


class NotApplied(MemoryBlobs):
    """Loses one write in four, by chance."""

    def __init__(self, *, bucket: Bucket) -> None:
        super().__init__(bucket=bucket)
        self._chance = random.Random(1)

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create | Swap) and self._chance.random() < 0.25:
            return UNKNOWN
        return super().try_now(op)


class Doubtful(Harness):
    def __init__(self, kind: type[Applied | NotApplied]) -> None:
        super().__init__("memory://")
        self._bucket = Bucket()
        self._kind = kind

    async def hub(self) -> AsyncHub:
        hub = AsyncHub("memory://")
        hub._store = BucketStore(self._kind(bucket=self._bucket))
        self._hubs.append(hub)
        return hub


@pytest.fixture(params=[Applied, NotApplied], ids=["applied", "not applied"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with Doubtful(request.param) as made:
        yield made


VERBS = ("ack", "dead_letters", "groups", "lanes", "nack", "ordering", "own_ids", "purge", "redrive", "settle", "state")
globals().update(suite(*VERBS))
