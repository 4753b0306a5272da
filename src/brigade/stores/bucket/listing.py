"""The candidates of a claim: what a listing shows of a queue, with what is known of the ledgers."""

from __future__ import annotations

from collections.abc import Mapping

from brigade.blobs import Item
from brigade.clock import FOREVER
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.steps import Env, Proto, list_page
from brigade.stores.bucket.view import KnownLane, KnownLedger, QueueView

__all__ = ["list_more", "refresh"]

ENOUGH, ENOUGH_NEARBY = 1000, 200
"""How many candidates a listing looks for: where a request costs, as many as come with one."""


def refresh(env: Env, view: QueueView) -> Proto[None]:
    """List the candidates anew, from the head, with what is known of their ledgers."""
    view.paused, view.next_due, view.more_after = False, FOREVER, ""
    view.ledgers_before, view.ledgers, view.candidates = {**view.ledgers_before, **view.ledgers}, {}, []
    yield from list_more(env, view)
    if view.has_lanes:
        yield from _list_lanes(view)
    view.prune_entries()
    view.listed_at = env.clock.monotonic()


def list_more(env: Env, view: QueueView) -> Proto[None]:
    """Go on with the listing until there are enough candidates that may have something to give.

    In a crowd a ledger that somebody else has just written is most likely in use: where a look costs, it has to wait.
    """
    known, patience = view.ledgers_before, view.patience if view.crowd else -FOREVER
    found = yield from _list_candidates(env, view, known)
    if found:
        items = yield from _list_ledgers(view, found[0], found[-1])
        for name in found:
            item = items.get(name)
            if item is not None:
                seen = known.get(name)
                if seen is None or seen.etag != item.etag:
                    since = seen.since if seen and seen.busy else env.now()
                    seen = KnownLedger(None, None, item.modified + patience, since)
                view.ledgers[name] = seen
    view.candidates = sorted({*view.candidates, *found})
    view.forget_ledgers_up_to(view.more_after)


def _list_ledgers(view: QueueView, first: SegmentName, last: SegmentName) -> Proto[dict[SegmentName, Item]]:
    """The ledgers of the segments from the first to the last: they sort alike."""
    items: dict[SegmentName, Item] = {}
    after, end = view.keys.ledger(first)[: -len(first.uid)], view.keys.ledger(last)
    while True:
        page = yield from list_page(view.keys.ledgers, after)
        for item in page.items:
            name = view.keys.parse(item.key)
            if name is not None:
                items[name] = item
        if not page.more or page.items[-1].key >= end:
            return items
        after = page.items[-1].key


def _list_candidates(env: Env, view: QueueView, known: Mapping[SegmentName, KnownLedger]) -> Proto[list[SegmentName]]:
    """Segments with something due, in delivery order; skips what is not due yet without reading through it."""
    keys, now = view.keys, env.now()
    found: list[SegmentName] = []
    still_there: set[SegmentName] = set()
    after = view.more_after or ""
    from_head = not after
    enough = ENOUGH if view.patience else ENOUGH_NEARBY
    while True:
        page = yield from list_page(keys.segments, after, enough)
        skipped = -1
        for item in page.items:
            name = keys.parse(item.key)
            if name is None:
                view.paused = view.paused or item.key == keys.paused_flag
                view.has_lanes = view.has_lanes or item.key == keys.lanes_flag
            elif name.priority == skipped:
                continue
            elif name.due > now:
                view.next_due = min(view.next_due, name.due)
                skipped = skipped if name.lifo else name.priority
            elif name in view.ended:
                still_there.add(name)
            elif (seen := known.get(name)) is not None and seen.next_at == FOREVER:
                # It may be listed for an hour yet; what was in it is needed no more.
                view.ledgers[name] = KnownLedger(seen.etag, None, FOREVER)
            else:
                found.append(name)
        after = page.items[-1].key if page.items and skipped < 0 else f"{keys.segments}{skipped}/~"
        view.more_after = after if page.more else None
        if not page.more and from_head:
            view.ended = still_there
        if not page.more or len(found) >= enough:
            return found


def _list_lanes(view: QueueView) -> Proto[None]:
    known: dict[str, KnownLane] = {}
    after = ""
    while True:
        page = yield from list_page(view.keys.lanes, after)
        for item in page.items:
            lane = item.key[len(view.keys.lanes) :]
            before = view.lanes.get(lane)
            known[lane] = before if before and before.etag == item.etag else KnownLane(None, None, 0)
        if not page.more:
            break
        after = page.items[-1].key
    view.lanes = known
