"""A thousand messages of random outcome end in exactly the states that the policy says."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest
from worker_support import AT_ONCE, ended, until

from brigade import Event, Failure, Hub, Message, QueuePolicy, Reject, Retry, Snooze, State, Worker

COUNT = 1000
RETRIES = 3
MODES = [
    pytest.param(Failure("retry", RETRIES), RETRIES, "thread", id="retry"),
    pytest.param(Failure("dead-letter", dead_letter_queue="letters"), 0, "thread", id="dead-letter"),
    pytest.param(Failure("hybrid", RETRIES, "letters"), RETRIES, "thread", id="hybrid"),
    pytest.param(Failure("hybrid", RETRIES, "letters"), RETRIES, "async", id="hybrid async"),
]


def script(generator: random.Random) -> list[str]:
    """What happens at each attempt of one message, in order; it ends with what comes then."""
    steps = ["ok", "raise", "retry", "reject", "snooze"]
    weights = [55, 20, 10, 8, 7]
    chosen = generator.choices(steps, weights, k=RETRIES + 3)
    if generator.random() < 0.003:
        chosen[0] = "timeout"
    return [step if step != "snooze" or chosen.index(step) == place else "ok" for place, step in enumerate(chosen)]


def model(steps: list[str], retries: int) -> tuple[State, int, list[str]]:
    """The state, the number of attempts and the outcomes that are told, by the policy alone."""
    attempts, outcomes, place = 0, [], 0
    while True:
        step = steps[place]
        place += 1
        if step == "snooze":
            continue
        attempts += 1
        if step == "ok":
            return State.SUCCEEDED, attempts, [*outcomes, "processed"]
        if step == "reject" or attempts > retries:
            return State.FAILED, attempts, [*outcomes, "ended"]
        outcomes.append("retrying")


class Actor:
    """Carries out the scripts, and counts how often each was asked."""

    def __init__(self, scripts: list[list[str]]) -> None:
        self._scripts = scripts
        self._lock = threading.Lock()
        self.calls: Counter[int] = Counter()

    def step(self, number: int) -> str:
        with self._lock:
            step = self._scripts[number][self.calls[number]]
            self.calls[number] += 1
        return step

    def end(self, number: int, step: str) -> dict[str, Any]:
        if step == "raise":
            raise ValueError(f"{number} failed")
        if step == "retry":
            raise Retry(f"{number} again", delay=0)
        if step == "reject":
            raise Reject(f"{number} never")
        if step == "snooze":
            raise Snooze(0)
        return {"number": number}

    def __call__(self, message: Message) -> dict[str, Any]:
        step = self.step(message.data)
        if step == "timeout":
            threading.Event().wait(4)
        return self.end(message.data, step)

    async def asynchronous(self, message: Message) -> dict[str, Any]:
        step = self.step(message.data)
        if step == "timeout":
            await asyncio.sleep(60)
        return self.end(message.data, step)


@pytest.mark.parametrize("failure,retries,kind", MODES)
def test_every_message_ends_as_the_policy_says(memory: Hub, failure: Failure, retries: int, kind: str) -> None:
    """[G1] [G3] [G4] Checked against a model, message by message; events tell the same."""
    generator = random.Random(f"{failure.mode} {kind}")
    scripts = [script(generator) for _ in range(COUNT)]
    expected = [model(steps, retries) for steps in scripts]
    letters = memory.queue("letters")
    queue = memory.queue("tasks", QueuePolicy(failure=failure, backoff=AT_ONCE, execution_timeout=1.5))
    told: dict[str | None, list[tuple[int, str]]] = {}
    memory.on("message-outcome", lambda event: _note(told, event))
    actor = Actor(scripts)
    receipts = queue.enqueue_many(range(COUNT))
    handler = actor if kind == "thread" else actor.asynchronous
    with Worker(queue, handler, concurrency=8, grace=0), Worker(queue, handler, concurrency=4, grace=0):
        until(lambda: sum(map(len, list(told.values()))) >= sum(len(outcomes) for _, _, outcomes in expected))
        until(lambda: ended(queue))

    end = "failed" if failure.dead_letter_queue is None else "dead-lettered"
    for number, (receipt, (state, attempts, outcomes)) in enumerate(zip(receipts, expected, strict=True)):
        counted, statuses = zip(*sorted(told[receipt.id]), strict=True)
        assert list(counted) == list(range(1, attempts + 1)), (number, scripts[number])
        assert list(statuses) == [end if one == "ended" else one for one in outcomes], (number, scripts[number])
        if number % 10 == 0:
            info = queue.get(receipt.id)
            assert (info.state, info.attempts) == (state, attempts), (number, scripts[number])
            assert info.result == ({"number": number} if state is State.SUCCEEDED else None)
    succeeded = [number for number, (state, _, _) in enumerate(expected) if state is State.SUCCEEDED]
    stats = queue.stats()
    assert stats.succeeded == len(succeeded)
    failed = {number: attempts for number, (state, attempts, _) in enumerate(expected) if state is State.FAILED}
    if failure.dead_letter_queue is None:
        assert {one.data: one.attempts for one in queue.failed(COUNT)} == failed
        assert stats.failed == len(failed)
    else:
        found = {message.data: message.failure for message in letters.claim(COUNT)}
        assert {number: one.attempts for number, one in found.items() if one is not None} == failed
        assert queue.failed() == []
        assert stats.dead_lettered == len(failed)
    assert letters.claim() == []


def _note(told: dict[str | None, list[tuple[int, str]]], event: Event) -> None:
    """By attempt: two workers tell of one message in any order."""
    told.setdefault(event.id, []).append((event.fields["attempt"], event.fields["status"]))
