"""History as operators read it: what ended lately, and how many ended how on which day."""

from __future__ import annotations

from collections.abc import Sequence

from brigade.stores.bucket.history import Record, read_opened
from brigade.stores.bucket.keys import HistoryName
from brigade.stores.bucket.steps import Env, Proto, list_all, list_page, side_by_side
from brigade.stores.bucket.view import QueueView
from brigade.survey import Attempt, Day, Ended, Tail

__all__ = ["attempts_of", "outcomes", "tail"]

MOST_FILES = 64
"""Files that one look reads at the most."""


def attempts_of(record: Record) -> list[Attempt]:
    return [
        Attempt(one.version, one.owner, one.claimed_at, one.ended_at, one.how, one.error) for one in record.attempts
    ]


def _ended(record: Record) -> Ended:
    return Ended(
        record.id,
        record.ref,
        record.outcome,
        record.enqueued_at,
        record.due_at,
        record.finished_at,
        attempts_of(record),
        record.error or record.reason,
    )


def tail(env: Env, view: QueueView, after: str | None, *, since_ms: int, limit: int) -> Proto[Tail]:
    """What ended after a file's name, oldest first. Files are read whole: the answer may be longer than `limit`."""
    start = after or view.keys.history_after(since_ms)
    ended: list[Ended] = []
    page = yield from list_page(view.keys.history, start, MOST_FILES)
    for item in page.items:
        if HistoryName.parse(item.key) is not None:
            ended += map(_ended, (yield from read_opened(env, item.key)))
        start = item.key
        if len(ended) >= limit:
            break
    return Tail(ended, start)


def outcomes(env: Env, view: QueueView, days: Sequence[str], sample: int) -> Proto[list[Day]]:
    """Counts from the names of files; only the newest files of each day are read."""
    return (yield from side_by_side([_day(env, view, day, sample) for day in days], 4))


def _day(env: Env, view: QueueView, day: str, sample: int) -> Proto[Day]:
    items = yield from list_all(f"{view.keys.history}date={day}/")
    names = [name for item in items if (name := HistoryName.parse(item.key)) is not None]
    chosen: list[str] = []
    expected = 0
    for name in reversed(names[-MOST_FILES:]):
        if expected >= sample:
            break
        chosen.append(name.key)
        expected += name.succeeded + name.failed + name.dead
    read = yield from side_by_side([read_opened(env, key) for key in chosen])
    ended = {record.ref: _ended(record) for records in read for record in records}
    return Day(
        day,
        sum(name.succeeded for name in names),
        sum(name.failed for name in names),
        sum(name.dead for name in names),
        list(ended.values())[:sample],
    )
