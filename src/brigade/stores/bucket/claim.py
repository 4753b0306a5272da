"""Claim: list the candidates, win ledgers and lanes, then load what was won.

Claiming and loading are two steps, possibly in two processes: a claim returns grants, which are plain data,
and loading reads their segments. A message is delivered only from a segment that was read after its ledger
was won; where the segment is gone, the ledger is an orphan and is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brigade.blobs import Create, Item, Swap
from brigade.clock import FOREVER, to_ms
from brigade.errors import QueueNotFound
from brigade.model import Grant
from brigade.stores.bucket.accounts import note_failures, read_ledger, read_segment, remember
from brigade.stores.bucket.book import Book, Won
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.lanes import claim_lanes, drop_orphan
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import Env, Lost, Proto, list_page, reread, side_by_side, write
from brigade.stores.bucket.view import KnownLane, KnownLedger, QueueView
from brigade.stores.bucket.wire import LEDGER, Entry, Ledger, Spec

__all__ = ["Loaded", "claim", "load", "refresh"]

WIDTH = 16
SPREAD = 8
ENOUGH = 1000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A grant with the messages it leases."""

    grant: Grant
    name: SegmentName
    entries: list[Entry]


def claim(
    env: Env,
    view: QueueView,
    *,
    limit: int,
    owner: str,
    visibility: float,
    listing_ttl: float,
    only_derived: bool = False,
) -> Proto[list[Grant]]:
    """Lease up to `limit` messages, head first. Lists again where the last listing is old or used up.

    `only_derived` leaves everything alone but segments with derived names: dead letters among them.
    """
    fresh = False
    old = view.listed_at is None or env.clock.monotonic() - view.listed_at > listing_ttl
    if old or env.now() >= view.next_due:
        yield from refresh(env, view)
        fresh = True
    while True:
        if view.paused:
            return []
        won = yield from _walk(env, view, limit, owner, visibility, only_derived)
        if view.unmoved:
            yield from complete_moves(env, view)
        if won:
            return won
        if view.more_after is not None:
            yield from _list_more(env, view)
        elif not fresh:
            yield from refresh(env, view)
            fresh = True
        else:
            return []


def refresh(env: Env, view: QueueView) -> Proto[None]:
    """List the candidates anew, from the head, with what is known of their ledgers."""
    view.paused, view.next_due, view.more_after = False, FOREVER, ""
    before, view.candidates = view.ledgers, []
    view.ledgers = {}
    yield from _list_more(env, view, before)
    if view.has_lanes:
        yield from _list_lanes(view)
    view.entries = {name: entries for name, entries in view.entries.items() if name in view.ledgers or name.lane}
    view.listed_at = env.clock.monotonic()


def _list_more(env: Env, view: QueueView, before: Mapping[SegmentName, KnownLedger] | None = None) -> Proto[None]:
    """Go on with the listing until there are enough candidates that may have something to give."""
    known = before if before is not None else view.ledgers
    found = yield from _list_candidates(env, view, known)
    if found:
        items = yield from _list_ledgers(view, found[0], found[-1])
        for name in found:
            item = items.get(name)
            if item is not None:
                seen = known.get(name)
                view.ledgers[name] = seen if seen and seen.etag == item.etag else KnownLedger(None, None, 0)
    view.candidates = sorted({*view.candidates, *found})


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
    while True:
        page = yield from list_page(keys.segments, after)
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
                view.ledgers[name] = seen
            else:
                found.append(name)
        after = page.items[-1].key if page.items and skipped < 0 else f"{keys.segments}{skipped}/~"
        view.more_after = after if page.more else None
        if not page.more and from_head:
            view.ended = still_there
        if not page.more or len(found) >= ENOUGH:
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


def _walk(
    env: Env, view: QueueView, limit: int, owner: str, visibility: float, only_derived: bool
) -> Proto[list[Grant]]:
    """Try candidates from the head, several at once; after a conflict spread out, so that claimers don't collide."""
    won: list[Grant] = []
    lease = to_ms(visibility)
    if view.lanes and not only_derived:
        won += yield from claim_lanes(env, view, limit=limit, owner=owner, lease=lease)
    total, after = sum(map(len, won)), None
    while total < limit:
        batch, after = _next_batch(view, after, limit - total, env.now(), only_derived)
        if not batch:
            break
        answers = yield from side_by_side(
            [_claim_segment(env, view, name, share, owner, lease) for name, share in batch], WIDTH
        )
        won += [answer for answer in answers if isinstance(answer, Grant)]
        total = sum(map(len, won))
        for name, _ in batch:
            known = view.ledgers.get(name)
            if name in view.ended or (known is not None and known.next_at == FOREVER):
                view.drop_candidate(name)
        if "conflict" in answers:
            after = view.skip(after, env.ids.below(SPREAD))
    return won


