"""Breaks things, by a seed: kills and freezes members of the crew, skews clocks, and whatever the arena offers."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter

from brigade.testing.chaos.arenas import Arena, Break
from brigade.testing.chaos.plan import FLEET
from brigade.testing.chaos.roster import Member, Roster, send

__all__ = ["SKEW", "Nemesis"]

SKEW = 400
"""By how many milliseconds a clock may be off."""


class Nemesis:
    """Does one thing after the other until its time is over; each is counted once it was done."""

    def __init__(self, arena: Arena, roster: Roster, seed: int, *, lease: float, every: float = 1.5) -> None:
        self._arena = arena
        self._roster = roster
        self._rng = random.Random(seed)
        self._lease = lease
        self._every = every
        self._breaking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Every kind has its turn, in an order of chance, again and again."""
        end = time.monotonic() + seconds
        deck: list[str] = []
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._rng.uniform(0.3, 2) * self._every))
            self._roster.replace_dead()
            for task in [task for task in self._tasks if task.done()]:
                self._tasks.discard(task)
                task.result()
            if not deck:
                deck = self._deck()
            if time.monotonic() < end:
                self._begin(deck.pop())
        await asyncio.gather(*self._tasks)

    def _deck(self) -> list[str]:
        """One thing done to a server, which is away then, two of each other kind, and many kills and freezes."""
        breaks = list(self._arena.breaks)
        servers = [kind for kind in breaks if kind.startswith("server")]
        deck = [kind for kind in breaks if kind not in servers] * 2
        if servers:
            deck.append(self._rng.choice(servers))
        deck += ["kill", "freeze"] * max(3, len(deck))
        if not self._arena.keeps_own_time:
            deck += ["skewed clock"] * 2
        self._rng.shuffle(deck)
        return deck

    def _begin(self, kind: str) -> None:
        acts: dict[str, Break] = {"kill": self._kill, "freeze": self._freeze, "skewed clock": self._skew}
        work = acts[kind](self._rng) if kind in acts else self._break(kind)
        self._tasks.add(asyncio.ensure_future(work))

    async def _break(self, kind: str) -> None:
        """One thing at a time is done to the store."""
        async with self._breaking:
            await self._arena.breaks[kind](self._rng)
        self.done[kind] += 1

    def _member(self) -> Member | None:
        """Anybody; a fleet, which is many processes, twice as often."""
        free = [one for one in self._roster.members if not one.frozen and self._roster.is_at_work(one)]
        free += [one for one in free if one.role == FLEET]
        return self._rng.choice(free) if free else None

    async def _kill(self, rng: random.Random) -> None:
        member = self._member()
        if member is not None and (pid := self._executor(member, rng)) is not None:
            send(pid, signal.SIGKILL)
            self.done[f"kill -9 of an executor of the {member.role}"] += 1
        elif member is not None and self._end(member, rng):
            await asyncio.sleep(rng.uniform(0, 0.5))
            self._roster.start(member)
            self.done[f"kill -9 of {member.role}"] += 1

    def _executor(self, member: Member, rng: random.Random) -> int | None:
        """One of the processes that a fleet runs handlers in, every other time; None for the member as a whole."""
        found = self._roster.executors(member) if member.role == FLEET and rng.random() < 0.5 else []
        return rng.choice(found) if found else None

    def _end(self, member: Member, rng: random.Random) -> bool:
        """Kill it, with its children or without: those have to notice."""
        member.frozen = True
        killed = self._roster.signal(member, signal.SIGKILL, group=rng.random() < 0.3)
        if killed and member.process is not None:
            member.process.wait()
        member.frozen = killed
        return killed

    async def _freeze(self, rng: random.Random) -> None:
        """Of a fleet everything stops: the driver alone has little to do."""
        member = self._member()
        whole = member is not None and member.role == FLEET
        if member is None or not self._roster.signal(member, signal.SIGSTOP, group=whole):
            return
        member.frozen = True
        await asyncio.sleep(self._lease * rng.uniform(1.1, 2.0))
        self._roster.signal(member, signal.SIGCONT, group=whole)
        member.frozen = False
        self.done[f"freeze of {member.role} past the lease"] += 1

    async def _skew(self, rng: random.Random) -> None:
        """Replace a member by one whose clock is off."""
        member = self._member()
        if member is not None and self._end(member, rng):
            self._roster.start(member, rng.choice((-1, 1)) * rng.randint(SKEW // 4, SKEW))
            self.done[f"kill -9 of {member.role}, then its clock is off"] += 1
