"""Claim: list the candidates, win ledgers and lanes, then load what was won.

Claiming and loading are two steps, possibly in two processes: a claim returns grants, which are plain data,
and loading reads their segments. A message is delivered only from a segment that was read after its ledger
was won; where the segment is gone, the ledger is an orphan and is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

from brigade.blobs import Item
from brigade.clock import FOREVER, to_ms
from brigade.errors import CannotDecrypt, QueueNotFound
from brigade.ids import digest
from brigade.model import Grant
from brigade.stores.bucket.accounts import (
    Account,
    after_loss,
    commit,
    create_account,
    note_failures,
    open_account,
    read_segment,
)
from brigade.stores.bucket.book import Book, Rules, Won
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.lanes import Urgency, claim_head, drop_orphan, make_grant, open_lanes
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import MOST_TRIES, Env, Proto, Sleep, list_page, passing_over, side_by_side
from brigade.stores.bucket.view import KnownLane, KnownLedger, QueueView
from brigade.stores.bucket.wire import Entry

__all__ = ["Loaded", "Seats", "claim", "claim_places", "load", "refresh"]

WIDTH = 16
SPREAD = 8
CROWD = 128
LOOKS = 4
TRIES = 3
LAST = (10, FOREVER)
ENOUGH = 1000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A grant with the messages it leases."""

    grant: Grant
    name: SegmentName
    entries: list[Entry]


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


def claim(
    env: Env,
    view: QueueView,
    *,
    limit: int,
    owner: str,
    visibility: float,
    listing_ttl: float,
    only_derived: bool = False,
    seats: Seats | None = None,
) -> Proto[list[Grant]]:
    """Lease up to `limit` messages, head first. Lists again where the last listing is old or used up.

    What no key at hand opens is passed over; where there was nothing else, that is a CannotDecrypt. `only_derived`
    leaves everything alone but segments with derived names: dead letters among them. With `seats` messages are leased
    to several owners, as many as there are seats.
    """
    seats = seats or Seats([owner], [0] * limit)
    looks, refused = 0, list[CannotDecrypt]()
    if _old(env, view, listing_ttl) or env.now() >= view.next_due:
        yield from refresh(env, view)
        looks = 1
    while True:
        if view.paused:
            return []
        won, beaten = yield from _walk(env, view, seats, visibility, listing_ttl, only_derived, refused)
        if view.unmoved:
            yield from complete_moves(env, view)
        if won:
            env.unreadable += refused
            return won
        if beaten and looks < LOOKS:
            yield from refresh(env, view)
            looks += 1
        elif view.more_after is not None:
            yield from _list_more(env, view)
        elif not looks:
            yield from refresh(env, view)
            looks = 1
        elif refused:
            raise refused[0]
        else:
            return []


def _old(env: Env, view: QueueView, listing_ttl: float) -> bool:
    return view.listed_at is None or env.clock.monotonic() - view.listed_at > listing_ttl


def refresh(env: Env, view: QueueView) -> Proto[None]:
    """List the candidates anew, from the head, with what is known of their ledgers."""
    view.paused, view.next_due, view.more_after = False, FOREVER, ""
    view.ledgers_before, view.ledgers, view.candidates = {**view.ledgers_before, **view.ledgers}, {}, []
    yield from _list_more(env, view)
    if view.has_lanes:
        yield from _list_lanes(view)
    view.prune_entries()
    view.cursor = view.start(env.ids) if env.ids.below(SPREAD) else None
    view.listed_at = env.clock.monotonic()


