"""History: the durable record of finished messages, as gzipped JSON lines that any tool can read.

It is written before a segment is deleted and may be written twice by two finishers, so readers keep one
record for each id. File names carry the counts, so that statistics need no reads.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from brigade.blobs import Create
from brigade.crypto.places import place_of
from brigade.errors import CannotDecrypt, ConfigError, CorruptObject
from brigade.stores.bucket.book import DEAD, FAILED, LEASED, PURGED, SUCCEEDED, from_runs
from brigade.stores.bucket.keys import HistoryName, QueueKeys, SegmentName, corrupt_key
from brigade.stores.bucket.past import log_of
from brigade.stores.bucket.steps import Env, Lost, Proto, get, list_page, write
from brigade.stores.bucket.wire import Entry, Ledger
from brigade.stores.history import NULL, Attempt, HistoryPart, Record

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = [
    "Attempt",
    "Record",
    "ended_since",
    "list_parts",
    "opened",
    "read_file",
    "read_opened",
    "read_part",
    "read_records",
    "records_of",
    "write_history",
]

SKEW = 600_000
OUTCOMES = {SUCCEEDED: "processed", FAILED: "failed", DEAD: "dead-lettered"}
_encoder = msgspec.json.Encoder()


class Secrets(msgspec.Struct, array_like=True):
    """What of a record is not for everybody who can read the file."""

    attributes: dict[str, Any] | None
    errors: list[str | None]
    error: str | None
    result: msgspec.Raw
    origin: str | None


_secrets = msgspec.json.Decoder(Secrets)
_decoder = msgspec.json.Decoder(Record)


def records_of(
    queue: str, name: SegmentName, ledger: Ledger, entries: Sequence[Entry | None], default_max: int
) -> list[Record]:
    """The history of a final ledger; purged messages leave none."""
    log = log_of(ledger)
    grants = {grant.version: grant for grant in reversed(log.grants)}
    attempts: dict[int, list[Attempt]] = {}
    for end in log.ends:
        grant = grants.get(end.version)
        if grant is not None:
            shared = Attempt(end.version, grant.owner, grant.claimed, end.at, end.how, end.error)
            for place in from_runs(end.runs):
                attempts.setdefault(place, []).append(shared)
    targets = {place: (move.target, move.at) for move in ledger.moves for place in move.members}
    counted = memoryview(ledger.attempts).cast("H")
    segment_id = str(name)
    reasons, specs, states, results = ledger.reasons, ledger.specs, ledger.states, ledger.results
    nowhere, no_reason = (None, 0), (None, None)
    absent = _absent(entries, states)
    records: list[Record] = []
    for place, entry in enumerate(entries):
        state = states[place]
        if entry is None or state == PURGED or state <= LEASED:
            continue
        ref = f"{segment_id}-{place}"
        made = attempts.get(place) or []
        target, failed_at = targets.get(place, nowhere)
        reason, error = reasons.get(place, no_reason)
        own_max = specs[place].max_attempts if specs else None
        result = results.get(place) if results else None
        record = Record(
            entry.own_id or ref,
            ref,
            queue,
            OUTCOMES[state],
            entry.priority,
            entry.enqueued,
            entry.due or entry.enqueued,
            failed_at or (made[-1].ended_at if made else entry.enqueued),
            made,
            counted[place],
            own_max or default_max,
            entry.content_type,
            entry.size,
            entry.correlation or entry.own_id or ref,
            entry.group,
            entry.attributes,
            reason,
            error,
            NULL if result is None else msgspec.Raw(result),
            target,
            entry.failure,
            name.lane or None,
            absent,
        )
        records.append(record)
    return records


def _absent(entries: Sequence[Entry | None], states: bytes) -> list[int] | None:
    """The places of a segment that leave no record, for they were purged or never filled. Few segments have any."""
    if PURGED not in states and None not in entries:
        return None
    return [place for place, entry in enumerate(entries) if entry is None or states[place] == PURGED]


def write_history(env: Env, keys: QueueKeys, records: Sequence[Record]) -> Proto[None]:
    """Store finished messages in one file."""
    if not records:
        return
    counts = Counter(record.outcome for record in records)
    if env.fields is not None:
        records = _seal(env.fields, records)
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    body = packer.compress(_encoder.encode_lines(records)) + packer.flush()
    while True:
        key = keys.history_file(
            env.now(),
            env.ids.nonce(),
            succeeded=counts["processed"],
            failed=counts["failed"],
            dead=counts["dead-lettered"],
        )
        answer = yield from write(env, Create(key, body))
        if not isinstance(answer, Lost):
            return


def _seal(fields: Fields, records: Sequence[Record]) -> list[Record]:
    """Records as they are stored where encryption is on: one data key for the file."""
    key, sealed = fields.vault.data_key(), list[Record]()
    for one in records:
        errors = [attempt.error for attempt in one.attempts]
        origin = one.origin.error if one.origin else None
        if one.attributes is None and one.error is None and one.result is NULL and origin is None and not any(errors):
            sealed.append(one)
            continue
        secrets = Secrets(one.attributes, errors, one.error, one.result, origin)
        text = fields.seal_text(_encoder.encode(secrets).decode(), place_of("history", one.queue, one.ref), key)
        sealed.append(
            replace(
                one,
                attributes=None,
                attempts=[replace(attempt, error=None) if attempt.error else attempt for attempt in one.attempts],
                error=None,
                result=NULL,
                origin=replace(one.origin, error=None) if one.origin else None,
                sealed=text,
            )
        )
    return sealed


def opened(fields: Fields | None, record: Record) -> Record:
    """A record with what was sealed of it. CannotDecrypt where that takes a key that isn't there."""
    if not isinstance(record.sealed, str):
        return record
    if fields is None:
        raise CannotDecrypt(f"history of message {record.id!r} is sealed; connect with encryption= and its keys")
    place = place_of("history", record.queue, record.ref)
    secrets = _secrets.decode(fields.open_text(record.sealed, place))
    return replace(
        record,
        attributes=secrets.attributes,
        attempts=[replace(one, error=error) for one, error in zip(record.attempts, secrets.errors, strict=True)],
        error=secrets.error,
        result=secrets.result,
        origin=replace(record.origin, error=secrets.origin) if record.origin else None,
        sealed=msgspec.UNSET,
    )


