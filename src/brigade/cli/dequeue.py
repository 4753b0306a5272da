"""`brigade dequeue`: claims one message and hands it to a shell, or gives it back if that can't be done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import IO, Any

import click
import msgspec

import brigade
from brigade.checks import seconds
from brigade.cli.app import Nothing, Terminated, explained
from brigade.cli.common import check_place, json_option, queue_argument, url_option, when
from brigade.cli.lease import PAYLOAD_FILE, PREFIX, STATE_FILE, TEMP_PREFIX, remove_private, shell, variables
from brigade.cli.text import ascii_json
from brigade.errors import BrigadeError, CorruptObject
from brigade.model import Message
from brigade.policy import MAX_SECONDS
from brigade.queue import AsyncQueue
from brigade.stores.opening import everywhere

__all__ = ["dequeue"]

CHUNK = 256 * 1024


@click.command(short_help="Claim a message and export its lease.")
@queue_argument()
@click.option(
    "--block", type=float, metavar="SECONDS", help="Wait at most this long, 0: not at all. Default: for ever."
)
@click.option("--visibility", type=float, metavar="SECONDS", help="How long the lease lasts. Default: the policy's.")
@click.option("--owner", metavar="NAME", help="Under which name it is held. Default: host, process and a random part.")
@click.option("--stateful", is_flag=True, help="Write the workflow state to a file too, for `brigade state`.")
@click.option(
    "--payload-out", metavar="PATH", help="Where the payload goes, or - for standard output. Default: a private file."
)
@url_option
@json_option
def dequeue(
    queue: str,
    block: float | None,
    visibility: float | None,
    owner: str | None,
    stateful: bool,
    payload_out: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Claim one message of QUEUE, write its payload to a file, and print shell exports for `eval`.

    The exports are BRIGADE_QUEUE_* and BRIGADE_URL: `ack`, `nack`, `extend`, `release` and `state` find the message
    by them. Every value is quoted, whatever the message holds. Waits until there is a message; with --block and
    none by then, ends with 3. When interrupted, or if the payload can't be written, the message is given back. Then
    the only export is `(exit N)`, so that `eval` fails too.

    Without --payload-out the payload is in a private file, which `ack`, `nack` and `release` remove. With
    --payload-out - standard output is the payload and nothing else; the exports go to standard error.

    \b
    Examples:
      eval "$(brigade dequeue tasks)" && process "$BRIGADE_QUEUE_PAYLOAD_PATH" && brigade ack
      brigade dequeue films --payload-out film.mp4 --visibility 600 > lease.env
      brigade dequeue tasks --block 0 --json
    """
    wait = MAX_SECONDS if block is None else seconds(block, "--block")
    if payload_out not in (None, "-"):
        _check_target(Path(payload_out))
    delivery = _Delivery(url, payload_out, stateful=stateful, as_json=as_json)
    try:
        brigade.Hub(url)
        check_place(url)
        asyncio.run(_dequeue(url, queue, {"wait": wait, "owner": owner, "visibility": visibility}, delivery))
    except BaseException as error:
        delivery.tell_failure(error)
        raise


def _check_target(path: Path) -> None:
    """Say what is wrong with a path before anything is claimed for it."""
    if path.is_dir():
        raise click.UsageError(f"--payload-out {path} is a directory; name a file")
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"--payload-out: there is no directory {path.absolute().parent}; make it first")


async def _dequeue(url: str, name: str, options: dict[str, Any], delivery: _Delivery) -> None:
    """From the claim on, every way out but a complete delivery gives the message back."""
    async with _ends_by_sigterm(), brigade.connect_async(url) as hub:
        queue = await hub.queue(name, create=False)
        messages = await queue.claim(**options)
        if not messages:
            raise Nothing(f"queue {name!r} has nothing to hand out now")
        try:
            await delivery.deliver(queue, messages[0])
        except BaseException as error:
            delivery.undo()
            await _see_through(_give_back(queue, messages[0], error))
            if isinstance(error, OSError):
                why = error.strerror or str(error)
                raise click.ClickException(f"what was claimed can't be written ({why}); it was given back") from None
            raise


async def _give_back(queue: AsyncQueue, message: Message, error: BaseException) -> None:
    """A damaged payload is the message's fault and counts as an attempt; everything else does not."""
    with contextlib.suppress(BrigadeError):
        if isinstance(error, CorruptObject):
            await queue.nack(message, error=error)
        else:
            await queue.release(message)


