"""Every transition of a message, as data. No I/O and no clock: `now` is an argument.

A pair that is missing from `TRANSITIONS` is illegal. Stores differ in how they keep a message, never in what
may become of it: they all ask `step` and `claimable`. The diagram in the docs is drawn from the same table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "TRANSITIONS",
    "Event",
    "Guard",
    "IllegalTransition",
    "State",
    "Transition",
    "claimable",
    "diagram",
    "step",
]


class State(StrEnum):
    """Where a message is in its life. `ABSENT` is before enqueue and after purge."""

    ABSENT = "absent"
    READY = "ready"
    IN_FLIGHT = "in_flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Event(StrEnum):
    """What can happen to a message."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    ACK = "ack"
    NACK = "nack"
    DEFER = "defer"
    EXTEND = "extend"
    RELEASE = "release"
    EXPIRE = "expire"
    LAPSE = "lapse"
    PURGE = "purge"
    REDRIVE = "redrive"


class Guard(StrEnum):
    """A condition on a transition."""

    ALWAYS = "always"
    ATTEMPTS_LEFT = "attempts left"
    ATTEMPTS_SPENT = "attempts spent"


class Transition(NamedTuple):
    """One row: under `guard` the message goes to `to`; `attempts` is what that adds to its attempt count."""

    guard: Guard
    to: State
    attempts: int = 0


class IllegalTransition(Exception):
    """The event cannot happen in that state."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"a message that is {state} cannot {event}")
        self.state = state
        self.event = event


TRANSITIONS: dict[tuple[State, Event], tuple[Transition, ...]] = {
    (State.ABSENT, Event.ENQUEUE): (Transition(Guard.ALWAYS, State.READY),),
    (State.READY, Event.CLAIM): (Transition(Guard.ALWAYS, State.IN_FLIGHT, attempts=+1),),
    (State.READY, Event.LAPSE): (Transition(Guard.ALWAYS, State.FAILED),),
    (State.READY, Event.PURGE): (Transition(Guard.ALWAYS, State.ABSENT),),
    (State.IN_FLIGHT, Event.ACK): (Transition(Guard.ALWAYS, State.SUCCEEDED),),
    (State.IN_FLIGHT, Event.NACK): (
        Transition(Guard.ATTEMPTS_LEFT, State.READY),
        Transition(Guard.ATTEMPTS_SPENT, State.FAILED),
    ),
    (State.IN_FLIGHT, Event.DEFER): (Transition(Guard.ALWAYS, State.READY, attempts=-1),),
    (State.IN_FLIGHT, Event.EXTEND): (Transition(Guard.ALWAYS, State.IN_FLIGHT),),
    (State.IN_FLIGHT, Event.RELEASE): (Transition(Guard.ALWAYS, State.READY, attempts=-1),),
    (State.IN_FLIGHT, Event.EXPIRE): (
        Transition(Guard.ATTEMPTS_LEFT, State.READY),
        Transition(Guard.ATTEMPTS_SPENT, State.FAILED),
    ),
    (State.FAILED, Event.REDRIVE): (Transition(Guard.ALWAYS, State.READY),),
    (State.FAILED, Event.PURGE): (Transition(Guard.ALWAYS, State.ABSENT),),
}


def step(state: State, event: Event, *, attempts: int = 0, max_attempts: int = 1) -> Transition:
    """The one transition that `event` makes from `state`; raises `IllegalTransition` where there is none."""
    rows = TRANSITIONS.get((state, event))
    if rows is None:
        raise IllegalTransition(state, event)
    spent = attempts >= max_attempts
    for row in rows:
        if row.guard is Guard.ALWAYS or (row.guard is Guard.ATTEMPTS_SPENT) == spent:
            return row
    raise IllegalTransition(state, event)


def claimable(state: State, *, now: int, due_at: int, lease_expires_at: int, paused: bool) -> bool:
    """Whether a claim may take the message: due, not paused, and ready or held under a lease that ran out."""
    if paused or due_at > now:
        return False
    return state is State.READY or (state is State.IN_FLIGHT and lease_expires_at <= now)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (state, event), rows in TRANSITIONS.items():
        for row in rows:
            label = event.value if row.guard is Guard.ALWAYS else f"{event} ({row.guard})"
            source = "[*]" if state is State.ABSENT else state.value
            target = "[*]" if row.to is State.ABSENT else row.to.value
            lines.append(f"    {source} --> {target}: {label}")
    lines.append("    succeeded --> [*]: history")
    return "\n".join(lines) + "\n"
