"""Whose turn it is in a claim: which segments and lanes to try next, and who gets what is won."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from brigade.clock import FOREVER
from brigade.ids import digest
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.lanes import Urgency
from brigade.stores.bucket.steps import Env
from brigade.stores.bucket.view import QueueView

__all__ = ["WIDTH", "Seats", "Turn"]

WIDTH = 16
TRIES = 3
LAST = (10, FOREVER)


class Seats:
    """Who gets what a claim wins: each message in turn goes to the next seat in the plan.

    One write may serve several takers. Each has a grant of its own, under a token that those of others don't tell.
    """

    def __init__(self, owners: Sequence[str], plan: Sequence[int]) -> None:
        self.owners = owners
        self.left = list(plan)
        self.taker: dict[str, int] = {}

    def parts(self, shares: Sequence[int]) -> list[list[int]]:
        """Take the next seats for several segments, so many for each."""
        ends = list(accumulate(shares, initial=0))
        parts = [self.left[start:end] for start, end in pairwise(ends)]
        self.left = self.left[ends[-1] :]
        return parts

    def takers(self, secret: str, part: Sequence[int]) -> list[tuple[str, str]]:
        """The token and the owner for each message of a part. The secret is given to nobody, unless they are alone."""
        seats = set(part)
        alone = len(seats) == 1
        made = {seat: (secret if alone else digest(secret, str(seat), size=16), self.owners[seat]) for seat in seats}
        self.taker.update((token, seat) for seat, (token, _) in made.items())
        return [made[seat] for seat in part]


class Turn:
    """Where a claim has got to: segments and lanes, taken together in the order of their urgency.

    What others have just written has to wait until there is nothing else. Where the claim is patient and could take a
    whole segment, that has to wait even then, for a while: others have most likely taken all of it.
    """

    def __init__(
        self,
        env: Env,
        view: QueueView,
        lanes: list[tuple[Urgency, str]],
        *,
        limit: int,
        only_derived: bool,
        patient: bool,
    ) -> None:
        self._env = env
        self._view = view
        self._only_derived = only_derived
        self._limit = limit
        self._whole = limit if patient else 0
        self._in_order = only_derived or bool(view.lanes)
        self.lanes = lanes
        self.after = None if self._in_order else view.cursor
        self._passed_over = self.after is not None
        self._held_back = self._impatient = self.beaten = False
        self._tries = 1

    def again(self) -> bool:
        """Whether to start anew: for what was passed over, what others are busy with, then where they were faster."""
        if self._passed_over:
            self._passed_over, self.after, self._view.cursor = False, None, None
            return True
        if self._held_back and not self._impatient:
            self._impatient = True
        elif self.beaten and self._tries < TRIES:
            self._tries += 1
        else:
            return False
        self.beaten = False
        self.after = None if self._in_order else self._view.start(self._env.ids, self._env.now(), self._limit)
        self._passed_over = self.after is not None
        return True

    def next_batch(self, wanted: int, now: int) -> list[tuple[SegmentName | str, int]]:
        """The next few segments and lanes worth trying, each with its share of what is wanted."""
        batch: list[tuple[SegmentName | str, int]] = []
        for name in self._view.after(self.after):
            wanted -= self._lanes_before((name.priority, name.order), wanted, batch)
            if wanted <= 0 or len(batch) >= WIDTH:
                return batch
            self.after = name
            known = self._view.ledgers.get(name)
            if self._only_derived and not name.derived:
                continue
            if known is not None and known.next_at > now:
                maybe = known.busy and (name.size > self._whole or known.since + self._view.patience <= now)
                self._held_back = self._held_back or maybe
                if not (maybe and self._impatient):
                    continue
            share = min(wanted, name.size)
            wanted -= share
            batch.append((name, share))
        self._lanes_before(LAST, wanted, batch)
        return batch

    def _lanes_before(self, urgency: Urgency, wanted: int, batch: list[tuple[SegmentName | str, int]]) -> int:
        """Add the lanes that come before a segment of that urgency; returns how many."""
        count = 0
        while self.lanes and self.lanes[0][0] <= urgency and count < wanted and len(batch) < WIDTH:
            batch.append((self.lanes.pop(0)[1], 1))
            count += 1
        return count
