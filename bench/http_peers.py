"""ElasticMQ, the other server of the comparison over HTTP: it speaks the API of Amazon's SQS and keeps all in memory.

It runs on Java, in one process for the whole part: a JVM is at its best only after some thousands of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from bench.clients import Connection, consuming, producing
from bench.measure import MESSAGE
from brigade.errors import ConfigError
from brigade.spark.java import prepare_java
from brigade.testing.servers.running import Started, free_ports, shared

__all__ = ["BATCH", "NAME", "SqsQueue", "missing", "serving", "version", "warm_up"]

NAME = "ElasticMQ"
BATCH = 10
"""The most that SQS takes in a request."""

WARM_UPS, WARM_UP, WARM_UP_CLIENTS = 5, 2_000, 16
"""So many turns of so many requests of each kind before anything is measured, by so many clients: it was still getting
faster after three."""

PACKAGE = Path(__file__).parent / "elasticmq" / "node_modules" / "elasticmq"
FORM = "application/x-www-form-urlencoded"
SETTINGS = """
include classpath("application.conf")
generate-node-address = false
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = relaxed }}
"""
OPENED = ("java.base/java.lang", "java.base/java.util.regex")
"""What it reaches into, as was common in its day, and a newer Java has closed."""

_BODY = f"MessageBody={quote_plus(MESSAGE)}"
_HANDLE = re.compile(rb"<ReceiptHandle>(.*?)</ReceiptHandle>")


def missing() -> list[str]:
    """What is not installed: its rows are left out."""
    return [] if version() else [NAME]


@functools.cache
def version() -> str | None:
    """The version that is installed, or None where it or a Java for it is missing."""
    try:
        found = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))["version"]
        _java()
    except (OSError, ConfigError):
        return None
    return found


def _java() -> Path:
    """The Java that Spark would run on, without a change to this process's environment."""
    return prepare_java(dict(os.environ))


@contextlib.contextmanager
def serving(folder: Path) -> Generator[str, None, None]:
    """ElasticMQ on a free port, and its address."""
    with shared(folder, _command) as address:
        yield address


def _command(data: Path) -> Started:
    (port,) = free_ports(1)
    settings = data / "elasticmq.conf"
    settings.write_text(SETTINGS.format(port=port), encoding="utf-8")
    line = [
        str(_java()),
        *(f"--add-opens={opened}=ALL-UNNAMED" for opened in OPENED),
        f"-Dconfig.file={settings}",
        "-jar",
        str(PACKAGE / f"elasticmq-server-{version()}.jar"),
    ]
    return Started(line, {"endpoint": f"http://127.0.0.1:{port}"}, _first_use)


def _first_use(info: dict[str, Any]) -> None:
    with urllib.request.urlopen(info["endpoint"], data=b"Action=ListQueues", timeout=10) as answer:
        answer.read()


def warm_up(address: str) -> None:
    """Some thousands of requests of every kind that will be measured, the kinds in turn."""
    for turn, batch, consume in itertools.product(range(WARM_UPS), (1, BATCH), (False, True)):
        queue = SqsQueue(f"warm-up-{turn}-{batch}-{consume}")
        work = consuming(queue, batch) if consume else producing(queue, batch)
        asyncio.run(work.timed(address, WARM_UP * batch, WARM_UP_CLIENTS))


@dataclass(frozen=True, slots=True)
class SqsQueue:
    """A queue by the API of SQS: forms go in, XML comes out."""

    name: str

    @property
    def bulk(self) -> int:
        return BATCH

    async def open(self, one: Connection) -> None:
        await one.post("/", f"Action=CreateQueue&QueueName={self.name}".encode(), FORM)

    async def close(self, one: Connection) -> None:
        await self._ask(one, b"Action=DeleteQueue")

    async def enqueue(self, one: Connection, count: int) -> int:
        answer = await self._ask(one, _sending(count))
        # A batch is answered with 200 also where some of it has failed.
        assert count == 1 or answer.count(b"<SendMessageBatchResultEntry>") == count, answer
        return count

    async def consume(self, one: Connection, count: int) -> int:
        wanted = f"Action=ReceiveMessage&MaxNumberOfMessages={count}&VisibilityTimeout=600"
        handles = _HANDLE.findall(await self._ask(one, wanted.encode()))
        assert handles, "the queue is empty before its time"
        answer = await self._ask(one, _deleting([quote_plus(handle) for handle in handles]))
        assert len(handles) == 1 or answer.count(b"<DeleteMessageBatchResultEntry>") == len(handles), answer
        return len(handles)

    async def _ask(self, one: Connection, form: bytes) -> bytes:
        return await one.post(f"/queue/{self.name}", form, FORM)


@functools.cache
def _sending(count: int) -> bytes:
    if count == 1:
        return f"Action=SendMessage&{_BODY}".encode()
    return _batch("SendMessageBatch", [_BODY] * count)


def _deleting(handles: list[str]) -> bytes:
    fields = [f"ReceiptHandle={handle}" for handle in handles]
    return f"Action=DeleteMessage&{fields[0]}".encode() if len(fields) == 1 else _batch("DeleteMessageBatch", fields)


def _batch(action: str, fields: list[str]) -> bytes:
    entries = [
        f"{action}RequestEntry.{place}.Id=m{place}&{action}RequestEntry.{place}.{field}"
        for place, field in enumerate(fields, start=1)
    ]
    return "&".join([f"Action={action}", *entries]).encode()
