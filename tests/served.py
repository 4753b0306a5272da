"""A server on a real port: in a thread of this process, or as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from brigade.server.serve import ServerConfig, Serving, new_loop

BRIGADE = Path(sys.executable).parent / "brigade"


@contextlib.contextmanager
def served(url: str, **config: Any) -> Generator[Serving, None, None]:
    """A server on its own event loop in a thread."""
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def make() -> Serving:
        return await Serving(ServerConfig(**{"url": url, "port": 0, **config})).__aenter__()

    try:
        serving = call(make())
        try:
            yield serving
        finally:
            call(serving.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def server_process(
    url: str, *arguments: str, port: int = 0, command: Sequence[str | Path] = (BRIGADE,)
) -> Generator[tuple[subprocess.Popen[str], str], None, None]:
    """`brigade serve`, and its address."""
    process = subprocess.Popen(
        [*command, "serve", "--url", url, "--port", str(port), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("BRIGADE_")},
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"at (http://\S+)", line)
        assert found, line + process.stderr.read()
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()