def _list_more(env: Env, view: QueueView) -> Proto[None]:
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
                other = KnownLedger(None, None, item.modified + patience)
                view.ledgers[name] = seen if seen and seen.etag == item.etag else other
    view.candidates = sorted({*view.candidates, *found})
    if view.more_after is None:
        view.ledgers_before = {}


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
                # It may be listed for an hour yet; what was in it is needed no more.
                view.ledgers[name] = KnownLedger(seen.etag, None, FOREVER)
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
    env: Env,
    view: QueueView,
    seats: Seats,
    visibility: float,
    listing_ttl: float,
    only_derived: bool,
    refused: list[CannotDecrypt],
) -> Proto[tuple[list[Grant], bool]]:
    """Try candidates from the head, several at once; among others start further on, so that claimers do not collide.

    Returns what was won, and whether others were faster and the listing has become old meanwhile.
    """
    won: list[Grant] = []
    lease = to_ms(visibility)
    lanes = (yield from open_lanes(env, view)) if view.lanes and not only_derived else []
    turn = _Turn(env, view, only_derived, lanes)
    while seats.left:
        batch = turn.next_batch(len(seats.left), env.now())
        if not batch and not won and turn.again():
            continue
        if not batch:
            break
        parts = seats.parts([share for _, share in batch])
        answers = yield from side_by_side(
            [
                passing_over(
                    refused,
                    _claim_lane(env, view, what, part[0], seats, lease)
                    if isinstance(what, str)
                    else _claim_segment(env, view, what, part, seats, lease),
                )
                for (what, _), part in zip(batch, parts, strict=True)
            ],
            WIDTH,
        )
        filled = [answer if isinstance(answer, list) else [] for answer in answers]
        seats.left[:0] = [
            seat for part, grants in zip(parts, filled, strict=True) for seat in part[sum(map(len, grants)) :]
        ]
        won += [grant for grants in filled for grant in grants]
        for what, _ in batch:
            known = None if isinstance(what, str) else view.ledgers.get(what)
            if what in view.ended or (known is not None and known.next_at == FOREVER):
                view.drop_candidate(cast(SegmentName, what))
        if "conflict" in answers:
            turn.beaten = True
            view.crowd = min(max(SPREAD, 2 * view.crowd), CROWD)
            turn.after = view.cursor = view.skip(turn.after, env.ids.below(view.crowd))
            if not won and _old(env, view, listing_ttl):
                return won, True
        elif won and view.crowd:
            view.crowd -= 1
    return won, False


class _Turn:
    """Where a claim has got to: segments and lanes, taken together in the order of their urgency."""

    def __init__(self, env: Env, view: QueueView, only_derived: bool, lanes: list[tuple[Urgency, str]]) -> None:
        self._env = env
        self._view = view
        self._only_derived = only_derived
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
        self.after = None if self._in_order else self._view.start(self._env.ids)
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
                self._held_back = self._held_back or known.busy
                if not (known.busy and self._impatient):
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


def claim_places(
    env: Env, view: QueueView, chosen: Mapping[SegmentName, Sequence[int]], owner: str, visibility: float
) -> Proto[list[Grant]]:
    """Lease these very messages, due or not; what is leased by others, has ended or lies in a lane is left out."""
    lease, seats = to_ms(visibility), Seats([owner], ())
    answers = yield from side_by_side(
        [
            _claim_segment(env, view, name, [0] * len(set(places)), seats, lease, only=sorted(set(places)), tries=TRIES)
            for name, places in chosen.items()
            if not name.lane and name not in view.ended
        ],
        WIDTH,
    )
    return [grant for answer in answers if isinstance(answer, list) for grant in answer]


def _claim_lane(
    env: Env, view: QueueView, lane: str, seat: int, seats: Seats, lease: int
) -> Proto[list[Grant] | str | None]:
    grant = yield from claim_head(env, view, lane, seats.owners[seat], lease)
    if grant is None:
        return None
    seats.taker[grant.token] = seat
    return [grant]


