"""A lease between commands: what `dequeue` exports, and how `ack`, `nack`, `extend`, `release` and `state` find it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from brigade.cli.common import when
from brigade.cli.text import ascii_json, quoted
from brigade.errors import MessageNotFound, StaleLease
from brigade.model import Message
from brigade.sync import Queue

__all__ = [
    "PAYLOAD_FILE",
    "PREFIX",
    "STATE_FILE",
    "TEMP_PREFIX",
    "Told",
    "clear_files",
    "lease_options",
    "remove_private",
    "shell",
    "told",
    "variables",
]

PREFIX = "BRIGADE_QUEUE_"
TEMP_PREFIX = "brigade-"
PAYLOAD_FILE, STATE_FILE = "payload", "state.json"
F = TypeVar("F", bound=Callable[..., Any])


def variables(message: Message) -> dict[str, str | None]:
    """What a later command, or a script, needs to know of a claimed message. None: there is no such thing."""
    lease = message.lease
    known: dict[str, str | None] = {
        "NAME": message.queue,
        "MESSAGE_ID": message.ref if "\0" in message.id else message.id,
        "MESSAGE_REF": message.ref,
        "LEASE_TOKEN": lease.token,
        "LEASE_VERSION": str(lease.version),
        "LEASE_EXPIRES_AT": when(lease.expires_at),
        "OWNER": None if "\0" in lease.owner else lease.owner,
        "ATTEMPT": str(message.attempt),
        "MAX_ATTEMPTS": str(message.max_attempts),
        "CORRELATION_ID": None if "\0" in message.correlation_id else message.correlation_id,
        "CONTENT_TYPE": message.content_type,
        "PRIORITY": str(message.priority),
        "GROUP": None if "\0" in (message.group or "") else message.group,
        "ATTRIBUTES": ascii_json(msgspec.json.encode(message.attributes).decode()) if message.attributes else None,
        "ENQUEUED_AT": when(message.enqueued_at),
    }
    return {PREFIX + name: value for name, value in known.items()}


def shell(values: Mapping[str, str | None], *, terminal: bool) -> str:
    """Lines for `eval`: whatever a value holds, it is one word, and what is None is unset."""
    return "".join(
        f"unset {name}\n" if value is None else f"export {name}={quoted(value, terminal=terminal)}\n"
        for name, value in values.items()
    )


class Told:
    """Which message a command is about: from its options, or else from what `dequeue` exported."""

    def __init__(self, options: dict[str, Any]) -> None:
        chosen = any(options[name] is not None for name in ("own_id", "ref", "token"))
        self.queue: str | None = options["queue"] or os.environ.get(f"{PREFIX}NAME")
        self.exported = not chosen
        self.id = self._find(options["own_id"], "MESSAGE_ID")
        self.ref = self._find(options["ref"], "MESSAGE_REF")
        self.token = self._find(options["token"], "LEASE_TOKEN")
        self.version = _number(options["version"], self._find(None, "LEASE_VERSION"))
        self.attempt = _number(None, self._find(None, "ATTEMPT"))
        self.correlation = self._find(None, "CORRELATION_ID")
        self.etag = self._find(None, "STATE_ETAG")

    def _find(self, option: str | None, name: str) -> str | None:
        return option or (os.environ.get(PREFIX + name) or None if self.exported else None)

    @property
    def name(self) -> str:
        """The queue's name."""
        if self.queue is None:
            raise click.UsageError('which queue? Run eval "$(brigade dequeue QUEUE)" first, or say --queue')
        return self.queue

    def message(self, queue: Queue, *, token: bool = True) -> Message:
        """The message as it can be settled. A message that is known by its own id is looked up."""
        if (token and not self.token) or not (self.id or self.ref):
            raise click.UsageError(
                'which message? Run eval "$(brigade dequeue QUEUE)" first, or say '
                + ("--token, and --id or --ref" if token else "--id or --ref")
            )
        ref, attempt = self.ref, self.attempt
        if ref is None:
            assert self.id is not None
            try:
                info = queue.get(self.id)
            except MessageNotFound as error:
                if not token:
                    raise
                raise StaleLease(f"{error}: there is no lease to settle; drop this piece of work") from None
            ref, attempt = info.ref, attempt or info.attempts
        return Message.held(
            queue=queue.name,
            id=self.id or ref,
            ref=ref,
            token=self.token or "",
            version=self.version or 0,
            attempt=attempt or 1,
            correlation_id=self.correlation,
        )


def _number(option: int | None, exported: str | None) -> int | None:
    if option is not None or exported is None:
        return option
    return int(exported) if exported.isascii() and exported.isdigit() else None


def lease_options(*, token: bool = True) -> Callable[[F], F]:
    """The options that name a message; without them it is the one that `dequeue` exported."""

    def decorate(command: F) -> F:
        options = [
            click.option("--queue", metavar="QUEUE", help="The queue. Also BRIGADE_QUEUE_NAME."),
            click.option("--id", "own_id", metavar="ID", help="The message, by its id …"),
            click.option("--ref", metavar="REF", help="… or by its ref, which needs no lookup."),
        ]
        if token:
            options += [
                click.option("--token", metavar="TOKEN", help="The lease's token."),
                click.option("--version", type=int, metavar="N", help="The lease's version."),
            ]
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def told(options: dict[str, Any]) -> Told:
    """Take the options of `lease_options` out of a command's options."""
    return Told({name: options.pop(name, None) for name in ("queue", "own_id", "ref", "token", "version")})


def clear_files(message: Told) -> None:
    """Remove the private files that `dequeue` made for a message which has been given up."""
    given = os.environ.get(f"{PREFIX}TEMP") if message.exported else None
    if given:
        remove_private(Path(given))


def remove_private(folder: Path) -> None:
    """Remove a directory that `dequeue` made, and nothing else."""
    with contextlib.suppress(OSError):
        if folder.name.startswith(TEMP_PREFIX) and stat.S_ISDIR(folder.lstat().st_mode):
            for name in (PAYLOAD_FILE, STATE_FILE):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
