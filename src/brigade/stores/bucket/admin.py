"""Queues as a whole: policy, pause and resume, purge, delete, and the list of queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from brigade.blobs import Create, Swap
from brigade.codec import plain
from brigade.crypto.places import sealed_queue
from brigade.errors import ConfigError, CorruptObject, QueueNotFound
from brigade.policy import QueuePolicy, decode_policy, encode_policy
from brigade.stores.bucket.accounts import Account, after_loss, commit, create_account, open_account, read_segment
from brigade.stores.bucket.book import Book
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import (
    Env,
    Lost,
    Proto,
    delete,
    get,
    list_all,
    list_page,
    read,
    reread,
    side_by_side,
    write,
)
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import PARKED, VOID_SIZE, Parked

__all__ = [
    "default_policy_body",
    "delete_queue",
    "ensure_queue",
    "list_queues",
    "load_policy",
    "pause",
    "purge",
    "resume",
]


def _policy_body(env: Env, policy: QueuePolicy, sealed: Mapping[str, str] | None = None) -> bytes:
    """`sealed` is for queues under encryption: whoever opens the queue sees by it whether they have its keys."""
    body = {"format": 1, "nonce": env.ids.nonce(), "created_at": env.now(), "policy": encode_policy(policy)}
    return plain({**body, "sealed": sealed} if sealed else body)


def default_policy_body(env: Env, keys: QueueKeys) -> bytes:
    return _policy_body(env, QueuePolicy(), env.fields.vouch(keys.queue, {}) if env.fields else None)


def _checked(env: Env, keys: QueueKeys, body: bytes) -> tuple[QueuePolicy, dict[str, str], bool]:
    """A stored policy, what is known of the queue's keys, and whether that is news to the queue."""
    policy, known = _decode(body, keys.policy)
    if env.fields is None:
        if known:
            raise sealed_queue(keys.queue)
        return policy, known, False
    more = env.fields.vouch(keys.queue, known)
    return policy, more or known, more is not None


def _decode(body: bytes, key: str) -> tuple[QueuePolicy, dict[str, str]]:
    try:
        value: Any = msgspec.json.decode(body)
        return decode_policy(value["policy"], source=key), dict(value.get("sealed") or {})
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{key} is not a policy ({error}); restore it, or delete the queue") from None


def load_policy(env: Env, keys: QueueKeys) -> Proto[QueuePolicy]:
    """The stored policy; QueueNotFound where the queue doesn't exist, CannotDecrypt where its keys are missing."""
    found = yield from get(keys.policy)
    while found is not None:
        policy, sealed, news = _checked(env, keys, found.body)
        if not news:
            return policy
        answer = yield from write(env, Swap(keys.policy, _policy_body(env, policy, sealed), found.etag))
        if not isinstance(answer, Lost):
            return policy
        found = answer.current
    raise QueueNotFound(f"queue {keys.queue!r} does not exist; hub.queue({keys.queue!r}) creates it")


def ensure_queue(env: Env, keys: QueueKeys, policy: QueuePolicy | None, *, replace: bool) -> Proto[QueuePolicy]:
    """Create the queue, or check that its stored policy is the given one; `replace` stores the given one."""
    found = yield from get(keys.policy)
    while True:
        if found is None:
            wanted = policy or QueuePolicy()
            sealed = env.fields.vouch(keys.queue, {}) if env.fields else None
            answer = yield from write(env, Create(keys.policy, _policy_body(env, wanted, sealed)))
            if not isinstance(answer, Lost):
                return wanted
            found = answer.current
            continue
        stored, sealed, news = _checked(env, keys, found.body)
        same = policy is None or policy == stored
        if same and not news:
            return stored
        if policy is not None and not same and not replace:
            names = ", ".join(
                f"{name} ({getattr(stored, name)!r} is stored, {getattr(policy, name)!r} was given)"
                for name in stored.differences(policy)
            )
            raise ConfigError(
                f"queue {keys.queue!r} exists with another policy: {names}; leave policy out to use the stored one, "
                "or pass replace=True to change it for everybody"
            )
        wanted = policy or stored
        answer = yield from write(env, Swap(keys.policy, _policy_body(env, wanted, sealed), found.etag))
        if not isinstance(answer, Lost):
            return wanted
        found = answer.current