def _claim_segment(
    env: Env,
    view: QueueView,
    name: SegmentName,
    part: Sequence[int],
    seats: Seats,
    lease: int,
    *,
    only: Sequence[int] | None = None,
    tries: int = 1,
) -> Proto[list[Grant] | str | None]:
    """Win messages of one segment: grants, None where it has none to give, or "conflict" where others were faster.

    A first account that is not there after a doubtful write may still be on its way. It is tried again under
    another token, so that nobody ever holds the token of an account that arrives when the segment is over.
    """
    secrets, rules = [env.ids.token()], view.rules(name)
    account: Account | None = None
    lost = False
    if name in view.ledgers:
        account = yield from open_account(env, view, name)
        if account is None:
            view.forget(name)
            return None
    while tries:
        tries -= 1
        book = Book(account.ledger) if account else (yield from _fresh_book(env, view, name))
        if book is None:
            return None
        now = env.now()
        takers = seats.takers(secrets[-1], part)
        won: Won | None = None
        if not book.final:
            token, owner = takers[0]
            won = book.claim(
                limit=len(part),
                now=now,
                expires=now + lease,
                token=token,
                owner=owner,
                rules=rules,
                only=only,
                early=only is not None,
            )
        if not book.changed:
            next_at = FOREVER if book.final else max(book.next_change(now, rules), now + 1)
            if account is not None:
                view.ledgers[name] = KnownLedger(account.etag, account.ledger, next_at)
            return "conflict" if lost else None
        several = [] if won is None else book.share(won, takers)
        book.finalize()
        if account is None:
            answer = yield from create_account(env, view, name, book, retry_absent=False)
        else:
            answer = yield from commit(env, view, account, book)
        if isinstance(answer, Account):
            note_failures(view, name, book)
            return [make_grant(view, name, one, answer.ledger.born) for one in several] or None
        if account is None and answer.current is None and len(secrets) < MOST_TRIES:
            yield Sleep(env.ids.uniform(0, min(0.02 * 2 ** len(secrets), 5)))
            secrets.append(env.ids.token())
            tries += 1
            continue
        lost = True
        account = yield from after_loss(env, view, name, answer)
        if account is None:
            view.forget(name)
            return None
        mine = _mine(Book(account.ledger), [seats.takers(secret, part) for secret in secrets], rules)
        if mine:
            return [make_grant(view, name, one, account.ledger.born) for one in mine]
    return "conflict"


def _fresh_book(env: Env, view: QueueView, name: SegmentName) -> Proto[Book | None]:
    """The account of a segment that nobody has claimed from; a special one is read first."""
    if not name.special:
        return Book.fresh(name.size)
    entries = yield from read_segment(env, view, name)
    return None if entries is None else Book.fresh(name.size, specs_of(entries))


def _mine(book: Book, tries: Sequence[Sequence[tuple[str, str]]], rules: Rules) -> list[Won]:
    """The grants that a doubtful write of ours did make."""
    for takers in tries:
        won: list[Won] = []
        for token in dict.fromkeys(token for token, _ in takers):
            members = [place for place in range(len(book.states)) if book.holds(place, token)]
            if members:
                row = book.grants[book.leases[members[0]]]
                limits = [book.max_attempts(place, rules) for place in members]
                won.append(Won(row, members, [book.attempts[place] for place in members], limits, []))
        if won:
            return won
    return []


def load(env: Env, view: QueueView, grants: Sequence[Grant]) -> Proto[list[Loaded]]:
    """Read the segments of won grants. What is gone is left out, and its orphaned ledger deleted.

    A segment that was read before under the same account is still there, because that account was won just now; so
    of several grants in one segment the first one reads it.
    """
    first = {grant.segment: place for place, grant in reversed(list(enumerate(grants)))}
    places = sorted(first.values())
    places += [place for place in range(len(grants)) if first[grants[place].segment] != place]
    found: dict[int, Loaded | None] = {}
    for some in (places[: len(first)], places[len(first) :]):
        loaded = yield from side_by_side([_load_one(env, view, grants[place]) for place in some], WIDTH)
        found.update(zip(some, loaded, strict=True))
    return [item for place in range(len(grants)) if (item := found[place]) is not None]


def _load_one(env: Env, view: QueueView, grant: Grant) -> Proto[Loaded | None]:
    name = SegmentName.parse(grant.segment)
    if name is None:
        raise QueueNotFound(f"grant names segment {grant.segment!r}, which is not one; was it made by this version?")
    known = view.entries.get(name)
    if known is not None and known.account == grant.account != "":
        entries = known.entries
    else:
        entries = yield from read_segment(env, view, name)
        if entries is None:
            yield from drop_orphan(env, view, name)
            return None
        view.keep_entries(name, grant.account, entries)
    return Loaded(grant, name, [entry for place in grant.members if (entry := entries[place]) is not None])
