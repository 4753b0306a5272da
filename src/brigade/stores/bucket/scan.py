"""Looking through a whole queue in pieces, by columns: what Spark reads. No lease is taken, nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from brigade.errors import ConfigError, CorruptObject
from brigade.stores import Block, Column, Joined, Same, ScannedTable, sizes_of
from brigade.stores.bucket.accounts import open_account, read_contents, read_lane, read_segment
from brigade.stores.bucket.book import LEASED, PURGED, Book, state_of
from brigade.stores.bucket.history import Record, read_opened
from brigade.stores.bucket.keys import HistoryName, SegmentName
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import Env, Proto, list_all, read, side_by_side
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import PARKED, PLAIN_SEGMENT, VOID_SIZE, Entry, Packed

__all__ = ["pieces", "steps"]

T = TypeVar("T")
TOGETHER = 8
"""So many objects are read at a time: memory holds no more."""

WORTH = 128
"""So many objects are worth a task of their own."""


class Piece(msgspec.Struct, array_like=True):
    """Part of a table: segments, or lanes, or other objects."""

    segments: list[str] = []
    lanes: list[str] = []
    keys: list[str] = []


_piece = msgspec.msgpack.Decoder(Piece)
_COLUMNS = [field for field in Record.__struct_fields__ if field not in ("queue", "sealed", "lane", "absent")]


def pieces(view: QueueView, table: ScannedTable, most: int, since: int) -> Proto[list[bytes]]:
    """What there is to read, in about `most` shares, or as many as are worth a task each."""
    keys = view.keys
    if table == "history":
        items = yield from list_all(keys.history, keys.history_after(since) if since else "")
        named = [name for item in items if (name := HistoryName.parse(item.key)) is not None]
        weights = [name.succeeded + name.failed + name.dead for name in named]
        return _packed([Piece(keys=[name.key for name in part]) for part in _shares(named, weights, most)])
    if table == "failed":
        items = yield from list_all(keys.failed)
        parts = _shares([item.key for item in items], [item.size for item in items], most)
        return _packed([Piece(keys=part) for part in parts])
    items = yield from list_all(keys.segments)
    names = [name for item in items if item.size > VOID_SIZE and (name := keys.parse(item.key)) is not None]
    if table == "leases":
        used = {item.key for item in (yield from list_all(keys.ledgers))}
        names = [name for name in names if keys.ledger(name) in used]
    made = [Piece([str(name) for name in part]) for part in _shares(names, [name.size for name in names], most)]
    lanes = [item.key[len(keys.lanes) :] for item in (yield from list_all(keys.lanes))]
    made += [Piece(lanes=part) for part in _shares(lanes, [1] * len(lanes), most)]
    return _packed(made)


def _packed(made: Sequence[Piece]) -> list[bytes]:
    return [msgspec.msgpack.encode(piece) for piece in made]


def _shares(items: Sequence[T], weights: Sequence[int], most: int) -> list[list[T]]:
    """The items in order, cut into at most `most` runs of similar weight."""
    share = sum(weights) / (most or -(-len(items) // WORTH) or 1)
    runs: list[list[T]] = []
    weight = 0.0
    for item, added in zip(items, weights, strict=True):
        if not runs or weight >= share * len(runs):
            runs.append([])
        runs[-1].append(item)
        weight += added
    return runs


def steps(env: Env, view: QueueView, table: ScannedTable, piece: bytes) -> Iterator[Proto[list[Block]]]:
    """What has to be run to read a piece, a few objects at a time."""
    part = _read_piece(view, table, piece)
    leases = table == "leases"
    for lane in part.lanes:
        yield _scan_lane(env, view, lane, leases)
    for start in range(0, len(part.segments), TOGETHER):
        yield _together([_scan_segment(env, view, one, leases) for one in part.segments[start : start + TOGETHER]])
    for start in range(0, len(part.keys), TOGETHER):
        scan = _scan_history if table == "history" else _scan_parked
        yield _together([scan(env, key) for key in part.keys[start : start + TOGETHER]])


def _read_piece(view: QueueView, table: ScannedTable, piece: bytes) -> Piece:
    """A piece that leads nowhere but into this queue's table: it may have come a long way."""
    try:
        part = _piece.decode(piece)
    except msgspec.DecodeError:
        raise ConfigError("the piece is not one; scan the pieces that were given for this queue") from None
    keys = view.keys
    inside = keys.has_history if table == "history" else keys.has_parked
    if not all(map(inside, part.keys)) or not all(map(keys.has_lane, part.lanes)):
        raise ConfigError(
            f"the piece is not of {table} of queue {keys.queue!r}; scan the pieces that were given for it"
        )
    return part


