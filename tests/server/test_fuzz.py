"""What comes over the wire, by chance: bodies, names, multipart in any pieces. It is read, or clearly refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brigade import ConfigError
from brigade.names import check_queue_name
from brigade.server.call import InvalidRequest, check_ref, decode
from brigade.server.multipart import Multipart
from brigade.server.routes import ROUTES
from brigade.stores.bucket.keys import QueueKeys
from brigade.stores.remote import wire
from brigade.stores.remote.faults import CODES, error_of, fault_of

TAKEN = sorted({route.takes for route in ROUTES if route.takes is not None} | {wire.Enqueue}, key=lambda k: k.__name__)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: kind.__name__)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_json_is_read_or_refused(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    """What is read comes out as it went in."""
    names = st.sampled_from([*kind.__struct_fields__, "other"])
    body = msgspec.json.encode(data.draw(st.dictionaries(names, values, max_size=6)))
    try:
        made = decode(body, kind)
    except InvalidRequest:
        return
    assert msgspec.json.decode(msgspec.json.encode(made), type=kind) == made


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TAKEN), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(kind: type[msgspec.Struct], body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode(body, kind)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=120) | st.from_regex(r"[./\\%A-Za-z0-9_-]{1,20}", fullmatch=True))
@example("..")
@example("a/../b")
@example("a\0b")
@example("a\n")
def test_no_name_leads_out_of_its_queue(name: str) -> None:
    try:
        check_queue_name(name)
    except ConfigError:
        pass
    else:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name)
        assert QueueKeys(name).segments.startswith(f"q/{name}/")
    try:
        check_ref(name)
    except InvalidRequest:
        return
    assert "/" not in name
    assert ".." not in name


@given(st.sampled_from(CODES), st.text(min_size=1, max_size=50))
def test_every_error_comes_out_as_it_went_in(known: Any, text: str) -> None:
    error = error_of(wire.Fault(code=known[2], message=text, kind=known[3]))
    assert type(error) is known[0] or known[2] == "corrupt_object"
    status, fault = fault_of(error)
    assert (status, fault.code) == (known[1], known[2])


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.binary(max_size=300) | st.sampled_from([b"\r\n--", b"--x", b"\r\n--bound", b"\r\n"]), max_size=4),
    sizes=st.lists(st.integers(1, 60), min_size=1),
)
def test_a_multipart_body_is_read_in_whatever_pieces_it_comes(parts: list[bytes], sizes: list[int]) -> None:
    mark = "boundary-7"
    if any(b"\r\n--boundary-7" in b"\r\n" + part for part in parts):
        return
    body = b"preamble\r\n" if parts else b""
    for n, part in enumerate(parts):
        body += f'--{mark}\r\nContent-Disposition: form-data; name="p{n}"\r\nX-N: {n}\r\n\r\n'.encode() + part + b"\r\n"
    body += f"--{mark}--\r\nepilogue".encode()
    assert asyncio.run(_read(f"multipart/form-data; boundary={mark}", body, sizes)) == list(enumerate(parts))


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=300), tail=st.binary(max_size=100), sizes=st.lists(st.integers(1, 60), min_size=1))
def test_a_broken_multipart_body_is_refused(body: bytes, tail: bytes, sizes: list[int]) -> None:
    for whole in (body, b"--x\r\n" + body, b"--x\r\nA: b\r\n\r\n" + body + b"\r\n--x" + tail):
        with contextlib.suppress(InvalidRequest):
            asyncio.run(_read("multipart/mixed; boundary=x", whole, sizes))


async def _read(content_type: str, body: bytes, sizes: list[int]) -> list[tuple[int, bytes]]:
    async def chunks() -> AsyncIterator[bytes]:
        place = turn = 0
        while place < len(body):
            size = sizes[turn % len(sizes)]
            yield body[place : place + size]
            place, turn = place + size, turn + 1

    made, found = Multipart(content_type, chunks()), list[tuple[int, bytes]]()
    while (headers := await made.next()) is not None:
        number = headers.get("x-n", "-1")
        found.append((int(number) if number.isdecimal() else -1, b"".join([chunk async for chunk in made.body()])))
    return found
