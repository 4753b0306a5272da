"""Mutual exclusion: of many writers with one condition, one is applied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brigade.blobs import Blob, Create, Delete, DeleteIf, Get, Swap
from brigade.doctor.lab import Answer, Connection, Lab
from brigade.doctor.report import Finding, fail, ok, warn
from brigade.errors import BrigadeError

__all__ = [
    "create_race",
    "create_taken",
    "delete_race",
    "no_lost_updates",
    "returning_etags",
    "swap_race",
    "swap_stale",
]

WRITERS = 20
TWICE = "two consumers may hold one message: never run queues on this store"
LOST = "what one process writes another one may wipe out: messages can be lost on this store"
COUNTING = 20.0


class _Rounds:
    """Judges rounds of a race by what the writers were told and by what is there afterwards."""

    def __init__(self, what: str, writers: int) -> None:
        self._what = what
        self._writers = writers
        self._rounds = 0
        self._doubtful = 0
        self._nobody = 0
        self._errors = 0

    def judge(
        self, answers: Sequence[Answer], bodies: Sequence[bytes], found: Blob | None, before: bytes | None
    ) -> Finding | None:
        """A failure, or None."""
        self._rounds += 1
        self._errors += any(isinstance(answer, BrigadeError) for answer in answers)
        won = [number for number, answer in enumerate(answers) if isinstance(answer, str)]
        where = f"round {self._rounds}"
        if len(won) > 1:
            return fail(f"{where}: {len(won)} of {self._writers} writers were told that they had won", TWICE)
        body = None if found is None else found.body
        if won:
            if body != bodies[won[0]]:
                return fail(f"{where}: the winner's bytes are not there", LOST)
            if found is None or found.etag != answers[won[0]]:
                return fail(f"{where}: the winner was given an etag that the object doesn't have", LOST)
        elif body == before:
            self._nobody += 1
        elif body in bodies:
            self._doubtful += 1
        else:
            return fail(f"{where}: the object holds what nobody wrote", LOST)
        return None

    def finding(self) -> Finding:
        said = f"{self._rounds} rounds of {self._writers} {self._what}"
        if self._nobody == self._rounds:
            return fail(f"{said}: nobody ever won", "nothing can be claimed on this store")
        if self._nobody or self._doubtful or self._errors:
            parts = [
                f"{number} with {text}"
                for number, text in (
                    (self._nobody, "no winner"),
                    (self._doubtful, "a winner who was not told"),
                    (self._errors, "writers who got no answer"),
                )
                if number
            ]
            return warn(
                f"{said}: never two winners; {', '.join(parts)}",
                "safe: writers read back and try again, which makes contention dearer",
            )
        return ok(f"{said}: one winner each")


async def create_race(lab: Lab) -> Finding:
    """Create-only writes of one key."""
    rounds = _Rounds("creators", WRITERS)
    for turn in range(lab.scale(4, 12)):
        key = lab.key(f"create-{turn}")
        bodies = [lab.body(f"creator {number}") for number in range(WRITERS)]
        answers = await lab.race([Create(key, body) for body in bodies])
        if failed := rounds.judge(answers, bodies, await lab.get(key, by=turn), None):
            return failed
    return rounds.finding()


async def create_taken(lab: Lab) -> Finding:
    """A create-only write of a key that is taken."""
    key, body = lab.key("taken"), lab.body("first")
    await lab.write(Create(key, body))
    for by in range(3):
        answer = await lab.connection(by).perform(Create(key, lab.body("second")))
        found = await lab.get(key, by=by + 1)
        if isinstance(answer, str) or found is None or found.body != body:
            return fail("an object that was there was written over", LOST)
    return ok("refused, and nothing changed")


async def swap_race(lab: Lab) -> Finding:
    """Swaps that expect the same etag."""
    rounds = _Rounds("swappers", WRITERS)
    for turn in range(lab.scale(4, 12)):
        key, start = lab.key(f"swap-{turn}"), lab.body("start")
        etag = await lab.write(Create(key, start), by=turn)
        bodies = [lab.body(f"swapper {number}") for number in range(WRITERS)]
        answers = await lab.race([Swap(key, body, etag) for body in bodies])
        if failed := rounds.judge(answers, bodies, await lab.get(key, by=turn), start):
            return failed
    return rounds.finding()


async def swap_stale(lab: Lab) -> Finding:
    """Swaps by an etag that the object no longer has."""
    key, body = lab.key("stale"), lab.body("second")
    first = await lab.write(Create(key, lab.body("first")))
    await lab.write(Swap(key, body, first))
    answer = await lab.connection(1).perform(Swap(key, lab.body("late"), first))
    found = await lab.get(key)
    if isinstance(answer, str) or found is None or found.body != body:
        return fail("a swap by an old etag was applied", TWICE)
    await lab.connection().perform(Delete((key,)))
    answer = await lab.connection(1).perform(Swap(key, lab.body("late"), found.etag))
    if isinstance(answer, str) or await lab.get(key) is not None:
        return fail("a swap brought a deleted object back", "finished messages may come back on this store")
    return ok("refused, also after a delete")


async def returning_etags(lab: Lab) -> Finding:
    """Whether the same bytes have the same etag again (A-B-A)."""
    key = lab.key("returning")
    first = await lab.write(Create(key, b"A"))
    second = await lab.write(Swap(key, b"B", first))
    third = await lab.write(Swap(key, b"A", second))
    if second in (first, third):
        return fail("a write of other bytes left the etag as it was", TWICE)
    if third == first:
        return ok("an etag comes back with its bytes", "every write of Brigade's has a nonce in it, so bytes never do")
    return ok("an etag never comes back")


async def no_lost_updates(lab: Lab) -> Finding:
    """Many count in one object by read and swap."""
    key, turns, writers = lab.key("count"), lab.scale(3, 5), 2 * lab.size
    await lab.write(Create(key, b"0"))
    end = lab.monotonic() + COUNTING

    async def count(connection: Connection) -> int:
        """How often this one was told that it had counted."""
        counted = 0
        while counted < turns and lab.monotonic() < end:
            blob = await connection.blobs.perform(Get(key))
            assert isinstance(blob, Blob)
            number = int(blob.body.partition(b" ")[0])
            await asyncio.sleep(0)
            answer = await connection.blobs.perform(Swap(key, lab.body(str(number + 1)), blob.etag))
            counted += isinstance(answer, str)
        return counted

    answers = await lab.together([count] * writers)
    errors = [answer for answer in answers if isinstance(answer, BrigadeError)]
    if errors:
        return warn(f"counting stopped: {errors[0]}", "the store doesn't bear many writers of one object")
    found = await lab.get(key)
    assert found is not None
    total = int(found.body.partition(b" ")[0])
    said = f"{writers} writers counted {sum(answers)} times, the object says {total}"
    return ok(said) if sum(answers) <= total else fail(said, LOST)


async def delete_race(lab: Lab) -> Finding:
    """Conditional deletes against swaps by the same etag.

    Every connection starts with a delete in one round and with a swap in the next, so that whichever is carried out
    in two steps has looked before the other is through.
    """
    won_deletes = won_swaps = 0
    rounds = lab.scale(4, 16)
    for turn in range(rounds):
        key = lab.key(f"delete-{turn}")
        etag = await lab.write(Create(key, lab.body("start")), by=turn)
        ops = [
            DeleteIf(key, etag) if number // lab.size % 2 == turn % 2 else Swap(key, lab.body(str(number)), etag)
            for number in range(WRITERS)
        ]
        answers = await lab.race(ops)
        won = [type(op) for op, answer in zip(ops, answers, strict=True) if isinstance(answer, str)]
        found = await lab.get(key, by=turn)
        if Swap in won and (DeleteIf in won or found is None):
            return fail(f"round {turn + 1}: a delete by an old etag removed a newer write", LOST)
        if won.count(Swap) > 1:
            return fail(f"round {turn + 1}: {won.count(Swap)} swaps by one etag were applied", TWICE)
        if DeleteIf in won and found is not None:
            return fail(f"round {turn + 1}: an object that was deleted is still there", LOST)
        won_deletes += DeleteIf in won
        won_swaps += Swap in won
        newer = await lab.write(Create(key, lab.body("again"))) if found is None else found.etag
        answer = await lab.connection(turn).perform(DeleteIf(key, etag))
        if isinstance(answer, str) or await lab.get(key, by=turn + 1) is None:
            return fail("a delete by an old etag was applied", LOST)
        answer = await lab.connection(turn).perform(DeleteIf(key, newer))
        if isinstance(answer, str) and await lab.get(key, by=turn + 1) is not None:
            return fail("a delete that was answered was not carried out", LOST)
    said = f"{rounds} rounds: {won_deletes} won by a delete, {won_swaps} by a swap, none by both"
    return ok(said)
