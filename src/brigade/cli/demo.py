"""`brigade demo`: several processes on one directory, one of them killed in the middle, and nothing lost."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

import brigade
from brigade.cli.common import console, json_option, print_json
from brigade.cli.demo_crew import Crew
from brigade.cli.demo_proof import Proof, prove
from brigade.cli.demo_report import report_on
from brigade.cli.demo_screen import Screen
from brigade.cli.demo_worker import CONCURRENCY

__all__ = ["demo"]

QUEUE, LETTERS = "orders", "orders_dlq"
VISIBILITY = 2.0
PATIENCE = 90.0
WORK_SECONDS = 3.0
NEARLY = 0.8


@click.command(short_help="Watch a queue at work, and a worker die.")
@click.option(
    "--messages", type=click.IntRange(100, 100_000), default=3000, show_default=True, help="How many to send."
)
@click.option("--workers", type=click.IntRange(2, 16), default=4, show_default=True, help="How many processes.")
@click.option("--keep", is_flag=True, help="Leave the store in place, to look at it afterwards.")
@click.option("--report", is_flag=True, help="End with a report and an audit by Spark, where there is Java.")
@json_option
def demo(messages: int, workers: int, keep: bool, report: bool, as_json: bool) -> None:
    """Send messages through a queue on this disk, kill a worker in the middle, and count what came out.

    Nothing has to be installed or running, and the store is removed afterwards. Some messages fail at first
    and are retried; a few can't be processed at all and end in a dead-letter queue. The command ends with 1
    if a single message is lost or counted twice.

    \b
    Examples:
      brigade demo
      brigade demo --messages 20000 --workers 8 --keep
      brigade demo --report
    """
    root = Path(tempfile.mkdtemp(prefix="brigade-demo-"))
    url = f"file://{root}"
    screen = Screen(console(stderr=as_json), messages)
    sound = True
    try:
        proof = _run(url, root, screen, messages, workers)
        if as_json:
            print_json(proof.summary())
        screen.summary(proof)
        if report:
            sound = report_on(url, root, screen.say)
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    if keep:
        screen.say(f"\nThe store is still there:\n  brigade stats --url {url}\n  brigade peek {LETTERS} --url {url}")
    sys.exit(0 if proof.holds and sound else 1)


def _run(url: str, root: Path, screen: Screen, messages: int, workers: int) -> Proof:
    started = time.monotonic()
    screen.intro(root, workers)
    policy = brigade.QueuePolicy(
        visibility_timeout=VISIBILITY,
        failure=brigade.Failure("hybrid", max_retries=3, dead_letter_queue=LETTERS),
        backoff=brigade.Backoff(base=0.3, maximum=1.0),
    )
    with brigade.connect(url) as hub:
        queue = hub.queue(QUEUE, policy=policy)
        before = time.monotonic()
        receipts = queue.enqueue_many(order(number) for number in range(messages))
        screen.enqueued(messages, time.monotonic() - before)
        produced = sum(hub.requests().values())
        crew = Crew(url, QUEUE, workers, work_ms=min(40.0, 1000 * WORK_SECONDS * workers * CONCURRENCY / messages))
        # No segment can be complete yet when the victim dies: it leaves leases behind, not half-written history.
        crew.kill_one_after(min(messages, 3000) // 5)
        try:
            with screen.live(crew):
                deadline = time.monotonic() + PATIENCE
                while time.monotonic() < deadline:
                    time.sleep(0.1)
                    screen.update(crew)
                    if crew.settled >= messages * NEARLY:
                        stats = queue.stats()
                        if stats.ready + stats.delayed + stats.in_flight == 0:
                            break
        finally:
            crew.stop()
        letters = hub.queue(LETTERS).peek(messages)
        return prove(
            root / "q" / QUEUE / "hist",
            [receipt.id for receipt in receipts],
            letters,
            crew,
            requests=produced + crew.requests,
            seconds=time.monotonic() - started,
        )


def order(number: int) -> dict[str, object]:
    """An order. One in twenty fails the first time, one in 250 always does."""
    made: dict[str, object] = {"order": number, "to": f"customer-{number % 97}@example.org"}
    if number % 250 == 13:
        made["poison"] = True
    elif number % 20 == 7:
        made["flaky"] = True
    return made
