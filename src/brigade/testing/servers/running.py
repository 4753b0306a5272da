"""A server shared by several processes. The first to ask starts it; when the last is gone, however it went, it stops.

Every user holds a shared lock on a file, which the kernel lets go of when the user dies. A keeper process runs the
server and ends it as soon as it can have that lock for itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Command", "Started", "free_ports", "shared"]

READY_WITHIN = 60.0


class Started(NamedTuple):
    """How a server is run: its command line, what users need to know, and a first use, which fails until it is up."""

    line: list[str]
    info: dict[str, Any]
    first_use: Callable[[dict[str, Any]], None]


Command = Callable[[Path], Started]
"""Decides how to run a server that may keep its data in the given folder."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def shared(folder: Path, command: Command) -> Generator[str]:
    """The server's endpoint, while this process uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users.lock").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with (folder / "start.lock").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            info = _running(folder) or _start(folder, command)
        yield info["endpoint"]


def _running(folder: Path) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = json.loads((folder / "info.json").read_text())
        os.kill(info["keeper"], 0)
    except (OSError, ValueError):
        return None
    return info


def _start(folder: Path, command: Command) -> dict[str, Any]:
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    line, info, first_use = command(data)
    with (folder / "log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *line],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end = time.monotonic() + READY_WITHIN
    while True:
        try:
            first_use(info)
            break
        except OSError as error:
            if time.monotonic() > end or keeper.poll() is not None:
                keeper.terminate()
                said = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{line[0]} did not come up ({error}):\n{said}") from error
            time.sleep(0.1)
    info["keeper"] = keeper.pid
    (folder / "info.json").write_text(json.dumps(info))
    _unwatched.append(keeper)
    return info


_unwatched: list[subprocess.Popen[bytes]] = []
"""Keepers end by themselves, after this process; nothing waits for them."""


def keep(folder: Path, line: Sequence[str]) -> None:
    """Run the server until nobody uses it."""
    server = subprocess.Popen(line)
    signal.signal(signal.SIGTERM, _leave)
    try:
        with (folder / "users.lock").open("w") as users:
            while server.poll() is None:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.2)
            (folder / "info.json").unlink(missing_ok=True)
            _end(server)
            shutil.rmtree(folder / "data", ignore_errors=True)
    finally:
        _end(server)


def _leave(_signal: int, _frame: object) -> None:
    sys.exit(1)


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGKILL)
        server.wait()


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2:])
