"""Where Brigade stands beside others: its figure over the best of theirs, for the same work in the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.http import CHAIN, CLIENTS, CONSUME, ENQUEUE
from bench.peers import LONG, THREADS

__all__ = ["Standing", "standings"]

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""A report as JSON has it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One comparison. More is better in all of them."""

    ground: str
    work: str
    ours: float
    theirs: float
    who: str

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def told(self) -> str:
        """The ratio, to two digits."""
        return f"{self.ratio:,.0f}" if self.ratio >= 10 else f"{self.ratio:.2g}"


def standings(found: Found) -> list[Standing]:
    """Every comparison of what was measured."""
    return [*_postgres(found), *_s3(found), *_http(found), *_disk(found), *_spark(found)]


def _postgres(found: Found) -> list[Standing]:
    rows = [one for one in found.get("postgres", ()) if one["processes"] == 1]
    made: list[Standing] = []
    for case in dict.fromkeys(one["case"] for one in rows):
        rates = {one["name"]: one["best"] for one in rows if one["case"] == case}
        made += _compared("PostgreSQL", case, rates)
    return made


def _s3(found: Found) -> list[Standing]:
    rows = found.get("s3", ())
    return [
        standing
        for work in ("enqueue", "process")
        for case, label in (("one at a time", "one at a time"), ("", "the best of each"))
        for standing in _compared(
            "S3",
            f"{work}, {label}",
            {
                name: max(one[work] for one in rows if one["name"] == name and one["case"].startswith(case))
                for name in _names(rows)
            },
        )
    ]


ONE_EACH = {ENQUEUE: (ENQUEUE,), CONSUME: (CONSUME, CHAIN)}
"""Over HTTP: what has one message a request."""


def _http(found: Found) -> list[Standing]:
    """One message at a time with the fewest clients and the most, then whatever of each is best."""
    rows = found.get("http", ())
    made: list[Standing] = []
    for work in (ENQUEUE, CONSUME):
        for clients in (CLIENTS[0], CLIENTS[-1]):
            single = [one for one in rows if one["case"] in ONE_EACH[work] and one["clients"] == clients]
            rates = {name: max(one["best"] for one in single if one["name"] == name) for name in _names(single)}
            made += _compared("HTTP", f"{work}, {clients} client{'s' if clients > 1 else ''}", rates)
    for work in (ENQUEUE, CONSUME):
        rates = {
            name: max(one["best"] for one in rows if one["name"] == name and one["case"].startswith(work))
            for name in _names(rows)
        }
        made += _compared("HTTP", f"{work}, the best of each", rates)
    return made


def _disk(found: Found) -> list[Standing]:
    """Only with others that keep a message until it is acked; of each the better of its settings."""
    made: list[Standing] = []
    for durable in (True, False):
        rows = [one for one in found.get("peers", ()) if one["durable"] == durable and one["acks"]]
        works = [
            (["enqueue"], "enqueue, one at a time"),
            (["enqueue_long"], f"enqueue, {LONG:,} in a row"),
            (["enqueue", "enqueue_many"], "enqueue, the best of each"),
            (["enqueue_threads"], f"enqueue, {THREADS} threads"),
            (["consume"], "claim + ack, one at a time"),
            (["consume_long"], f"claim + ack, {LONG:,} in line"),
            (["consume", "consume_many"], "claim + ack, the best of each"),
            (["consume_threads"], f"claim + ack, {THREADS} threads"),
        ]
        ground = "disk, fsync" if durable else "disk, no fsync"
        for fields, work in works:
            rates = {
                name: max(one[field] or 0.0 for one in rows if one["name"] == name for field in fields)
                for name in _names(rows)
            }
            made += _compared(ground, work, rates)
    return made


def _spark(found: Found) -> list[Standing]:
    return [
        Standing("Spark", one["case"].partition(",")[0], one["value"], one["parquet"], "Parquet")
        for one in found.get("spark", ())
        if one["parquet"]
    ]


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["name"] for one in rows))


def _compared(ground: str, work: str, rates: Mapping[str, float]) -> list[Standing]:
    others = {name: rate for name, rate in rates.items() if name != "brigade"}
    if "brigade" not in rates or not others:
        return []
    best = max(others, key=others.__getitem__)
    return [Standing(ground, work, rates["brigade"], others[best], best)]