def read_records(body: bytes) -> list[Record]:
    """The records of one history file."""
    return [_decoder.decode(line) for line in zlib.decompress(body, 31).splitlines()]


def list_parts(keys: QueueKeys, since: int) -> Proto[list[HistoryPart]]:
    """The files of a queue's history written since then, oldest first."""
    found: list[HistoryPart] = []
    after = keys.history_after(since)
    while True:
        page = yield from list_page(keys.history, after)
        for item in page.items:
            name = HistoryName.parse(item.key)
            if name is not None:
                count = name.succeeded + name.failed + name.dead
                found.append(HistoryPart(keys.queue, item.key, name.at, count))
        if not page.more:
            return found
        after = page.items[-1].key


def read_part(env: Env, part: HistoryPart) -> Proto[list[Record]]:
    """The records of one file of history; none where retention has taken it."""
    if not QueueKeys(part.queue).has_history(part.key):
        raise ConfigError(f"{part.key[:200]!r} is no history of queue {part.queue!r}; read the parts that were listed")
    return (yield from read_opened(env, part.key))


def read_opened(env: Env, key: str) -> Proto[list[Record]]:
    """`read_file`, with what was sealed of its records."""
    return [opened(env.fields, record) for record in (yield from read_file(env, key))]


def ended_since(
    env: Env, keys: QueueKeys, refs: AbstractSet[str], since: int, *, most_files: int = 0
) -> Proto[dict[str, Record]]:
    """Which of the messages history knows to have ended; looks at files written since then, oldest first."""
    found: dict[str, Record] = {}
    after = keys.history_after(since - SKEW)
    looked = 0
    while True:
        page = yield from list_page(keys.history, after)
        for item in page.items:
            if HistoryName.parse(item.key) is None:
                continue
            records = yield from read_file(env, item.key)
            found.update((record.ref, record) for record in records if record.ref in refs)
            looked += 1
            if len(found) == len(refs) or looked == most_files:
                return found
        if not page.more:
            return found
        after = page.items[-1].key


def read_file(env: Env, key: str) -> Proto[list[Record]]:
    """A history file's records; none where it is gone, or damaged, which is told of once."""
    for again in (True, False):
        blob = yield from get(key)
        if blob is None:
            return []
        try:
            return read_records(blob.body)
        except (zlib.error, msgspec.DecodeError) as error:
            if not again:
                answer = yield Create(corrupt_key(key), blob.body)
                if isinstance(answer, str):
                    env.damaged.append(CorruptObject(key, f"it is not gzipped JSON lines ({error})"))
    return []