def list_queues() -> Proto[list[str]]:
    """The names of all queues: one request for each, skipping over their contents."""
    names: list[str] = []
    after = ""
    while True:
        page = yield from list_page("q/", after, 1)
        if not page.items:
            return names
        name = page.items[0].key.split("/", 2)[1]
        found = yield from get(QueueKeys(name).policy)
        if found is not None:
            names.append(name)
        after = f"q/{name}/~"


def pause(env: Env, view: QueueView) -> Proto[None]:
    """Hand nothing out until `resume`. The flag is part of every candidate listing."""
    yield from write(env, Create(view.keys.paused_flag, env.ids.nonce().encode()))
    view.paused = True


def resume(view: QueueView) -> Proto[None]:
    yield from delete([view.keys.paused_flag])
    view.paused = False
    view.stale()


def purge(env: Env, view: QueueView, *, failed_only: bool = False) -> Proto[int]:
    """Drop every message that is not leased, and every parked failure, or only those; returns how many.

    A message is purged by a swap of its account, as everything else is: a purge and a claim that meet have
    one winner.
    """
    waiting = 0 if failed_only else (yield from _purge_waiting(env, view))
    parked = yield from list_all(view.keys.failed)
    counts = yield from side_by_side([_purge_parked(env, item.key) for item in parked])
    view.stale()
    return waiting + sum(counts)


def _purge_waiting(env: Env, view: QueueView) -> Proto[int]:
    items = yield from list_all(view.keys.segments)
    names = [name for item in items if item.size > VOID_SIZE and (name := view.keys.parse(item.key)) is not None]
    counts = yield from side_by_side([_purge_segment(env, view, name) for name in names])
    total = sum(counts)
    for item in (yield from list_all(view.keys.lanes)):
        total += yield from _purge_lane(env, view, item.key[len(view.keys.lanes) :])
    return total


def _purge_segment(env: Env, view: QueueView, name: SegmentName) -> Proto[int]:
    account = yield from open_account(env, view, name, cached=False)
    if account is None:
        specs = None
        if name.special or name.derived:
            entries = yield from read_segment(env, view, name)
            if entries is None:
                return 0
            specs = specs_of(entries)
        book = Book.fresh(name.size, specs)
        count = book.purge()
        book.finalize()
        answer = yield from create_account(env, view, name, book)
        if not isinstance(answer, Lost):
            return count
        account = yield from after_loss(env, view, name, answer)
    return (yield from _purge_account(env, view, account))


def _purge_account(env: Env, view: QueueView, account: Account | None) -> Proto[int]:
    while account is not None:
        book = Book(account.ledger)
        count = book.purge()
        book.finalize()
        if not book.changed:
            return 0
        answer = yield from commit(env, view, account, book)
        if not isinstance(answer, Lost):
            return count
        account = yield from after_loss(env, view, account.name, answer)
    return 0


def _purge_lane(env: Env, view: QueueView, lane: str) -> Proto[int]:
    items = yield from list_all(f"{view.keys.lane_segments}{lane}/")
    total = 0
    for item in items:
        name = view.keys.parse(item.key)
        if name is not None:
            account = yield from open_account(env, view, name, cached=False)
            total += yield from _purge_account(env, view, account)
    return total


def _purge_parked(env: Env, key: str) -> Proto[int]:
    try:
        found = yield from read(env, PARKED, key)
    except CorruptObject:
        yield from delete([key])
        return 0
    while found is not None:
        parked, etag = found
        count = sum(entry is not None and place not in parked.moving for place, entry in enumerate(parked.entries))
        kept = [entry if place in parked.moving else None for place, entry in enumerate(parked.entries)]
        emptied = Parked(env.ids.nonce(), parked.refs, kept, parked.moving)
        answer = yield from write(env, Swap(key, PARKED.encode(emptied), etag))
        if not isinstance(answer, Lost):
            return count
        found = yield from reread(env, PARKED, key, answer.current)
    return 0


def delete_queue(view: QueueView) -> Proto[None]:
    """Remove a queue and everything in it: policy first, so that nobody finds a queue half gone."""
    yield from delete([view.keys.policy])
    while True:
        page = yield from list_page(view.keys.root)
        if not page.items:
            return
        yield from delete([item.key for item in page.items])
