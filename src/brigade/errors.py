"""Everything Brigade raises on purpose. Each message names the thing, what is wrong and what to do.

BrigadeError
├── ConfigError          an argument or a policy is wrong: fix the named field
├── StaleLease           the token is no longer current: drop the work, somebody else has it
├── MessageNotFound      no message has that id (any more)
├── QueueNotFound        the queue was never created, or was deleted
├── PayloadTooLarge      raise `max_payload` in the policy, or send a reference instead
├── QueuePaused          nothing is handed out until somebody calls `resume()`
├── StoreUnavailable     the store did not answer: try again later
├── PermissionDenied     the store refused: check credentials and rights
├── CorruptObject        stored bytes fail their checksum; the object is set aside under `corrupt/`
└── CannotDecrypt        the keys at hand don't open what is stored: add the key; nothing was changed
"""

from __future__ import annotations

__all__ = [
    "BrigadeError",
    "CannotDecrypt",
    "ConfigError",
    "CorruptObject",
    "MessageNotFound",
    "PayloadTooLarge",
    "PermissionDenied",
    "QueueNotFound",
    "QueuePaused",
    "StaleLease",
    "StoreUnavailable",
]


class BrigadeError(Exception):
    """Base of every error that Brigade raises on purpose."""


class ConfigError(BrigadeError, ValueError):
    """An argument, a name or a policy is wrong. Nothing was written."""


class StaleLease(BrigadeError):
    """The lease token is not the current one. Nothing was changed."""


class MessageNotFound(BrigadeError, LookupError):
    """No message has that id, or it ended longer ago than history is kept."""


class QueueNotFound(BrigadeError, LookupError):
    """The queue was never created, or was deleted."""


class PayloadTooLarge(BrigadeError, ValueError):
    """The payload is larger than the policy's `max_payload`. Nothing became visible."""


class QueuePaused(BrigadeError):
    """A claim got nothing because the queue is paused."""


class StoreUnavailable(BrigadeError):
    """The store did not answer, or kept failing. The operation may be tried again."""


class PermissionDenied(BrigadeError):
    """The store refused the operation: check credentials and rights."""


class CorruptObject(BrigadeError):
    """A stored object is truncated or damaged; `key` names it and `reason` says how."""

    def __init__(
        self, key: str, reason: str, advice: str = "a copy is kept under corrupt/, restore or delete it"
    ) -> None:
        super().__init__(f"object {key!r} is damaged: {reason}; {advice}")
        self.key = key
        self.reason = reason
        self._advice = advice

    def __reduce__(self) -> tuple[type[CorruptObject], tuple[str, str, str]]:
        return CorruptObject, (self.key, self.reason, self._advice)


class CannotDecrypt(BrigadeError):
    """Stored bytes can't be opened with the keys at hand. What they hold stays where it is."""
