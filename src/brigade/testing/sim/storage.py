"""The simulated store: a memory bucket by the virtual clock that tells a witness of every write it applies."""

from __future__ import annotations

from hashlib import blake2b

from brigade.blobs import UNSUPPORTED, Blob, Copy, Create, Delete, DeleteIf, Get, List, Op, Page, Refused, Swap
from brigade.blobs.memory import Bucket
from brigade.clock import Clock
from brigade.testing.sim.witness import Witness

__all__ = ["Storage", "Trace", "VirtualClock"]

EPOCH = 1_700_000_000_000


class VirtualClock:
    """Time that only the scheduler moves. A skewed view of it is another clock on the same time."""

    def __init__(self) -> None:
        self.ms = 0.0

    def now(self) -> int:
        return EPOCH + int(self.ms)

    def monotonic(self) -> float:
        return self.ms / 1000


class SkewedClock:
    """A process's idea of the store's time: off by a constant."""

    def __init__(self, clock: VirtualClock, skew_ms: int) -> None:
        self._clock = clock
        self.skew_ms = skew_ms

    def now(self) -> int:
        return self._clock.now() + self.skew_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


class Trace:
    """Every operation of a run in order: a running hash, and the lines where somebody wants to read them."""

    def __init__(self, *, keep: bool = False) -> None:
        self._hash = blake2b(digest_size=16)
        self.keep = keep
        self.lines: list[str] = []
        self.count = 0

    def add(self, line: str) -> None:
        self.count += 1
        self._hash.update(line.encode())
        if self.keep:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Storage:
    """Applies operations, one at a time, and has each write witnessed. It may lack conditional deletes."""

    def __init__(self, clock: Clock, witness: Witness, *, conditional_delete: bool = True) -> None:
        self._conditional_delete = conditional_delete
        self._bucket = Bucket(clock)
        self._clock = clock
        self._witness = witness

    def left(self) -> list[str]:
        """Every key there is."""
        return sorted(self._bucket.snapshot())

    def present(self, queue: str) -> list[str]:
        """The segments that hold messages, and the parked failures."""
        return self._witness.present(queue)

    def apply(self, op: Op) -> object:
        """Perform an operation for real."""
        if isinstance(op, DeleteIf) and not self._conditional_delete:
            return UNSUPPORTED
        answer = self._bucket.apply(op)
        witness_write(self._witness, op, answer, self._clock.now())
        return answer


def witness_write(witness: Witness, op: Op, answer: object, at: int) -> None:
    """Tell the witness what an operation has changed."""
    match op:
        case Create(key, body) | Swap(key, body, _):
            if isinstance(answer, str):
                witness.wrote(key, body, at)
        case DeleteIf(key, _):
            if isinstance(answer, str):
                witness.wrote(key, None, at)
        case Delete(keys):
            for key in keys:
                witness.wrote(key, None, at)
        case Get() | List() | Copy():
            pass


def describe(op: Op) -> str:
    """An operation in a line of the trace."""
    match op:
        case Get(key):
            return f"get {key}"
        case Create(key, body):
            return f"create {key} {len(body)}:{_short(body)}"
        case Swap(key, body, etag):
            return f"swap {key} {etag} {len(body)}:{_short(body)}"
        case List(prefix, after, limit):
            return f"list {prefix} after {after[len(prefix) :]!r} {limit}"
        case Delete(keys):
            return f"delete {' '.join(keys)}"
        case DeleteIf(key, etag):
            return f"delete {key} if {etag}"
        case Copy(source, target):
            return f"copy {source} {target}"


def summary(answer: object) -> str:
    """An answer in a line of the trace."""
    match answer:
        case Blob(body, etag, _):
            return f"{etag} {len(body)}:{_short(body)}"
        case Page(items, more):
            return f"{len(items)} keys{' and more' if more else ''}"
        case Refused():
            return answer.value
        case _:
            return str(answer)


def _short(body: bytes) -> str:
    return blake2b(body, digest_size=3).hexdigest()
