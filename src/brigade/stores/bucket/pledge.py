"""First claims that need not be durable one by one: what they leave behind is pledged before, for many at a time.

A claim has to outlast the machine for two reasons: it counts as an attempt, also where the machine dies of it, and its
version is never given out again. So before such claims are made, storage has to know what it is to put in their place,
should they be lost: the account of a message that was claimed once, by somebody who is gone. Where the machine dies,
the few messages that were pledged and not yet claimed have lost an attempt, too, as if they had been claimed together.
What ends a lease is durable when it is answered, and with it everything that came before.
"""

from __future__ import annotations

from itertools import islice

from brigade.blobs import Pledge
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.plain import LOOK, first_lease, is_untouched
from brigade.stores.bucket.steps import Env
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import LEDGER, GrantRow

__all__ = ["NOTHING_PLEDGED", "next_pledge", "note_pledge"]

AHEAD = 32
"""How many claims are pledged at a time."""
WORTH = 8
"""Fewer are not worth it; nor is it before one caller has made so many claims, one message each."""
GOOD_FOR = 600.0
"""Seconds after which a pledge is not relied on any more: storage forgets it when it is an hour old."""
LOST = "lost with the machine"
"""Who held a message whose claim was lost."""
NOTHING_PLEDGED: tuple[Pledge | None, bool] = (None, False)


def next_pledge(env: Env, view: QueueView, name: SegmentName, now: int) -> tuple[Pledge | None, bool]:
    """How to claim a plain message for the first time: with which pledge for what comes after it, and whether it has
    been pledged itself, and so need not be durable at once.
    """
    view.lone_claims += 1
    if name in view.pledged:
        view.pledged.discard(name)
        if env.clock.monotonic() - view.pledged_at < GOOD_FOR:
            return None, True
        view.pledged.clear()
    if view.lone_claims < WORTH or view.policy.failure.max_attempts < 2:  # It would be dead without having been tried.
        return NOTHING_PLEDGED
    following = islice(view.after(name), LOOK)
    names = list(islice((one for one in following if is_untouched(view, one)), AHEAD))
    if len(names) < WORTH:
        return NOTHING_PLEDGED
    view.pledged, view.pledging, view.pledged_at = set(), names, env.clock.monotonic()
    row = GrantRow(1, env.ids.token(), LOST, now, now)
    keys = tuple((view.keys.ledger(one), view.keys.segment(one)) for one in names)
    return Pledge(view.keys.queue, keys, LEDGER.encode(first_lease(env.ids.nonce(), row))), False


def note_pledge(view: QueueView) -> None:
    """The last pledge is durable: the claims that it is for may be made durable later."""
    view.pledged = set(view.pledging)
