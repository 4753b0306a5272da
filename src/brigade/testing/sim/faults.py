"""What can go wrong with one operation, drawn from a seeded source."""

from __future__ import annotations

import random
from dataclasses import dataclass

from brigade.blobs import CONFLICT, UNKNOWN, Blob, Create, Delete, DeleteIf, Get, Op, Refused, Swap

__all__ = ["CALM", "Fate", "Faults", "damaged"]


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities, for each operation; times in milliseconds.

    `late` is the share of the writes with an unknown outcome that are applied only after that answer. `coma` stops
    an operation, and whoever waits for it, for minutes; `kill` ends a process before or after an operation.
    """

    before: float = 0.0
    after: float = 0.0
    corrupt: float = 0.0
    slow: float = 0.0
    kill: float = 0.0
    coma: float = 0.0
    late: float = 0.0
    latency: float = 4.0
    slowest: float = 10_000.0


CALM = Faults()


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of an operation. `answer` replaces the true one; `fails` raises StoreUnavailable instead."""

    applied: bool = True
    answer: Refused | None = None
    fails: bool = False
    corrupt: bool = False
    partial: bool = False
    late: bool = False


_FINE = Fate()


def draw(rng: random.Random, faults: Faults, op: Op, *, may_corrupt: bool) -> Fate:
    """The fate of one operation. A conflict that is not true is answered only where the write was applied."""
    chance = rng.random()
    conditional = isinstance(op, Create | Swap | DeleteIf)
    if chance < faults.before:
        if conditional and rng.random() < 0.6:
            return Fate(applied=False, answer=UNKNOWN, late=rng.random() < faults.late)
        if isinstance(op, Delete) and len(op.keys) > 1 and rng.random() < 0.5:
            return Fate(fails=True, partial=True)
        return Fate(applied=False, fails=True)
    chance -= faults.before
    if chance < faults.after:
        if not conditional:
            return Fate(fails=True)
        kind = rng.random()
        if kind < 0.45:
            return Fate(answer=UNKNOWN)
        return Fate(answer=CONFLICT) if kind < 0.9 else Fate(fails=True)
    chance -= faults.after
    if isinstance(op, Get) and may_corrupt and chance < faults.corrupt:
        return Fate(corrupt=True)
    return _FINE


def delay(rng: random.Random, faults: Faults) -> float:
    """Milliseconds that a request or an answer is under way."""
    if rng.random() < faults.slow:
        return rng.uniform(0, faults.slowest)
    return rng.expovariate(1 / faults.latency)


def damaged(rng: random.Random, blob: Blob) -> Blob:
    """The object as a bad wire would deliver it: cut short, or with a bit flipped."""
    body = bytearray(blob.body)
    if not body:
        return blob
    if rng.random() < 0.5:
        del body[rng.randrange(len(body)) :]
    else:
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return Blob(bytes(body), blob.etag, blob.modified)
