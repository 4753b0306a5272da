"""The doctor has teeth: each promise, broken on purpose, is found out; healthy stores pass and stay as they were."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade.blobs import CONFLICT, UNKNOWN, Blob, Create, DeleteIf, Op, Swap
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.clock import Clock, SystemClock
from brigade.doctor import Finding, Report, Verdict, connections_to, examine, timing
from brigade.errors import StaleLease, StoreUnavailable
from brigade.machine import State
from brigade.stores import Settled
from brigade.stores.bucket.store import BucketStore
from faulty_blobs import (
    BlindDelete,
    BlindSwap,
    Breaking,
    EarlyStream,
    Faulty,
    FoldedKeys,
    ForgetfulCreate,
    LyingCopy,
    NoDelete,
    OverwritingCreate,
    RacyCreate,
    RacyDelete,
    RacySwap,
    Refusing,
    RepeatingPages,
    ShortStream,
    StaleGet,
    StaleList,
    UndeadStream,
    WrongOrder,
)

BRIGADE = Path(sys.executable).parent / "brigade"


async def examined(make: Callable[[Bucket], MemoryBlobs], bucket: Bucket | None = None) -> Report:
    """A quick examination of a bucket that every connection sees through blobs of its own."""
    shared = bucket or Bucket()
    return await examine(lambda: BucketStore(make(shared)), quick=True)


def found(report: Report, check: str) -> Finding:
    (finding,) = [one for one in report.findings if one.check == check]
    return finding


def failed(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if finding.verdict is Verdict.FAIL}


@pytest.mark.parametrize(
    "blobs, checks, said",
    [
        (OverwritingCreate, {"create of a taken key", "create race"}, "writers were told that they had won"),
        (RacyCreate, {"create race"}, "writers were told that they had won"),
        (BlindSwap, {"swap by an old etag", "swap race", "lost updates"}, "writers were told that they had won"),
        (RacySwap, {"swap race"}, "writers were told that they had won"),
        (ForgetfulCreate, {"create race"}, ""),
        (StaleGet, {"read after write"}, "old bytes or an old etag"),
        (StaleList, {"list after write"}, "not listed at once"),
        (WrongOrder, {"order of listings"}, "not in byte order"),
        (RepeatingPages, {"order of listings"}, "repeat or leave out"),
        (BlindDelete, {"delete against swap"}, "a delete by an old etag"),
        (RacyDelete, {"delete against swap"}, "a delete by an old etag"),
        (NoDelete, {"read after write", "list after write"}, "could still be read"),
        (FoldedKeys, {"keys"}, "mixed up with another key"),
        (LyingCopy, {"copies"}, "not there, or differs"),
        (ShortStream, {"streams"}, "came back"),
        (UndeadStream, {"streams"}, "deleted stream"),
        (Refusing, {"swap race"}, ""),
        (Breaking, {"copies"}, "ZeroDivisionError: inside a library"),
    ],
)
async def test_a_broken_promise_is_found_out(blobs: type[Faulty], checks: set[str], said: str) -> None:
    for name in ("old", "last", "kept"):
        setattr(blobs, name, {})
    bucket = Bucket()
    report = await examined(blobs, bucket)
    assert checks <= failed(report)
    assert not report.safe
    assert [one for one in report.findings if one.verdict is Verdict.FAIL and said in one.seen]
    assert all(finding.meaning for finding in report.findings if finding.verdict is Verdict.FAIL)
    assert found(report, "claim race").verdict is Verdict.SKIPPED
    if blobs is NoDelete:
        assert found(report, "clean-up").verdict is Verdict.WARN
        assert len(report.leftover) == 2
    else:
        assert bucket.snapshot() == {}


class ShiftedBlobs(Faulty):
    """Measures the offset to the store's clock when it connects."""

    async def open(self, clock: Clock) -> None:
        assert isinstance(clock, SystemClock)
        clock.offset_ms = 400_000


@pytest.mark.parametrize(
    "offset, blobs, verdict",
    [
        (400, Faulty, Verdict.FAIL),
        (-400, Faulty, Verdict.FAIL),
        (15, Faulty, Verdict.WARN),
        (0, Faulty, Verdict.OK),
        (400, ShiftedBlobs, Verdict.OK),
    ],
)
async def test_the_clock_is_judged(offset: int, blobs: type[Faulty], verdict: Verdict) -> None:
    report = await examined(blobs, Bucket(SystemClock(offset * 1000)))
    finding = found(report, "clock")
    assert finding.verdict is verdict
    assert report.safe is (verdict is not Verdict.FAIL)
    number, _, side = finding.seen.partition(",")[0].partition(" s ")
    if blobs is ShiftedBlobs:
        assert "own clock is 400 s off, which Brigade makes up for" in finding.seen
    else:
        assert float(number) == pytest.approx(abs(offset), abs=5)
        assert offset == 0 or side == ("ahead" if offset > 0 else "behind")


