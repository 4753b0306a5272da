"""Plain calls, carried out within the call where storage answers at once: no task, no coroutine, no waiting."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from brigade.blobs import Blob, Get, Refused
from brigade.errors import CannotDecrypt, StaleLease
from brigade.model import Grant, Message, Receipt
from brigade.stores import Outgoing
from brigade.stores.bucket.claim import first_grant, lease_one
from brigade.stores.bucket.claiming import BucketClaiming
from brigade.stores.bucket.convert import first_message, messages_of
from brigade.stores.bucket.driver import Unfinished
from brigade.stores.bucket.enqueue import plan_one, see_through, was_created
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.incoming import plain_entry
from brigade.stores.bucket.keys import parse_message_ref
from brigade.stores.bucket.load import load_one, sole_entry
from brigade.stores.bucket.settle import Answers, Change, ack_one
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.view import QueueView

__all__ = ["BucketPrompt", "claim_and_load"]


class BucketPrompt(BucketClaiming):
    """Enqueue, claim and ack, as `PromptStore` has them. What isn't plain, or ours alone, goes the general way."""

    def enqueue_now(self, queue: str, message: Outgoing) -> Receipt | Coroutine[Any, Any, Receipt] | None:
        held = self._queues.get(queue)
        if held is None or self._closed or not held.enqueues.idle:
            return None
        entry = plain_entry(held.view, message, self.env.now())
        if entry is None:
            return None
        planned = plan_one(self.env, held.view, entry)
        answer = self._blobs.try_now(planned.creation)
        if type(answer) is str:
            held.wake()
            return was_created(held.view, planned, entry)
        if isinstance(answer, Refused):
            done = self.run_now(see_through(self.env, held.view, planned, entry, answer))
            if not isinstance(done, Unfinished):
                held.wake()
                return done
        else:
            rest = see_through(self.env, held.view, planned, entry, None)
            done = Unfinished(rest, rest.send(None))
        return self._enqueued_later(held, done)

    async def _enqueued_later(self, held: HeldQueue, rest: Unfinished[Receipt]) -> Receipt:
        receipt = await self.finish(rest)
        held.wake()
        return receipt

    def claim_now(
        self, queue: str, owner: str, visibility: float
    ) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None:
        held = self._queues.get(queue)
        if held is None or self._closed or not self.may_claim_now(held):
            return None
        blobs = self._blobs
        claiming = claim_and_load(self.env, held.view, owner, visibility, blobs.listing_ttl, pledges=blobs.pledges)
        done = self.run_now(claiming)
        return self._claimed_later(done) if isinstance(done, Unfinished | Grant) else done

    async def _claimed_later(self, rest: Unfinished[list[Message] | Grant | None] | Grant) -> list[Message] | None:
        done = rest if isinstance(rest, Grant) else await self.finish(rest)
        return await self.load([done]) if isinstance(done, Grant) else done

    def ack_now(self, queue: str, message: Message) -> bool | Coroutine[Any, Any, bool | None] | None:
        acking = self._plain_ack(queue, message)
        if acking is None:
            return None
        held, proto = acking
        done = self.run_now(proto)
        if isinstance(done, Unfinished):
            return self._acked_later(held, done)
        return self._acked(held, done)

    def _plain_ack(self, queue: str, message: Message) -> tuple[HeldQueue, Proto[Answers | None]] | None:
        """What acks a message that is the first of its segment, while nobody else settles anything."""
        held, found = self._queues.get(queue), parse_message_ref(message.ref)
        token, _, number = message.lease.token.rpartition(".")
        if held is None or self._closed or held.settles or found is None or found[1] or number != "0":
            return None
        return held, ack_one(self.env, held.view, found[0], Change("ack", [0], token, message.lease.version))

    async def _acked_later(self, held: HeldQueue, rest: Unfinished[Answers | None]) -> bool | None:
        return self._acked(held, await self.finish(rest))

    def _acked(self, held: HeldQueue, answers: Answers | None) -> bool | None:
        if answers is None:
            return None
        self._finish_soon(held)
        if isinstance(answers[0], StaleLease):
            raise answers[0]
        return True


def claim_and_load(
    env: Env, view: QueueView, owner: str, visibility: float, listing_ttl: float, *, pledges: bool = False
) -> Proto[list[Message] | Grant | None]:
    """One plain message. A grant alone: it was won, and no key at hand opens it."""
    try:
        won = yield from lease_one(
            env, view, owner=owner, visibility=visibility, listing_ttl=listing_ttl, pledges=pledges
        )
    except CannotDecrypt:
        return None
    if won is None:
        return None
    name, account = won
    if not isinstance(account, Grant):
        ref = f"{name}-0"
        blob: Blob | None
        try:
            blob = yield Get(view.keys.segment_of(ref))
        except CannotDecrypt:
            blob = None
        entry = None if blob is None else sole_entry(blob.body)
        if entry is not None:
            view.keep_entries(name, account.born, [entry])
            return [first_message(view, ref, account, entry)]
        account = first_grant(view, name, account)
    try:
        loaded = yield from load_one(env, view, name, account)
    except CannotDecrypt:
        return account
    return None if loaded is None else messages_of(view.keys.queue, loaded)
