"""Workflow state: one JSON value beside a message, changed by compare-and-swap."""

from __future__ import annotations

from brigade.blobs import Create, Swap
from brigade.errors import StaleLease
from brigade.stores.bucket.steps import Env, Lost, Proto, read, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import STATE, StateDoc

__all__ = ["load_state", "save_state"]


def load_state(env: Env, view: QueueView, ref: str) -> Proto[tuple[bytes, str] | None]:
    """The value as JSON and its etag, or None where nothing was saved."""
    found = yield from read(env, STATE, view.keys.state(ref))
    return None if found is None else (found[0].value, found[1])


def save_state(env: Env, view: QueueView, ref: str, value: bytes, etag: str | None, correlation: str) -> Proto[str]:
    """Store a value over the one that was read under `etag` (None: there was none); returns the new etag."""
    key = view.keys.state(ref)
    body = STATE.encode(StateDoc(env.ids.nonce(), value, correlation))
    answer = yield from write(env, Create(key, body) if etag is None else Swap(key, body, etag))
    if isinstance(answer, Lost):
        raise StaleLease(
            f"the workflow state of message {ref} was changed by somebody else; load() it and decide again"
        )
    return answer
