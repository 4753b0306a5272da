"""Handlers that processes import by name. What to do stands in the message, so that each test says it itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from brigade import Context, Message, Reject, Retry, Snooze


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there is no text")


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("there is no text")


class HalfMade(Retry):
    """An exception of a user who forgot `super().__init__`."""

    def __init__(self) -> None:
        pass


def act(data: Any, attempt: int) -> Any:
    """Do what the message says, at its first attempt; from the second on, return."""
    what = data["do"]
    if attempt > data.get("times", 1):
        return {"attempt": attempt}
    actions: dict[str, Any] = {
        "return": lambda: data.get("value"),
        "raise": lambda: _throw(ValueError(data.get("text", "no good"))),
        "raise many": lambda: _throw(ValueError(chr(data["char"]) * data["count"])),
        "retry": lambda: _throw(Retry("later", delay=data.get("delay"))),
        "reject": lambda: _throw(Reject("never")),
        "reject oddly": lambda: _throw(Reject(NoRepr())),  # pyright: ignore[reportArgumentType]
        "snooze": lambda: _throw(Snooze(data.get("delay", 0))),
        "exit": lambda: sys.exit(7),
        "interrupt": lambda: _throw(KeyboardInterrupt()),
        "cancel": lambda: _throw(asyncio.CancelledError()),
        "unprintable": lambda: _throw(Unprintable()),
        "half made": lambda: _throw(HalfMade()),
        "no json": lambda: {1, 2}.__iter__,
        "no repr": NoRepr,
        "deep": lambda: _deep(500),
    }
    return actions[what]()


def _throw(error: BaseException) -> None:
    raise error


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def doing(message: Message) -> Any:
    """Attempts that are given back are not counted: a snooze is told by a file."""
    if message.data["do"] == "snooze":
        place = Path(message.data["path"])
        if place.exists():
            return "awake"
        place.touch()
    return act(message.data, message.attempt)


async def doing_async(message: Message) -> Any:
    await asyncio.sleep(0)
    return doing(message)


def echo(message: Message) -> Any:
    return message.data


def slow(message: Message) -> Any:
    time.sleep(message.data)
    return "slow"


def tell(message: Message, context: Context) -> int:
    """Append a line, then work for as long as the message says."""
    with Path(message.data["path"]).open("a") as lines:
        lines.write(f"{message.data['n']} {message.attempt} {os.getpid()}\n")
    time.sleep(message.data.get("seconds", 0))
    return message.data["n"]


async def tell_async(message: Message) -> int:
    with Path(message.data["path"]).open("a") as lines:
        lines.write(f"{message.data['n']} {message.attempt} {os.getpid()}\n")
    await asyncio.sleep(message.data.get("seconds", 0))
    return message.data["n"]


def hold_the_gil(message: Message) -> int:
    """Compute in C, without letting go of the interpreter, for as long as the message says."""
    end = time.monotonic() + message.data["seconds"]
    number = 3**400_000
    while time.monotonic() < end:
        number % 1_000_000_007
        number * 3
    return os.getpid()


def hang(message: Message) -> None:
    Path(message.data["path"]).write_text(str(os.getpid()))
    if message.attempt <= message.data.get("times", 1):
        time.sleep(600)


def until_cancelled(message: Message, context: Context) -> str:
    with Path(message.data["path"]).open("a") as lines:
        lines.write(f"begun {message.attempt} {os.getpid()}\n")
    stopped = context.wait_cancelled(60)
    with Path(message.data["path"]).open("a") as lines:
        lines.write(f"{'cancelled' if stopped else 'done'} {message.attempt} {os.getpid()}\n")
    return "late"


async def until_cancelled_async(message: Message) -> str:
    with Path(message.data["path"]).open("a") as lines:
        lines.write(f"begun {message.attempt} {os.getpid()}\n")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        with Path(message.data["path"]).open("a") as lines:
            lines.write(f"cancelled {message.attempt} {os.getpid()}\n")
        raise
    return "late"


def extend(message: Message, context: Context) -> int:
    return context.extend(600).expires_at_ms


def measure(message: Message) -> int:
    with message.open() as payload:
        return sum(len(chunk) for chunk in iter(lambda: payload.read(100_000), b""))


async def measure_async(message: Message) -> int:
    size = 0
    async with message.open() as payload:
        async for chunk in payload:
            size += len(chunk)
    return size


def end_what_it_started(message: Message) -> int:
    sleeper = subprocess.Popen(["sleep", "600"])
    sleeper.terminate()
    try:
        return sleeper.wait(20)
    finally:
        sleeper.kill()


def die(message: Message) -> str:
    if message.attempt <= message.data.get("times", 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def leave(message: Message) -> None:
    os._exit(9)


def ignore_term(message: Message) -> str:
    """What a process group gets is not for handlers: the worker decides."""
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def read_twice(message: Message) -> list[bool]:
    """Two readers, turn by turn, in steps larger than any buffer."""
    with message.open() as first, message.open() as second:
        ones: list[bytes] = []
        twos: list[bytes] = []
        while (one := first.read(300_000)) or ones[-1:] != [b""]:
            ones.append(one)
            twos.append(second.read(300_000))
        expected = bytes(range(250)) * 8000
        return [b"".join(ones) == expected, b"".join(twos) == expected]


def first_byte(message: Message) -> int:
    with message.open() as payload:
        return payload.read(1)[0]