def _together(parts: Sequence[Proto[Block | None]]) -> Proto[list[Block]]:
    blocks = yield from side_by_side(parts)
    return [block for block in blocks if block is not None]


def _scan_segment(env: Env, view: QueueView, segment: str, leases: bool) -> Proto[Block | None]:
    name = SegmentName.parse(segment)
    if name is None:
        return None
    account = yield from open_account(env, view, name, cached=False)
    found = yield from read_contents(env, view, name, PLAIN_SEGMENT)
    if found is None:
        return None
    if found.packed is not None and account is None:
        return _packed_block(view, name, found.packed)
    entries = found.entries if found.packed is None else found.packed.entries()
    book = Book(account.ledger) if account else None
    if book is None and name.special:
        book = Book.fresh(name.size, specs_of(entries))
    return _block(view, name, entries, book, leases)


def _scan_lane(env: Env, view: QueueView, lane: str, leases: bool) -> Proto[list[Block]]:
    found = yield from read_lane(env, view, lane)
    blocks: list[Block] = []
    for entry in found[0].entries if found else ():
        name = SegmentName.parse(entry.segment)
        if name is None or (leases and entry.ledger is None):
            continue
        entries = yield from read_segment(env, view, name)
        if entries is not None:
            book = Book(entry.ledger) if entry.ledger else Book.fresh(name.size, entry.specs)
            block = _block(view, name, entries, book, leases)
            blocks += [block] if block is not None else []
    return blocks


def _block(
    view: QueueView, name: SegmentName, entries: Sequence[Entry | None], book: Book | None, leases: bool
) -> Block | None:
    rules, text = view.rules(name), str(name)
    whole = [entry for entry in entries if entry is not None]
    if book is None and len(whole) == len(entries):
        account: Mapping[str, Column] = _untouched(view, name)
        return Block(len(whole), _columns(lambda: [f"{text}-{place}" for place in range(len(whole))], whole, account))
    book = book or Book.fresh(name.size, specs_of(entries))
    states = book.states
    places = [place for place, entry in enumerate(entries) if entry is not None and states[place] != PURGED]
    if leases:
        places = [place for place in places if states[place] == LEASED]
    if not places:
        return None
    whole = [entry for place in places if (entry := entries[place]) is not None]
    rows = [book.grants[book.leases[place]] if states[place] == LEASED else None for place in places]
    reasons = [book.reasons.get(place, (None, None)) for place in places]
    account = {
        "state": [state_of(states[place]).value for place in places],
        "attempts": [book.attempts[place] for place in places],
        "max_attempts": [book.max_attempts(place, rules) for place in places],
        "due_at": [max(book.due_at(place), entry.enqueued) for place, entry in zip(places, whole, strict=True)],
        "owner": [row.owner if row else None for row in rows],
        "claimed_at": [row.claimed if row else None for row in rows],
        "lease_expires_at": [row.expires if row else None for row in rows],
        "lease_version": [row.version if row else 0 for row in rows],
        "error": [error or reason for reason, error in reasons],
    }
    return Block(len(whole), _columns(lambda: [f"{text}-{place}" for place in places], whole, account))


