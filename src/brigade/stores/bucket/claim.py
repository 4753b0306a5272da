"""Claim: from the listed candidates, win ledgers and lanes, head first; among others, apart from them.

Claiming and loading are two steps, possibly in two processes: a claim returns grants, which are plain data,
and loading reads their segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from brigade.blobs import Create, Refused
from brigade.clock import FOREVER, to_ms
from brigade.errors import BrigadeError, CannotDecrypt
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
from brigade.stores.bucket.lanes import claim_head, make_grant, open_lanes
from brigade.stores.bucket.listing import list_more, refresh
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.plain import first_lease, untouched_head
from brigade.stores.bucket.pledge import NOTHING_PLEDGED, next_pledge, note_pledge
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import (
    MOST_TRIES,
    Env,
    Lost,
    Proto,
    Sleep,
    after_refusal,
    passing_over,
    side_by_side,
)
from brigade.stores.bucket.turn import WIDTH, Seats, Turn
from brigade.stores.bucket.view import KnownLedger, QueueView
from brigade.stores.bucket.wire import LEDGER, GrantRow, Ledger

__all__ = ["claim", "claim_one", "claim_places", "first_grant", "lease_one"]

SPREAD = 8
CROWD = 128
TAKEN, BEATEN = "taken", "beaten"
"""Others were faster: with the first claim of a segment that looked untouched, or with a change of its ledger."""
LOOKS = 4
TRIES = 3
"""How often one ledger is tried where a try costs little: what others left in it is at hand then."""


def claim(
    env: Env,
    view: QueueView,
    *,
    limit: int,
    owner: str,
    visibility: float,
    listing_ttl: float,
    only_derived: bool = False,
    patient: bool = False,
    seats: Seats | None = None,
) -> Proto[list[Grant]]:
    """Lease up to `limit` messages, head first. Lists again where the last listing is old or used up.

    What no key at hand opens is passed over; where there was nothing else, that is a CannotDecrypt. `only_derived`
    leaves everything alone but segments with derived names: dead letters among them. Who is `patient` comes back, and
    need not be told now of what others are likely to hold. With `seats` messages are leased to several owners, as many
    as there are seats. Where storage fails half-way, what was won until then is the answer.
    """
    won: list[Grant] = []
    seats = seats or Seats([owner], [0] * limit)
    if limit == 1 and not only_derived:
        taker = seats.owners[seats.left[0]]
        first = claim_one(env, view, owner=taker, visibility=visibility, listing_ttl=listing_ttl)
        one = yield from passing_over([], first)
        if one is not None:
            seats.taker[one[1].token] = seats.left.pop()
            return [one[1]]
    try:
        yield from _win(env, view, won, seats, limit, to_ms(visibility), listing_ttl, only_derived, patient)
    except BrigadeError:
        if not won:
            raise
    return won


def claim_one(
    env: Env, view: QueueView, *, owner: str, visibility: float, listing_ttl: float
) -> Proto[tuple[SegmentName, Grant] | None]:
    """Lease the head of the queue, where that is plain and simple. None: nothing was leased, go the general way."""
    won = yield from lease_one(env, view, owner=owner, visibility=visibility, listing_ttl=listing_ttl)
    if won is None:
        return None
    name, account = won
    return name, account if isinstance(account, Grant) else first_grant(view, name, account)


def first_grant(view: QueueView, name: SegmentName, ledger: Ledger) -> Grant:
    """The grant of a plain message's first lease."""
    (row,) = ledger.grants
    return make_grant(view, name, Won(row, [0], [1], [0], []), ledger.born)


def lease_one(
    env: Env, view: QueueView, *, owner: str, visibility: float, listing_ttl: float, pledges: bool = False
) -> Proto[tuple[SegmentName, Ledger | Grant] | None]:
    """`claim_one`, with the account that was made; or a grant, where it was not as simple as it looked.

    Where storage `pledges`, one claim out of many is made durable at once, and the others with what comes next.
    """
    now = env.now()
    if view.paused or now >= view.next_due or _old(env, view, listing_ttl):
        return None
    name = untouched_head(view, now)
    if name is None:
        return None
    row = GrantRow(1, env.ids.token(), owner, now, now + to_ms(visibility))
    ledger = first_lease(env.ids.nonce(), row)
    pledge, later = next_pledge(env, view, name, now) if pledges else NOTHING_PLEDGED
    creation = Create(view.keys.ledger(name), LEDGER.encode(ledger), pledge, later)
    answer: str | Refused | Lost = yield creation
    if isinstance(answer, Refused):
        answer = yield from after_refusal(env, creation, answer, retry_absent=False)
    if isinstance(answer, Lost):
        return (yield from _after_loss_of_one(env, view, name, answer, row))
    if pledge is not None:
        note_pledge(view)
    view.ledgers[name] = KnownLedger(answer, ledger, row.expires)
    view.crowd -= bool(view.crowd)
    return name, ledger


