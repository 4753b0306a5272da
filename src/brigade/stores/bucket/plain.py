"""The plain case, decided without opening a book: one message in a segment of its own.

What comes out is what a `Book` would make of it; a test holds the two against each other.
"""

from __future__ import annotations

from array import array
from itertools import islice
from sys import byteorder

from brigade.stores.bucket.book import LEASED, SUCCEEDED
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import End, GrantRow, Ledger

__all__ = ["LOOK", "acked", "first_lease", "is_untouched", "untouched_head"]

LOOK = 200
PLAIN = frozenset(("fp", "lp"))
_LEASED, _SUCCEEDED = bytes((LEASED,)), bytes((SUCCEEDED,))
_ZERO, _ONE = array("H", (0,)).tobytes(), array("H", (1,)).tobytes()


def untouched_head(view: QueueView, now: int) -> SegmentName | None:
    """The message that a claim would get, where it is plain and nobody is known to have claimed it before.

    None where lanes or a ttl have a say, or where it isn't as simple as that.
    """
    if view.patience or view.lanes or view.unmoved or view.policy.ttl is not None:
        return None
    for name in islice(view.after(view.cursor if view.crowd else None), LOOK):
        known = view.ledgers.get(name)
        if known is None:
            return name if name.size == 1 and name.uid[-2:] in PLAIN else None
        if known.next_at <= now:
            return None
    return None


def is_untouched(view: QueueView, name: SegmentName) -> bool:
    """Whether this is a plain message, alone in its segment, that nobody is known to have claimed."""
    return name.size == 1 and name.uid[-2:] in PLAIN and name not in view.ledgers


def first_lease(nonce: str, row: GrantRow) -> Ledger:
    """The first account of a plain message: leased, for the first time."""
    return Ledger(nonce, row.version, False, _LEASED, _ONE, _ZERO, [row], [], {}, None, {}, [], {}, nonce)


def acked(ledger: Ledger, token: str, nonce: str, now: int) -> tuple[Ledger, GrantRow] | None:
    """The account once the only message is acked, final, and whose lease that was. None: a book has to decide."""
    if ledger.states != _LEASED or ledger.specs is not None or ledger.moves or ledger.due or ledger.results:
        return None
    if ledger.past:
        return None
    row = ledger.grants[int.from_bytes(ledger.leases, byteorder)]
    if row.token != token:
        return None
    grants, ends = ledger.grants, [*ledger.ends, End(row.version, "acked", now, [0, 1])]
    attempts, reasons, born = ledger.attempts, ledger.reasons, ledger.born or nonce
    final = Ledger(
        nonce, ledger.version, True, _SUCCEEDED, attempts, _ZERO, grants, ends, {}, None, reasons, [], {}, born
    )
    return final, row
