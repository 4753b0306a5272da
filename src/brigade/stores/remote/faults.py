"""Errors on the wire: each of Brigade's errors has a code and a status, and comes out as what it went in."""

from __future__ import annotations

from brigade.errors import (
    BrigadeError,
    CannotDecrypt,
    ConfigError,
    CorruptObject,
    MessageNotFound,
    PayloadTooLarge,
    PermissionDenied,
    QueueNotFound,
    QueuePaused,
    StaleLease,
    StoreUnavailable,
)
from brigade.stores.remote.wire import Fault

__all__ = ["CODES", "OutcomeUnknown", "Throttled", "Unauthenticated", "error_of", "fault_of"]


class Throttled(StoreUnavailable):
    """The server has more to do than it may take on: come back after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OutcomeUnknown(StoreUnavailable):
    """The first try of a request may have been carried out, and nobody can say whether it was."""


class Unauthenticated(PermissionDenied):
    """The server doesn't know who asks: there is no token, or none that it knows."""


CODES: tuple[tuple[type[BrigadeError], int, str, str | None], ...] = (
    (StaleLease, 409, "queue_message_lease_mismatch", None),
    (QueuePaused, 409, "queue_paused", None),
    (MessageNotFound, 404, "not_found", "message"),
    (QueueNotFound, 404, "not_found", "queue"),
    (PayloadTooLarge, 413, "payload_too_large", None),
    (ConfigError, 400, "invalid_request", None),
    (Unauthenticated, 401, "unauthenticated", None),
    (PermissionDenied, 403, "permission_denied", None),
    (Throttled, 429, "throttled", None),
    (OutcomeUnknown, 409, "outcome_unknown", None),
    (StoreUnavailable, 503, "unavailable", None),
    (CorruptObject, 500, "corrupt_object", None),
    (CannotDecrypt, 500, "cannot_decrypt", None),
    (BrigadeError, 500, "internal", None),
)
"""Error, status, code and kind. The first line that fits counts."""


def fault_of(error: BrigadeError) -> tuple[int, Fault]:
    """The status and the fault that tell of an error."""
    for known, status, code, kind in CODES:
        if isinstance(error, known):
            fault = Fault(code=code, message=str(error), kind=kind, field=getattr(error, "field", None))
            if isinstance(error, Throttled):
                fault.retry_after = error.retry_after
            if isinstance(error, CorruptObject):
                fault.key, fault.reason = error.key, error.reason
            return status, fault
    raise AssertionError(f"{type(error).__name__} has no code")


def error_of(fault: Fault) -> BrigadeError:
    """The error that a fault tells of."""
    if fault.code == "throttled":
        return Throttled(fault.message, fault.retry_after or 1.0)
    if fault.code == "corrupt_object":
        return CorruptObject(fault.key or "", fault.reason or fault.message)
    for known, _, code, kind in CODES:
        if code == fault.code and kind == fault.kind:
            return known(fault.message)
    return BrigadeError(f"{fault.code}: {fault.message}")