class HashEtags(Bucket):
    """Etags that are a hash of the content, as S3's are."""

    def _write(self, key: str, body: bytes, etag: str | None) -> object:
        answer = super()._write(key, body, etag)
        if not isinstance(answer, str):
            return answer
        hashed = hashlib.md5(body).hexdigest()
        with self._lock:
            self._objects[key] = Blob(body, hashed, self._objects[key].modified)
        return hashed


async def test_etags_that_are_hashes_are_fine_and_told() -> None:
    report = await examined(Faulty, HashEtags())
    finding = found(report, "returning etags")
    assert finding.seen == "an etag comes back with its bytes"
    assert "nonce" in finding.meaning
    assert report.verdict is Verdict.OK


class Doubtful(Faulty):
    """Applies a write, and loses the answer."""

    def try_now(self, op: Op) -> object:
        answer = super().try_now(op)
        racing = isinstance(op, Create) and b"creator" in op.body
        return UNKNOWN if racing and isinstance(answer, str) else answer


async def test_a_winner_who_is_not_told_is_a_warning() -> None:
    report = await examined(Doubtful)
    assert found(report, "create race").verdict is Verdict.WARN
    assert "4 with a winner who was not told" in found(report, "create race").seen
    assert report.safe


class LostAnswers(Faulty):
    """Applies every write, and loses every third answer."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.answers = 0

    def try_now(self, op: Op) -> object:
        answer = super().try_now(op)
        if isinstance(op, Create | Swap | DeleteIf) and isinstance(answer, str):
            self.answers += 1
            return UNKNOWN if self.answers % 3 == 0 else answer
        return answer


async def test_answers_that_are_lost_are_no_broken_promise() -> None:
    report = await examined(LostAnswers)
    assert failed(report) == set()


class Busy(Faulty):
    """Doesn't answer some of the writers in a race."""

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create | Swap) and b"er 7" in op.body:
            raise StoreUnavailable("slow down")
        return super().try_now(op)


async def test_writers_without_an_answer_are_a_warning() -> None:
    report = await examined(Busy)
    assert "4 with writers who got no answer" in found(report, "swap race").seen
    assert report.verdict is Verdict.WARN


class Unsure(Faulty):
    """Refuses every writer of a race."""

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create) and b"creator" in op.body:
            return CONFLICT
        return super().try_now(op)


async def test_a_race_that_nobody_ever_wins_is_no_good() -> None:
    assert "nobody ever won" in found(await examined(Unsure), "create race").seen


class Silent(Faulty):
    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return lambda: None


class Polling(Faulty):
    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return None


async def test_a_store_that_promises_to_tell_and_does_not_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TOLD_WITHIN", 0.1)
    report = await examined(Silent)
    assert found(report, "notifications").verdict is Verdict.WARN
    assert "watch=off" in found(report, "notifications").meaning


async def test_a_store_that_does_not_tell_is_polled() -> None:
    report = await examined(Polling)
    assert found(report, "notifications").verdict is Verdict.OK
    assert "look every 6 s" in found(report, "notifications").meaning


async def test_a_stream_that_shows_early_is_a_warning() -> None:
    assert found(await examined(EarlyStream), "streams").verdict is Verdict.WARN


def contents(folder: Path) -> dict[str, bytes]:
    """Every object of a store on disk."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
async def test_a_healthy_store_passes(kind: str, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    url = "memory://" if kind == "memory" else f"{kind}://{tmp_path}/store"
    report = await examine(connections_to(url), quick=True, tell=lambda *progress: told.append(progress))
    assert [(one.check, one.seen) for one in report.findings if one.verdict is not Verdict.OK] == []
    assert report.safe
    assert [latency.operation for latency in report.latencies] == ["create", "get", "swap", "list", "delete"]
    assert [number for _, number, _ in told] == list(range(1, len(report.findings) + 1))
    assert {total for _, _, total in told} == {len(report.findings)}


@pytest.mark.slow
async def test_a_healthy_disk_passes_in_full(tmp_path: Path) -> None:
    report = await examine(connections_to(f"file://{tmp_path}/store"))
    assert [(one.check, one.seen) for one in report.findings if one.verdict is not Verdict.OK] == []


async def test_queues_in_the_store_are_left_alone(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(["a", "b", "c"])
        (held,) = await queue.claim(visibility=600)
        before = contents(tmp_path / "store")
        report = await examine(connections_to(url), quick=True)
        assert report.safe
        assert contents(tmp_path / "store") == before
        assert await hub.queues() == ["tasks"]
        await queue.ack(held)
    assert not (tmp_path / "store" / "doctor").exists()
    assert [path.name for path in (tmp_path / "store" / "q").iterdir()] == ["tasks"]


@pytest.mark.parametrize("stop_at", ["create race", "streams", "claim race", "wake-up", "latency"])
async def test_an_interrupted_doctor_cleans_up(stop_at: str) -> None:
    bucket = Bucket()

    def tell(name: str, *_: int) -> None:
        if name == stop_at:
            asyncio.get_running_loop().call_soon(task.cancel)

    task = asyncio.ensure_future(examine(lambda: BucketStore(Faulty(bucket)), quick=True, tell=tell))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bucket.snapshot() == {}


async def test_a_store_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnavailable):
        await examine(connections_to(f"file://{tmp_path}/file/below"))


class Other:
    """A store that is no bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._store = BucketStore(MemoryBlobs(bucket=bucket))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class HandsOutTwice(Other):
    given: list[Any]

    async def claim(self, queue: str, **options: Any) -> list[Any]:
        grants = await self._store.claim(queue, **options)
        self.__class__.given += grants
        return grants or self.__class__.given[-1:]


