"""A worker as a program: `python -m worker_main JSON`. Every event is a line, the last one tells how it ended."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from importlib import import_module
from typing import Any

import brigade
from brigade import Event, Worker


def show(event: Event) -> None:
    print(event.name, event.id, json.dumps(event.fields, default=str), flush=True)


def handler_of(given: dict[str, Any]) -> Any:
    module, _, name = given["handler"].partition(":")
    return getattr(import_module(module), name)


def blocking(given: dict[str, Any]) -> None:
    with brigade.connect(given["url"], fsync=False) as hub:
        hub.on("*", show)
        worker = Worker(hub.queue(given["queue"]), handler_of(given), **given["options"])
        if given["how"] == "leave":
            begun = threading.Event()
            hub.on("message-processing", lambda _: begun.set())
            worker.start()
            begun.wait(60)
            print("left", flush=True)
            raise SystemExit(3)
        worker.run(until_empty=given["how"] == "until_empty")
        print(
            "status", json.dumps({name: getattr(worker.status(), name) for name in worker.status().__struct_fields__})
        )


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
    print("end", flush=True)


if __name__ == "__main__":
    main()
