"""A crawl on Spark, from a DataFrame of addresses to a report: `python examples/crawl_on_spark.py [MESSAGES] [FOLDER]`.

The pages are made up, so that it runs anywhere: some are slow to answer at first, some are gone for good.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import brigade
from brigade.spark.audit import audit
from brigade.spark.fleet import run
from brigade.spark.history import collect
from brigade.spark.history.engines import SparkEngine
from brigade.spark.report import page, report
from brigade.spark.session import local_session
from brigade.spark.source import BrigadeSource


def fetch(message: brigade.Message) -> dict[str, int]:
    """A handler like any other. One page in twenty is not there at first, one in two hundred never is."""
    number = message.data["page"]
    if number % 200 == 17:
        raise brigade.Reject("404 not found")
    if number % 20 == 3 and message.attempt == 1:
        raise TimeoutError("the server did not answer")
    return {"bytes": 1000 + number % 977}


def main(messages: int, folder: Path) -> None:
    url, tables = f"file://{folder}/store", str(folder / "history")
    policy = brigade.QueuePolicy(
        failure=brigade.Failure("hybrid", max_retries=3, dead_letter_queue="pages_dlq"),
        backoff=brigade.Backoff(base=0.1, maximum=1.0),
    )
    with brigade.connect(url) as hub:
        hub.queue("pages", policy=policy)
    spark = local_session("crawl")
    spark.dataSource.register(BrigadeSource)

    began = time.monotonic()
    addresses = spark.range(messages).selectExpr("id as page", "concat('https://example.org/', id) as address")
    addresses.write.format("brigade").option("url", url).option("queue", "pages").mode("append").save()
    say("enqueued", messages, began)

    began = time.monotonic()
    fleet = run(spark, url, "pages", fetch, concurrency=16, output=str(folder / "results"))
    say("worked off", fleet.total("processed"), began)

    began = time.monotonic()
    done = collect(spark, url, tables)
    say("collected", done.messages, began)

    began = time.monotonic()
    engine = SparkEngine(spark, tables)
    (folder / "report.html").write_text(page(report(engine)), encoding="utf-8")
    say("reported on", done.messages, began)

    began = time.monotonic()
    verdict = audit(engine)
    say("audited", verdict.messages, began)
    print("every guarantee holds" if verdict.holds else f"BROKEN: {verdict.findings}")
    print(f"the report is {folder}/report.html")


def say(what: str, count: int, began: float) -> None:
    seconds = time.monotonic() - began
    print(f"{what:12} {count:8,} in {seconds:6.1f} s ({count / seconds:,.0f}/s)", flush=True)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 100_000,
        Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="crawl-")),
    )
