"""How a handler is told to stop: an event that costs nothing until somebody waits for it."""

from __future__ import annotations

import threading

__all__ = ["StopSign"]


class StopSign:
    """Set once, from any thread. Most handlers end without ever looking, so the event itself is made by who waits."""

    __slots__ = ("_event", "_set")

    def __init__(self) -> None:
        self._set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if (event := self._event) is not None:
            event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`, less once it is set; returns whether it is."""
        # Made first, looked at second: whoever sets it in between finds the event, or is seen.
        if self._event is None:
            self._event = threading.Event()
        return self._set or self._event.wait(seconds)
