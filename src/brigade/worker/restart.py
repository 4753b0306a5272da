"""Carrying on after trouble: backoff, and saying so once instead of a thousand times."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from brigade.checks import check_limit, seconds
from brigade.clock import Clock
from brigade.errors import ConfigError
from brigade.ids import Ids

__all__ = ["Restart", "Trouble", "supervise"]

log = logging.getLogger("brigade.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """How a part of a worker that crashed is restarted: after `base * 2**n` seconds with jitter, at most `maximum`.

    `most` restarts in a row end the worker; None means never. A part that ran for `healthy` seconds counts anew.
    """

    base: float = 0.25
    maximum: float = 30.0
    healthy: float = 60.0
    most: int | None = None

    def __post_init__(self) -> None:
        for name in ("base", "maximum", "healthy"):
            seconds(getattr(self, name), f"Restart.{name}")
        if self.maximum < self.base:
            raise ConfigError(f"Restart.maximum is {self.maximum!r}, less than base {self.base!r}")
        if self.most is not None:
            check_limit(self.most, 1_000_000, "Restart.most")

    def delay(self, tries: int, ids: Ids) -> float:
        """Seconds before try number `tries`, counted from 0."""
        ceiling = min(self.base * 2.0 ** min(tries, 40), self.maximum)
        return ids.uniform(ceiling / 2, ceiling)


class Trouble:
    """One kind of trouble, such as claiming from one queue. Said when it begins and when it is over."""

    def __init__(self, what: str, restart: Restart, ids: Ids, clock: Clock) -> None:
        self._what = what
        self._restart = restart
        self._ids = ids
        self._clock = clock
        self._tries = 0
        self._since = 0.0
        self._said = ""

    def strikes(self, error: BaseException) -> float:
        """Note a failure; returns how many seconds to wait before the next try."""
        text = f"{type(error).__name__}: {error}"
        if not self._tries:
            self._since = self._clock.monotonic()
        kind = type(error).__name__
        if kind != self._said:
            self._said = kind
            log.warning("%s failed (%s); trying again until it works", self._what, text)
        delay = self._restart.delay(self._tries, self._ids)
        self._tries += 1
        return delay

    def forget(self) -> None:
        """Nothing is left that could fail."""
        self._tries, self._said = 0, ""

    def over(self) -> None:
        """It works (again)."""
        if self._tries:
            lasted = self._clock.monotonic() - self._since
            log.warning("%s works again, after %d failures in %.0f s", self._what, self._tries, lasted)
            self._tries, self._said = 0, ""


async def supervise(
    what: str, part: Callable[[], Awaitable[None]], *, restart: Restart, ids: Ids, clock: Clock
) -> None:
    """Run a part of the worker; when it crashes, run it again. Returns when the part does."""
    tries = 0
    while True:
        began = clock.monotonic()
        try:
            return await part()
        except Exception as error:
            if "after shutdown" in str(error):
                log.debug("%s ends with the program, which did not stop its worker", what)
                return None
            if clock.monotonic() - began >= restart.healthy:
                tries = 0
            if restart.most is not None and tries >= restart.most:
                raise
            delay = restart.delay(tries, ids)
            log.exception("%s crashed (%s); it is restarted in %.1f s", what, type(error).__name__, delay)
            tries += 1
            await asyncio.sleep(delay)