def _packed_block(view: QueueView, name: SegmentName, packed: Packed) -> Block:
    """Messages of which nobody has claimed one yet, as they lie there."""
    sizes, text = packed.sizes, str(name)
    count = len(sizes) // 4

    def refs() -> list[str]:
        return [f"{text}-{place}" for place in range(count)]

    made: Any = _Columns(
        {
            **_untouched(view, name),
            "payload": Joined(packed.payloads, sizes),
            "priority": Same(packed.priority),
            "content_type": Same(packed.content_type),
            **{column: Same(packed.enqueued) for column in ("enqueued_at", "due_at")},
            **{column: Same(None) for column in ("group", "attributes", "failure")},
        },
        {
            "ref": refs,
            "id": lambda: made["ref"],
            "correlation_id": lambda: made["ref"],
            "size": lambda: list(sizes_of(sizes)),
        },
    )
    return Block(count, made)


def _untouched(view: QueueView, name: SegmentName) -> dict[str, Column]:
    """How messages stand that nobody has claimed yet."""
    return {
        "state": Same("ready"),
        "attempts": Same(0),
        "max_attempts": Same(view.rules(name).max_attempts),
        **{column: Same(None) for column in ("owner", "claimed_at", "lease_expires_at", "error")},
        "lease_version": Same(0),
    }


class _Columns(Mapping[str, Column]):
    """Columns that are made when they are asked for: whoever reads payloads needs nothing else."""

    def __init__(self, ready: Mapping[str, Column], later: Mapping[str, Callable[[], list[Any]]]) -> None:
        self._made = dict(ready)
        self._later = later

    def __getitem__(self, name: str) -> Column:
        if name not in self._made:
            self._made[name] = self._later[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._made or name in self._later

    def __iter__(self) -> Iterator[str]:
        return iter({**self._made, **self._later})

    def __len__(self) -> int:
        return len({**self._made, **self._later})


def _columns(refs: Callable[[], list[str]], entries: Sequence[Entry], account: Mapping[str, Column]) -> _Columns:
    """What was enqueued, and what has become of it. Columns that are alike are one list, which is converted once."""

    def ids() -> list[str]:
        own = any(entry.own_id for entry in entries)
        return [entry.own_id or ref for entry, ref in zip(entries, made["ref"], strict=True)] if own else made["ref"]

    def correlations() -> list[str]:
        named = any(entry.correlation for entry in entries)
        return [one.correlation or id for one, id in zip(entries, made["id"], strict=True)] if named else made["id"]

    made: Any = _Columns(
        account,
        {
            "ref": refs,
            "id": ids,
            "priority": lambda: [entry.priority for entry in entries],
            "enqueued_at": lambda: [entry.enqueued for entry in entries],
            "correlation_id": correlations,
            "group": lambda: [entry.group for entry in entries],
            "content_type": lambda: [entry.content_type for entry in entries],
            "size": lambda: [entry.size for entry in entries],
            "payload": lambda: [entry.payload for entry in entries],
            "attributes": lambda: [entry.attributes for entry in entries],
            "failure": lambda: [entry.failure for entry in entries],
            "due_at": lambda: [entry.due or entry.enqueued for entry in entries],
        },
    )
    return made


def _scan_parked(env: Env, key: str) -> Proto[Block | None]:
    try:
        found = yield from read(env, PARKED, key)
    except CorruptObject:
        return None
    entries = [entry for entry in found[0].entries if entry is not None and entry.failure is not None] if found else []
    if not entries:
        return None
    ids = [entry.failure.id for entry in entries if entry.failure is not None]
    return Block(len(entries), _columns(lambda: ids, entries, {"id": ids}))


def _scan_history(env: Env, key: str) -> Proto[Block | None]:
    records = yield from read_opened(env, key)
    if not records:
        return None
    name = HistoryName.parse(key)
    columns: dict[str, Column] = {field: [getattr(record, field) for record in records] for field in _COLUMNS}
    results = [bytes(record.result) for record in records]
    columns["result"] = [None if result == b"null" else result.decode() for result in results]
    columns["written_at"] = Same(name.at if name else 0)
    columns["file"] = Same(key)
    return Block(len(records), columns)
