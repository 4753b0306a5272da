"""What this process has processed lately: a message that comes back because its ack was lost isn't handled twice."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

__all__ = ["Recent"]

MOST = 10_000
LOOK_EVERY = 1.0


class Recent:
    """Results of messages handled not long ago, by queue and ref. Bounded in time and number; the oldest go first."""

    def __init__(self) -> None:
        self._done: OrderedDict[tuple[str, str], tuple[float, Any]] = OrderedDict()
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._done)

    def remember(self, queue: str, ref: str, result: Any, now: float, ttl: float) -> None:
        done, key = self._done, (queue, ref)
        before = len(done)
        done[key] = (now + ttl, result)
        if len(done) == before:
            done.move_to_end(key)
        elif before >= MOST:
            done.popitem(last=False)
        if now > self._look_at:
            while next(iter(done.values()))[0] < now:
                done.popitem(last=False)
            self._look_at = now + LOOK_EVERY

    def drop_result(self, queue: str, ref: str) -> None:
        """The ack has arrived: the message stays known, its result is needed no more."""
        found = self._done.get((queue, ref))
        if found is not None:
            self._done[queue, ref] = (found[0], None)

    def known(self, queue: str, ref: str, now: float) -> tuple[Any] | None:
        """The result in a tuple, if the message was handled and is still remembered."""
        found = self._done.get((queue, ref))
        if found is None:
            return None
        until, result = found
        if until < now:
            self._done.pop((queue, ref), None)
            return None
        return (result,)

    def forget(self, queue: str) -> None:
        for key in [key for key in list(self._done) if key[0] == queue]:
            self._done.pop(key, None)
