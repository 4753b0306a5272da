"""What every measurement shares: the stores, the message, fresh directories, and best of three in turn."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FILE", "FILE_FSYNC", "MEMORY", "MESSAGE", "SQLITE", "STORES", "Case", "Ground", "Measurement", "best_of"]

MESSAGE = b'{"type": "email", "to": "someone@example.org", "body": "'.ljust(198, b".") + b'"}'
MEMORY, FILE, FILE_FSYNC, SQLITE = "memory", "file, no fsync", "file, fsync", "sqlite, fsync"
STORES = (MEMORY, FILE, FILE_FSYNC, SQLITE)

assert len(MESSAGE) == 200


@dataclass(frozen=True, slots=True)
class Measurement:
    """The messages a second of each round; `best` is what the tables show."""

    case: str
    store: str
    messages: int
    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.rounds)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure: `run(url, messages)` returns the seconds that count."""

    name: str
    run: Callable[[str, int], float]
    messages: dict[str, int]


@dataclass(slots=True)
class Ground:
    """Where the runs happen. Every run gets a directory of its own, and none is removed until the very end:
    after many deletes a file system may create files far more slowly for a while.
    """

    quick: bool = False
    parent: Path | None = None
    tick: Callable[[str], None] = field(default=lambda _: None)
    root: Path = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="brigade-bench-", dir=self.parent))

    def directory(self) -> Path:
        self._made += 1
        made = self.root / f"{self._made:04d}"
        made.mkdir()
        return made

    def url(self, store: str) -> str:
        """The URL of a fresh, empty store of that kind."""
        if store == MEMORY:
            return f"memory://{self.directory().name}-{self.root.name}"
        if store == SQLITE:
            return f"sqlite://{self.directory()}/jobs.db"
        return f"file://{self.directory()}?fsync={'on' if store == FILE_FSYNC else 'off'}"

    def messages(self, wanted: int, batch: int = 1) -> int:
        """How many messages to send: far fewer in a smoke test, and always whole batches."""
        count = max(wanted // 100, 20) if self.quick else wanted
        return max(count // batch, 1) * batch

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def best_of(ground: Ground, case: Case, *, batch: int = 1) -> list[Measurement]:
    """Run the case on each of its stores, in turn, three times: a slow moment of the machine hits them all."""
    stores: Sequence[str] = list(case.messages)
    counts = {store: ground.messages(case.messages[store], batch) for store in stores}
    rates: dict[str, list[float]] = {store: [] for store in stores}
    for _ in range(ground.rounds):
        for store in stores:
            ground.tick(f"{case.name} · {store}")
            rates[store].append(counts[store] / case.run(ground.url(store), counts[store]))
    return [Measurement(case.name, store, counts[store], tuple(rates[store])) for store in stores]