def _next_batch(
    view: QueueView, after: SegmentName | None, wanted: int, now: int, only_derived: bool
) -> tuple[list[tuple[SegmentName, int]], SegmentName | None]:
    """The next few segments worth trying, each with its share of what is wanted, and the last one looked at."""
    batch: list[tuple[SegmentName, int]] = []
    for name in view.after(after):
        if wanted <= 0 or len(batch) == WIDTH:
            break
        after = name
        known = view.ledgers.get(name)
        if (known is not None and known.next_at > now) or (only_derived and not name.derived):
            continue
        share = min(wanted, name.size)
        wanted -= share
        batch.append((name, share))
    return batch, after


def _claim_segment(
    env: Env, view: QueueView, name: SegmentName, limit: int, owner: str, lease: int
) -> Proto[Grant | str | None]:
    """Win messages of one segment: a grant, None where it has none to give, or "conflict" where others were faster."""
    key = view.keys.ledger(name)
    rules = view.rules(name)
    token = env.ids.token()
    known = view.ledgers.get(name)
    current: tuple[Ledger, str] | None = None
    if known is not None:
        current = (
            (known.ledger, known.etag) if known.ledger and known.etag else (yield from read_ledger(env, view, name))
        )
        if current is None:
            view.forget(name)
            return None
    conflicts = 0
    while True:
        if current is None:
            specs: list[Spec] | None = None
            if name.special:
                found = yield from read_segment(env, view, name)
                if found is None:
                    return None
                specs = specs_of(found)
            book = Book.fresh(name.size, specs)
        else:
            book = Book(current[0])
        if current is not None and any(row.token == token for row in book.grants):
            won = _mine(book, token, view, name)
        else:
            now = env.now()
            won = (
                None
                if book.final
                else book.claim(limit=limit, now=now, expires=now + lease, token=token, owner=owner, rules=rules)
            )
            if not book.changed:
                view.ledgers[name] = KnownLedger(
                    current[1] if current else None,
                    current[0] if current else None,
                    FOREVER if book.final else max(book.next_change(now, rules), now + 1),
                )
                return None
            book.finalize()
            ledger = book.close(env.ids.nonce())
            op = Create(key, LEDGER.encode(ledger)) if current is None else Swap(key, LEDGER.encode(ledger), current[1])
            answer = yield from write(env, op)
            if isinstance(answer, Lost):
                conflicts += 1
                current = yield from reread(env, LEDGER, key, answer.current)
                if current is None:
                    view.forget(name)
                    return "conflict"
                remember(env, view, name, *current)
                if conflicts > 1 and not answer.in_doubt:
                    return "conflict"
                continue
            remember(env, view, name, ledger, answer, ours=True)
            note_failures(view, name, book)
        if won is None:
            return None
        return Grant(
            view.keys.queue,
            str(name),
            token,
            won.row.version,
            owner,
            won.row.expires,
            tuple(won.members),
            tuple(won.attempts),
            tuple(won.max_attempts),
            tuple(won.recovered),
            won.row.claimed,
        )


def _mine(book: Book, token: str, view: QueueView, name: SegmentName) -> Won | None:
    """The grant that a doubtful write of ours did make."""
    members = [place for place in range(len(book.states)) if book.holds(place, token)]
    if not members:
        return None
    row = book.grants[book.leases[members[0]]]
    limits = [book.max_attempts(place, view.rules(name)) for place in members]
    return Won(row, members, [book.attempts[place] for place in members], limits, [])


def load(env: Env, view: QueueView, grants: Sequence[Grant]) -> Proto[list[Loaded]]:
    """Read the segments of won grants. What is gone is left out, and its orphaned ledger deleted."""
    loaded = yield from side_by_side([_load_one(env, view, grant) for grant in grants], WIDTH)
    return [item for item in loaded if item is not None]


def _load_one(env: Env, view: QueueView, grant: Grant) -> Proto[Loaded | None]:
    name = SegmentName.parse(grant.segment)
    if name is None:
        raise QueueNotFound(f"grant names segment {grant.segment!r}, which is not one; was it made by this version?")
    entries = yield from read_segment(env, view, name)
    if entries is None:
        yield from drop_orphan(env, view, name)
        return None
    view.entries[name] = entries
    return Loaded(grant, name, [entry for place in grant.members if (entry := entries[place]) is not None])