async def _see_through(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work to end, however often this is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


@contextlib.asynccontextmanager
async def _ends_by_sigterm() -> AsyncGenerator[None]:
    """SIGTERM cancels what runs in here, as SIGINT does by itself."""
    task = asyncio.current_task()
    assert task is not None
    terminated = False

    def stop() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        yield
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise Terminated from None


class _Delivery:
    """Where the payload, the workflow state and the exports of one message go."""

    def __init__(self, url: str, payload_out: str | None, *, stateful: bool, as_json: bool) -> None:
        self._url = url
        self._out = payload_out
        self._stateful = stateful
        self._as_json = as_json
        self._made: list[Path] = []
        self._folder: Path | None = None

    async def deliver(self, queue: AsyncQueue, message: Message) -> None:
        values = variables(message)
        payload = await self._payload(message)
        values[f"{PREFIX}PAYLOAD_PATH"] = payload
        values[f"{PREFIX}PAYLOAD_BYTES"] = str(message.size)
        state = etag = path = None
        if self._stateful:
            handle = queue.state(message)
            state = await handle.load()
            etag = handle.etag
            path = self._state(state)
        values[f"{PREFIX}STATE_PATH"] = path
        values[f"{PREFIX}STATE_ETAG"] = etag
        values[f"{PREFIX}TEMP"] = None if self._folder is None else str(self._folder)
        values["BRIGADE_URL"] = everywhere(self._url)
        stream = sys.stderr if self._out == "-" else sys.stdout
        if self._as_json:
            facts = {**_facts(message), "payload_path": payload, "payload_bytes": message.size}
            if self._stateful:
                facts |= {"state": state, "state_path": path, "state_etag": etag}
            text = ascii_json(msgspec.json.encode({**facts, "url": values["BRIGADE_URL"]}).decode()) + "\n"
        else:
            text = shell(values, terminal=stream.isatty())
        stream.buffer.write(text.encode())
        stream.flush()

    def tell_failure(self, error: BaseException) -> None:
        """Make `eval` fail as this command does: an empty word would let it go on with the last message."""
        said = explained(error)
        if said and not self._as_json and self._out != "-" and not sys.stdout.isatty():
            with contextlib.suppress(OSError):
                print(f"(exit {said[1]})", flush=True)

    def undo(self) -> None:
        """Remove what was written."""
        for path in self._made:
            with contextlib.suppress(OSError):
                path.unlink()
        if self._folder is not None:
            remove_private(self._folder)

    async def _payload(self, message: Message) -> str | None:
        if self._out == "-":
            await _copy(message, sys.stdout.buffer)
            sys.stdout.flush()
            return None
        path = self._target()
        with self._opened(path) as file:
            await _copy(message, file)
        return str(path)

    def _target(self) -> Path:
        return self._private(PAYLOAD_FILE) if self._out is None else Path(self._out).absolute()

    def _state(self, value: Any) -> str:
        path = self._private(STATE_FILE)
        with self._opened(path) as file:
            file.write(msgspec.json.encode(value))
        return str(path)

    def _private(self, name: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX))
        return self._folder / name

    def _opened(self, path: Path) -> IO[bytes]:
        """A file that only its owner may read. One that is there is overwritten."""
        if not path.exists():
            self._made.append(path)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


async def _copy(message: Message, file: IO[bytes]) -> None:
    """The payload, piece by piece where it is stored apart."""
    if message.body is not None:
        file.write(message.body)
        return
    async with message.open() as reader:
        while chunk := await reader.read(CHUNK):
            file.write(chunk)


def _facts(message: Message) -> dict[str, Any]:
    lease, failure = message.lease, message.failure
    return {
        "queue": message.queue,
        "id": message.id,
        "ref": message.ref,
        "token": lease.token,
        "version": lease.version,
        "expires_at": when(lease.expires_at),
        "owner": lease.owner,
        "attempt": message.attempt,
        "max_attempts": message.max_attempts,
        "priority": message.priority,
        "group": message.group,
        "correlation_id": message.correlation_id,
        "attributes": dict(message.attributes),
        "content_type": message.content_type,
        "enqueued_at": when(message.enqueued_at),
        "failure": None if failure is None else {"queue": failure.queue, "id": failure.id, "reason": failure.reason},
    }