class AcceptsAnything(Other):
    async def settle(self, queue: str, settlements: Any) -> list[Any]:
        answers = await self._store.settle(queue, settlements)
        done = Settled(State.SUCCEEDED, None, 1, 1)
        return [done if isinstance(answer, StaleLease) else answer for answer in answers]


class ForgetsAcks(Other):
    """Acks the message that must be acked for a race to go on, and none of a batch."""

    async def settle(self, queue: str, settlements: Any) -> list[Any]:
        if len(settlements) > 1:
            return [Settled(State.SUCCEEDED, None, 1, 1) for _ in settlements]
        return await self._store.settle(queue, settlements)


@pytest.mark.parametrize(
    "store, checks",
    [
        (Other, set[str]()),
        (HandsOutTwice, {"claim race"}),
        (AcceptsAnything, {"stale tokens"}),
        (ForgetsAcks, {"acks"}),
    ],
)
async def test_a_store_that_is_no_bucket_is_tried_by_its_queues(store: type[Other], checks: set[str]) -> None:
    if store is HandsOutTwice:
        HandsOutTwice.given = []
    bucket = Bucket()
    report = await examine(lambda: store(bucket), quick=True)
    assert checks <= failed(report)
    assert report.safe is not bool(checks)
    assert "create race" not in {finding.check for finding in report.findings}
    assert bucket.snapshot() == {}


def run(*arguments: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "BRIGADE_URL"}
    done = subprocess.run(
        [BRIGADE, "doctor", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        env={**known, "COLUMNS": "200"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_command_reports_a_table_and_a_verdict(tmp_path: Path) -> None:
    said = run("file://./jobs", "--quick", folder=tmp_path).stdout
    assert "create race" in said
    assert "one winner each" in said
    assert "p95 ms" in said
    assert said.rstrip().endswith("file://./jobs is safe for queues")


def test_the_command_speaks_json_and_takes_the_usual_url(tmp_path: Path) -> None:
    report = json.loads(run("--quick", "--json", "--url", "file://./jobs", folder=tmp_path).stdout)
    assert (report["safe"], report["verdict"], report["leftover"]) == (True, "ok", [])
    assert {"check", "verdict", "seen", "meaning"} == set(report["checks"][0])
    assert report["latency_ms"]["swap"]["p50"] > 0


def test_an_unsafe_store_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from brigade.cli import doctor as command

    bucket = Bucket()
    monkeypatch.setattr(command, "connections_to", lambda _: lambda: BucketStore(BlindSwap(bucket)))
    answer = CliRunner().invoke(
        command.doctor, ["s3://user:secret@jobs?access_key=hidden", "--quick"], standalone_mode=False
    )
    assert answer.return_value == 1
    assert "s3://…@jobs?access_key=… is NOT SAFE for queues:" in " ".join(answer.output.split())
    assert "secret" not in answer.output
    assert "hidden" not in answer.output


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_cleans_up_when_it_is_stopped(tmp_path: Path, how: signal.Signals, code: int) -> None:
    store = tmp_path / "jobs"
    doctor = subprocess.Popen([BRIGADE, "doctor", f"file://{store}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 30
    while not list(store.glob("doctor/*/create-*")) and time.monotonic() < end:
        assert doctor.poll() is None
        time.sleep(0.005)
    doctor.send_signal(how)
    _, errors = doctor.communicate(timeout=60)
    assert doctor.returncode == code, errors
    assert contents(store) == {}
    assert not (store / "doctor").exists()