def _after_loss_of_one(
    env: Env, view: QueueView, name: SegmentName, lost: Lost, row: GrantRow
) -> Proto[tuple[SegmentName, Grant] | None]:
    """Where the account may still be on its way, try again under another token; otherwise others were faster."""
    if lost.current is None:
        seats, lease = Seats([row.owner], ()), row.expires - row.claimed
        answer = yield from _claim_segment(env, view, name, [0], seats, lease, tried=[row.token])
        return (name, answer[0]) if isinstance(answer, list) else None
    if (yield from after_loss(env, view, name, lost)) is None:
        view.forget(name)
    view.cursor = _spread_out(env, view, name)
    return None


def _spread_out(env: Env, view: QueueView, after: SegmentName | None) -> SegmentName | None:
    """Others were faster: where to go on, apart from them."""
    view.crowd = min(max(SPREAD, 2 * view.crowd), CROWD)
    return view.skip(after, env.ids.below(view.crowd))


def _win(
    env: Env,
    view: QueueView,
    won: list[Grant],
    seats: Seats,
    limit: int,
    lease: int,
    listing_ttl: float,
    only_derived: bool,
    patient: bool,
) -> Proto[None]:
    """Add to what was won until all seats are taken, or there is nothing more at hand."""
    looks, refused = 0, list[CannotDecrypt]()
    if _old(env, view, listing_ttl) or env.now() >= view.next_due:
        yield from _look(env, view, limit)
        looks = 1
    while not view.paused:
        lanes = (yield from open_lanes(env, view)) if view.lanes and not only_derived else []
        turn = Turn(env, view, lanes, limit=limit, only_derived=only_derived, patient=patient)
        relist = view.patience > 0 and looks < LOOKS
        beaten = yield from _walk(env, view, turn, seats, lease, won, refused, listing_ttl=listing_ttl, relist=relist)
        if view.unmoved:
            yield from complete_moves(env, view)
        if beaten and looks < LOOKS:
            yield from _look(env, view, limit)
            looks += 1
        elif won:
            env.unreadable += refused
            return
        elif view.more_after is not None:
            yield from list_more(env, view)
        elif not looks:
            yield from _look(env, view, limit)
            looks = 1
        elif refused:
            raise refused[0]
        else:
            return


def _look(env: Env, view: QueueView, limit: int) -> Proto[None]:
    yield from refresh(env, view)
    view.cursor = view.start(env.ids, env.now(), limit) if env.ids.below(SPREAD) else None


def _old(env: Env, view: QueueView, listing_ttl: float) -> bool:
    return view.listed_at is None or env.clock.monotonic() - view.listed_at > listing_ttl


def _walk(
    env: Env,
    view: QueueView,
    turn: Turn,
    seats: Seats,
    lease: int,
    won: list[Grant],
    refused: list[CannotDecrypt],
    *,
    listing_ttl: float,
    relist: bool,
) -> Proto[bool]:
    """Try candidates from the head, several at once; among others start further on, so that claimers do not collide.

    Adds to what was won, and returns whether others were faster and the listing is to be made anew: because it is old,
    or, with `relist`, because it shows what others have taken since. That costs no more than to lose once more.
    """
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
                    else _claim_segment(env, view, what, part, seats, lease, tries=1 if view.patience else TRIES),
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
        if TAKEN in answers or BEATEN in answers:
            turn.beaten = True
            turn.after = view.cursor = _spread_out(env, view, turn.after)
            if (TAKEN in answers and relist) or (not won and _old(env, view, listing_ttl)):
                return True
        elif won and view.crowd:
            view.crowd -= 1
    return False


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
    tried: Sequence[str] = (),
) -> Proto[list[Grant] | str | None]:
    """Win messages of one segment: grants, None where it has none to give, or how others were faster.

    A first account that is not there after a doubtful write may still be on its way. It is tried again under
    another token, so that nobody ever holds the token of an account that arrives when the segment is over. `tried`
    are tokens of such tries.
    """
    secrets, rules = [*tried, env.ids.token()], view.rules(name)
    account: Account | None = None
    lost: str | None = None
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
            return lost
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
        lost = TAKEN if account is None else BEATEN
        account = yield from after_loss(env, view, name, answer)
        if account is None:
            view.forget(name)
            return None
        mine = _mine(Book(account.ledger), [seats.takers(secret, part) for secret in secrets], rules)
        if mine:
            return [make_grant(view, name, one, account.ledger.born) for one in mine]
    return lost


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
            members = book.held_by(token)
            if members:
                row = book.grants[book.leases[members[0]]]
                limits = [book.max_attempts(place, rules) for place in members]
                won.append(Won(row, members, [book.attempts[place] for place in members], limits, []))
        if won:
            return won
    return []
