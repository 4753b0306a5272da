"""A worker as a program: `python -m worker_main JSON`. Every event is a line, the last one tells how it ended."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import brigade
from brigade import Event, Worker

_saying = threading.Lock()


def say(*words: object) -> None:
    """A line, whole, whichever thread it comes from."""
    with _saying:
        print(*words, flush=True)


def show(event: Event) -> None:
    say(event.name, event.id, json.dumps(event.fields, default=str))


def handler_of(given: dict[str, Any]) -> Any:
    module, _, name = given["handler"].partition(":")
    return getattr(import_module(module), name)


def blocking(given: dict[str, Any]) -> None:
    with brigade.connect(given["url"], fsync=False) as hub:
        hub.on("*", show)
        worker = Worker(hub.queue(given["queue"]), handler_of(given), **given["options"])
        if given["how"].startswith("leave "):
            begun = Path(given["how"].removeprefix("leave "))
            worker.start()
            while not begun.exists():
                time.sleep(0.01)
            say("left")
            raise SystemExit(3)
        worker.run(until_empty=given["how"] == "until_empty")
        status = worker.status()
        say("status", json.dumps({name: getattr(status, name) for name in status.__struct_fields__}))


async def serving(given: dict[str, Any]) -> None:
    async with brigade.connect_async(given["url"], fsync=False) as hub:
        hub.on("*", show)
        worker = Worker(await hub.queue(given["queue"]), handler_of(given), **given["options"])
        await worker.serve()


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["how"] == "serve":
        asyncio.run(serving(given))
    else:
        blocking(given)
    say("end")


if __name__ == "__main__":
    main()
