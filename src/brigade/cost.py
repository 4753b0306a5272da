"""What storage requests cost: prices by kind, and the cost of messages and of waiting."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from brigade.errors import ConfigError

__all__ = ["MONTH", "Prices", "idle_requests", "load_prices"]

MONTH = 30 * 24 * 3600.0
"""Seconds."""

CLASSES = {
    "create": "put",
    "swap": "put",
    "copy": "put",
    "list": "list",
    "get": "get",
    "head": "get",
    "delete": "delete",
    "deleteif": "delete",
}
"""What each kind of request is billed as."""

LISTS_OF_A_SWEEP = 3
"""Of a queue where nothing waits: what there is, the segments' flags, and history."""


class Prices(msgspec.Struct, frozen=True):
    """Dollars for a thousand requests. The defaults are what AWS asks for S3 Standard in its cheapest regions."""

    put: float = 0.005
    list: float = 0.005
    get: float = 0.0004
    delete: float = 0.0

    def of(self, requests: Mapping[str, float]) -> float:
        """Dollars for these requests, counted by kind."""
        return sum(count * getattr(self, CLASSES.get(kind, "put")) for kind, count in requests.items()) / 1000


def load_prices(path: str | None = None, changed: Mapping[str, float] | None = None) -> Prices:
    """Prices from a TOML or JSON file with any of `put`, `list`, `get`, `delete`; `changed` comes before the file."""
    given: dict[str, Any] = {}
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
            given = msgspec.json.decode(text) if path.endswith(".json") else tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"prices cannot be read from {path}: {error}") from None
    given |= changed or {}
    for name, value in given.items():
        if name not in Prices.__struct_fields__:
            raise ConfigError(f"there is no price {name!r}; name any of {', '.join(Prices.__struct_fields__)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigError(f"price {name!r} is {value!r}; give dollars for a thousand requests")
    return Prices(**given)


def idle_requests(seconds: float, poll_interval: float | None = None) -> dict[str, float]:
    """What a worker with nothing to do asks of a cloud store in that time: it polls, and now and then looks around."""
    from brigade.blobs.cloud import CLOCK_EVERY, CloudBlobs
    from brigade.stores.bucket.process import POLICY_TTL, SWEEP_EVERY

    poll = CloudBlobs.poll_interval if poll_interval is None else poll_interval
    return {
        "list": seconds / poll + LISTS_OF_A_SWEEP * seconds / SWEEP_EVERY,
        "get": seconds / max(POLICY_TTL, poll),
        "head": seconds / CLOCK_EVERY,
    }
