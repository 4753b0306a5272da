"""The second opinion: the Spark audit over the history of the same store, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brigade.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Audit", "Audited", "Request", "apart", "audited", "why_not_spark"]

WITHIN = 600.0
SHOWN = 5


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to audit: `expected` are the messages that producers were told of, `slack` what clocks may differ by."""

    url: str
    folder: str
    expected: list[str]
    slack: float


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit says. `broken` counts what it found, by guarantee; `rows` are the first of each check."""

    messages: int
    leases: int
    acks: int
    seconds: float
    broken: dict[str, int] = {}
    rows: list[str] = []


Audit = Callable[[Request], Audited]


def why_not_spark() -> str | None:
    """Why there can be no Spark here, or None."""
    from brigade.spark.java import prepare_java

    if find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'bucket-brigade[spark]'"
    try:
        prepare_java()
    except ConfigError as error:
        return str(error)
    return None


def audited(spark: SparkSession, request: Request) -> Audited:
    """Collect the store's history into tables, and audit those."""
    from brigade.spark.audit import audit
    from brigade.spark.history import collect
    from brigade.spark.history.engines import SparkEngine

    begun = time.monotonic()
    tables = str(Path(request.folder) / "tables")
    collect(spark, request.url, tables)
    engine = SparkEngine(spark, tables)
    verdict = audit(engine, slack=request.slack, expected=request.expected)
    (acks,) = engine.rows("SELECT count(*) AS found FROM attempts WHERE how = 'acked'")
    broken: Counter[str] = Counter()
    rows: list[str] = []
    for finding in verdict.findings:
        if finding.found:
            broken[finding.guarantee] += finding.found
            rows += [f"{finding.guarantee} {one.check}: {one.ref}: {one.detail}" for one in finding.rows[:SHOWN]]
    return Audited(
        messages=verdict.messages,
        leases=verdict.attempts,
        acks=acks["found"],
        seconds=round(time.monotonic() - begun, 1),
        broken=dict(sorted(broken.items())),
        rows=rows,
    )


def apart(request: Request) -> Audited:
    """The same in a process of its own, which has Java to itself and is gone afterwards."""
    folder = Path(request.folder)
    with (folder / "audit.log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode(request),
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=WITHIN,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the audit ended with {done.returncode}; see {folder / 'audit.log'}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Audited)


def main() -> int:
    """Takes a request from standard input, and answers on standard output."""
    from brigade.spark.session import local_session
    from brigade.testing.chaos.crew.fleeting import small

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    session = local_session("brigade-chaos", cores=2, settings=small(Path(request.folder)))
    try:
        found = audited(session, request)
    finally:
        session.stop()
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
