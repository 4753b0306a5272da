"""The judge of the chaos runs and the Spark audit look at the same history, each on its own, and see the same."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted import START, lease, record, segment, write

from brigade.blobs.disk import DiskBlobs
from brigade.stores.bucket.keys import lane_name
from brigade.stores.history import Record
from brigade.testing.chaos.agreement import disagreements
from brigade.testing.chaos.arenas.bucket import ended_in
from brigade.testing.chaos.auditing import Audited, audited
from brigade.testing.chaos.journal import Line, Merged, merge, read_journals
from brigade.testing.chaos.judge import Ended, Verdict, judge
from brigade.testing.chaos.judge.recorded import Recorded
from brigade.testing.chaos.plan import FLEET
from brigade.testing.chaos.run import chaos, request_of
from brigade.testing.sim import records as r

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMITS = r.Limits({"jobs": 4, "line": 4})


def told_of(history: list[Record]) -> Merged:
    """What clients would have written down: each message enqueued, claimed and acked as history says, in its order."""
    lines: list[Line] = []
    for one in history:
        uid, queue, born = one.correlation_id, one.queue, 1 + one.enqueued_at - START
        meant = r.Intent(at=0, queue=queue, uid=uid, call=len(lines), payload=b"", group=one.group)
        lines.append(Line(who="p", op="enqueue", at=born, records=[meant]))
        lines.append(
            Line(who="p", op="returned", at=born, records=[r.Returned(at=0, queue=queue, uid=uid, ref=one.ref)])
        )
        for held in one.attempts:
            at, token = 100 + held.claimed_at - START, f"{one.ref} {held.version} {held.owner}"
            got = r.Delivered(
                at=0,
                queue=queue,
                ref=one.ref,
                uid=uid,
                token=token,
                version=held.version,
                attempt=1,
                max_attempts=4,
                payload=b"",
                own_id=None,
                group=one.group,
                priority=5,
                since=0,
            )
            lines.append(Line(who="w", op="claim", at=at, begun=at - 1, records=[got]))
            if held.how == "acked":
                answer = r.Told(at=0, queue=queue, ref=one.ref, token=token, kind="ack", answer="ok")
                lines.append(Line(who="w", op="ack", at=100 + held.ended_at - START, records=[answer]))
    return merge(sorted(lines, key=lambda line: line.at))


def both(spark: SparkSession, folder: Path, history: list[Record], lost: list[Record]) -> tuple[Verdict, Audited]:
    """What the judge and the audit say of a store with this history; `lost` are messages that it doesn't have."""
    url = f"file://{folder}/store"
    write(url, history)

    async def read() -> list[Ended]:
        blobs = DiskBlobs(f"{folder}/store", watch=False)
        try:
            return await ended_in(blobs)
        finally:
            await blobs.close()

    merged = told_of([*history, *lost])
    verdict = judge(merged, asyncio.run(read()), LIMITS, r.Final(), strict=["line"])
    return verdict, audited(spark, request_of(url, folder, merged.records, 0))


def a_message(*leases: object, **changes: object) -> Record:
    return record(f"{segment(1)}-0", list(leases), queue="jobs", **changes)  # type: ignore[arg-type]


def in_line(*leases: object) -> Record:
    lane = lane_name("")
    return record(f"{segment(1, lane)}-0", list(leases), queue="line", lane=lane)  # type: ignore[arg-type]


def test_both_find_what_was_planted(spark: SparkSession, tmp_path: Path) -> None:
    """[G1] [G2] [G3] [G4] [G6] A history in which each of these is broken, among messages that are in order."""
    good = [
        a_message(lease(1, 0, 5, "nacked"), lease(2, 6, 9)),
        a_message(lease(1, 0, 2, "expired"), lease(2, 2, 3)),
        in_line(lease(1, 0, 1)),
    ]
    planted = [
        a_message(lease(1, 0, 10, "nacked"), lease(2, 5, 20)),
        a_message(lease(1, 0, 1), lease(2, 3, 4)),
        a_message(lease(1, 0, 1), counted=5),
        in_line(lease(1, 2, 5, "nacked"), lease(2, 40, 50)),
        in_line(lease(1, 10, 20)),
    ]
    verdict, audit = both(spark, tmp_path, [*good, *planted], [a_message(lease(1, 0, 1))])
    assert set(verdict.told.broken) == set(audit.broken) == {"G1", "G2", "G3", "G4", "G6"}
    assert (audit.messages, audit.acks) == (verdict.recorded.messages, verdict.recorded.acks) == (8, 9)
    assert disagreements(verdict.recorded, verdict.told, audit) == []
    blamed = " ".join(audit.rows)
    assert not any(one.ref in blamed for one in good)


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["threads", FLEET])
def test_both_agree_after_a_short_run(spark: SparkSession, tmp_path: Path, worker: str) -> None:
    """[G1] [G2] [G3] [G4] A producer and a worker, or a Spark job with a Java of its own, are killed and frozen."""
    report = chaos(
        "file",
        tmp_path,
        seed=3,
        seconds=10 if worker == FLEET else 4,
        lease=1.5,
        every=0.6,
        crew=("producer", worker),
        audit=partial(audited, spark),
    )
    assert report.violations == [], report.evidence
    assert report.audit is not None
    assert report.audit.messages >= report.messages > 0
    assert sum(report.faults.values()) > 0
    lines, _ = read_journals(tmp_path / "journals")
    assert any(line.who.startswith(f"{worker}1.1") and line.op == "ack ok" for line in lines)


def test_two_that_saw_different_things_disagree() -> None:
    clean, same = Recorded(messages=5, leases=7, acks=5), Audited(messages=5, leases=7, acks=5, seconds=1)
    late = Recorded(messages=5, leases=7, acks=5, broken={"G2": 1})
    assert disagreements(clean, clean, same) == []
    (counted,) = disagreements(clean, clean, Audited(messages=4, leases=7, acks=5, seconds=1))
    assert counted == "the judge counts 5 messages that ended, the audit 4"
    alone = Audited(messages=5, leases=7, acks=5, seconds=1, broken={"G2": 1}, rows=["G2 overlap: x: y"])
    said, shown = disagreements(clean, clean, alone)
    assert said == "the judge says that every promise was kept, the audit that some were broken: G2 1 times"
    assert shown == "the audit: G2 overlap: x: y"
    assert disagreements(late, late, alone) == []
    assert disagreements(late, late, same)
    assert disagreements(clean, late, same) == [], "the audit can't know what only clients were told"
    assert disagreements(clean, late, alone) == []
