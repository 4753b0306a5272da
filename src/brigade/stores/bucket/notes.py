"""Notes beside a queue: written once, read by whoever knows the name, dropped when they are no longer needed."""

from __future__ import annotations

from brigade.blobs import Create
from brigade.stores.bucket.accounts import STAGED_FOR
from brigade.stores.bucket.steps import Env, Lost, Proto, delete, list_all, read, reread, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import NOTE, Note

__all__ = ["drop_note", "read_note", "sweep_notes", "write_note"]


def write_note(env: Env, view: QueueView, name: str, value: bytes) -> Proto[bytes]:
    """Write a note unless there is one; returns the one that is there."""
    key = view.keys.note(name)
    body = NOTE.encode(Note(env.ids.nonce(), value))
    while True:
        answer = yield from write(env, Create(key, body))
        if not isinstance(answer, Lost):
            return value
        found = yield from reread(env, NOTE, key, answer.current)
        if found is not None:
            return found[0].value


def read_note(env: Env, view: QueueView, name: str) -> Proto[bytes | None]:
    found = yield from read(env, NOTE, view.keys.note(name))
    return None if found is None else found[0].value


def drop_note(view: QueueView, name: str) -> Proto[None]:
    yield from delete([view.keys.note(name)])


def sweep_notes(env: Env, view: QueueView) -> Proto[int]:
    """Remove what nobody has come back for."""
    old = [item.key for item in (yield from list_all(view.keys.notes)) if item.modified + STAGED_FOR <= env.now()]
    yield from delete(old)
    return len(old)
