"""An ack and the claim that follows it, made together: where each commit is waited for, one is enough for both."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from brigade.errors import BrigadeError
from brigade.model import Grant, Message, Release
from brigade.stores.bucket.driver import Unfinished
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.joint import BucketJoint
from brigade.stores.bucket.lockstep import resumed
from brigade.stores.bucket.prompt import BucketPrompt, claim_and_load
from brigade.stores.bucket.settle import Answers
from brigade.stores.bucket.steps import Parallel, Proto

__all__ = ["BucketPairs"]

T = TypeVar("T")
Won = list[Message] | Grant | None
Both = tuple[Answers | BrigadeError | None, Won | BrigadeError]


class BucketPairs(BucketPrompt, BucketJoint):
    """`next_now` of `PromptStore`."""

    @property
    def pairs(self) -> bool:
        return self.gathers and not (self._blobs.immediate or self._blobs.pledges)

    def next_now(
        self, queue: str, message: Message, owner: str, visibility: float
    ) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None:
        acking = self._plain_ack(queue, message)
        if acking is None or not self.may_claim_now(acking[0]):
            return None
        held, ack = acking
        claiming = claim_and_load(self.env, held.view, owner, visibility, self._blobs.listing_ttl)
        done = self.run_now(_ack_and_claim(ack, claiming))
        if isinstance(done, Unfinished):
            return self._both_later(held, done)
        return None if done is None else self._went_on(held, *done)

    async def _both_later(self, held: HeldQueue, rest: Unfinished[Both | None]) -> list[Message] | None:
        done = await self.finish(rest)
        if done is None:
            return None
        answer = self._went_on(held, *done)
        return answer if isinstance(answer, list) else await answer

    def _went_on(
        self, held: HeldQueue, acked: Answers | BrigadeError | None, won: Won | BrigadeError
    ) -> list[Message] | Coroutine[Any, Any, list[Message]]:
        """What the caller holds now. A claim that failed is made anew, and fails by itself."""
        self._finish_soon(held)
        refused = acked[0] if isinstance(acked, list) else acked
        if isinstance(refused, BrigadeError):
            return self._given_back(held, won, refused)
        if isinstance(won, Grant):
            return self.load([won])
        return won if isinstance(won, list) else []

    async def _given_back(self, held: HeldQueue, won: Won | BrigadeError, error: BrigadeError) -> list[Message]:
        """Who may not ack gets nothing either."""
        messages = won.held() if isinstance(won, Grant) else won
        if isinstance(messages, list):
            with contextlib.suppress(BrigadeError):
                await self.settle(held.view.keys.queue, [Release(message) for message in messages])
        raise error


def _ack_and_claim(acking: Proto[Answers | None], claiming: Proto[Won]) -> Proto[Both | None]:
    """Both, and what each came to. None, and nothing was done, where the ack isn't plain."""
    try:
        swap = acking.send(None)
    except StopIteration:
        return None
    acked, won = yield Parallel((_caught(resumed(acking, swap)), _caught(claiming)), 2)
    return acked, won


def _caught(part: Proto[T]) -> Proto[T | BrigadeError]:
    try:
        return (yield from part)
    except BrigadeError as error:
        return error
