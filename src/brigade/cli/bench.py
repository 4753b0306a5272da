"""`brigade cost` and `brigade bench`: requests a message, and the dollars they come to."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import click

import brigade
from brigade.cli.common import console, json_option, print_json, table, url_option
from brigade.cost import MONTH, Prices, idle_requests, load_prices
from brigade.ids import Ids

__all__ = ["bench", "cost", "cost_line"]

BATCHES = (1, 10, 100, 1000)
ROUNDS = {1: 40, 10: 20, 100: 20, 1000: 10}
MILLION = 1_000_000
BODY = "x" * 200


@dataclass(frozen=True, slots=True)
class Measured:
    """What messages cost in batches of one size: requests of each kind for one message, and seconds for all."""

    batch: int
    messages: int
    seconds: float
    kinds: dict[str, float]

    @property
    def requests(self) -> float:
        return sum(self.kinds.values())


def _prices(command: Any) -> Any:
    for option in (
        click.option(
            "--price",
            "changed",
            metavar="KIND=DOLLARS",
            multiple=True,
            help="Dollars for 1,000 put, list, get or delete requests.",
        ),
        click.option("--prices", metavar="FILE", help="A TOML or JSON file with such prices. Default: S3 Standard."),
    ):
        command = option(command)
    return command


def _chosen(path: str | None, changed: tuple[str, ...]) -> Prices:
    given: dict[str, float] = {}
    for text in changed:
        name, _, value = text.partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            raise click.UsageError(f"--price {text!r}: write it as put=0.005") from None
    return load_prices(path, given)


@click.command(short_help="What messages cost in requests and dollars.")
@click.option(
    "--batch", "batches", type=click.IntRange(1, 1000), multiple=True, help="Messages a batch; may be repeated."
)
@click.option("--messages", type=click.IntRange(0), default=MILLION, show_default=True, help="Messages a month.")
@click.option("--workers", type=click.IntRange(0), default=1, show_default=True, help="Workers that wait all month.")
@click.option("--poll-interval", type=click.FloatRange(0.1), help="Seconds between their looks, as in the URL.")
@_prices
@json_option
def cost(
    batches: tuple[int, ...],
    messages: int,
    workers: int,
    poll_interval: float | None,
    prices: str | None,
    changed: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tell what messages and waiting workers cost on an object store, without using one.

    Requests are counted, from enqueue to history, on a store in memory; the store on S3 makes the same ones.

    \b
    Examples:
      brigade cost
      brigade cost --batch 100 --messages 5000000 --workers 4
      brigade cost --prices prices.toml --json
    """
    asked = _chosen(prices, changed)
    found = [asyncio.run(_measure("memory://", batch, ROUNDS.get(batch, 20))) for batch in batches or BATCHES]
    _show(found, asked, idle_requests(MONTH, poll_interval), workers, messages, as_json, timed=False)


@click.command(short_help="Measure a store: messages a second, requests, dollars.")
@url_option
@click.option(
    "--batch", "batches", type=click.IntRange(1, 1000), multiple=True, help="Messages a batch; may be repeated."
)
@click.option("--rounds", type=click.IntRange(1), help="Batches of each size. Default: 40, 20, 20 and 10.")
@_prices
@json_option
def bench(
    url: str, batches: tuple[int, ...], rounds: int | None, prices: str | None, changed: tuple[str, ...], as_json: bool
) -> None:
    """Send messages of 200 bytes through a queue of its own in the store, and delete it again.

    It is filled, then worked off; every request of that is counted, to the last history file.

    \b
    Examples:
      brigade bench --url s3://bucket/prefix
      brigade bench --url file://./jobs --batch 100 --json
    """
    asked = _chosen(prices, changed)
    found = [asyncio.run(_measure(url, batch, rounds or ROUNDS.get(batch, 20))) for batch in batches or BATCHES]
    cloud = url.startswith(("s3://", "az://", "gs://"))
    _show(found, asked, idle_requests(MONTH) if cloud else {}, 1, MILLION, as_json, timed=True)


async def _measure(url: str, batch: int, rounds: int) -> Measured:
    """Work off that many batches. The clock runs, and requests count, until the last of them is in history."""
    name = f"bench-{Ids().bits(48):012x}"
    hub = await brigade.connect_async(url).open()
    queue = await hub.queue(name)
    before, started = Counter(hub.requests()), time.perf_counter()
    for _ in range(rounds):
        await queue.enqueue_many([BODY] * batch)
    done, total = 0, batch * rounds
    while done < total:
        claimed = await queue.claim(batch, wait=30)
        await queue.ack_many(claimed)
        done += len(claimed)
    await hub.close()
    seconds, counted = time.perf_counter() - started, Counter(hub.requests()) - before
    if url != "memory://":
        async with brigade.connect_async(url) as again:
            await (await again.queue(name)).delete()
    return Measured(batch, total, seconds, {kind: count / total for kind, count in sorted(counted.items())})


def _show(
    found: list[Measured],
    prices: Prices,
    idle: dict[str, float],
    workers: int,
    messages: int,
    as_json: bool,
    *,
    timed: bool,
) -> None:
    waiting = prices.of(idle) * workers
    if as_json:
        print_json(
            {
                "batches": [
                    {
                        "batch": one.batch,
                        "messages": one.messages,
                        "requests_per_message": one.requests,
                        "kinds": one.kinds,
                        "dollars_per_million": prices.of(one.kinds) * MILLION,
                        "dollars_a_month": prices.of(one.kinds) * messages,
                        **({"messages_per_second": one.messages / one.seconds} if timed else {}),
                    }
                    for one in found
                ],
                "idle": {"workers": workers, "requests_a_month": sum(idle.values()) * workers, "dollars": waiting},
            }
        )
        return
    shown = table(
        "batch",
        "requests each",
        "put",
        "list",
        "get",
        "delete",
        "$/million",
        *(["messages/s"] * timed),
        numbers=True,
    )
    for one in found:
        kinds = Counter(one.kinds)
        shown.add_row(
            f"{one.batch:,}",
            f"{one.requests:.4f}",
            f"{kinds['create'] + kinds['swap'] + kinds['copy']:.4f}",
            f"{kinds['list']:.4f}",
            f"{kinds['get'] + kinds['head']:.4f}",
            f"{kinds['delete'] + kinds['deleteif']:.4f}",
            f"{prices.of(one.kinds) * MILLION:,.2f}",
            *([f"{one.messages / one.seconds:,.0f}"] * timed),
        )
    console().print(shown)
    if not idle:
        return
    plural = "worker that waits" if workers == 1 else "workers that wait"
    rate = sum(idle.values()) * 60 / MONTH
    click.echo(f"{workers} {plural} all month: ${waiting:,.2f} ({rate:.1f} requests a minute each)")
    if messages != MILLION:
        for one in found:
            total = prices.of(one.kinds) * messages + waiting
            click.echo(f"{messages:,} messages a month in batches of {one.batch:,}: ${total:,.2f} with them")


def cost_line(url: str, requests: dict[str, int]) -> str | None:
    """What a look at a cloud store came to; None for stores that cost nothing."""
    if not url.startswith(("s3://", "az://", "gs://")):
        return None
    return f"this look took {sum(requests.values()):,} requests, ${Prices().of(requests):.6f}"
