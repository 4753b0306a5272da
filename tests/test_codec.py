"""The envelope: what is stored comes back, and whatever is not what was stored is told apart and named."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brigade.codec import Format, is_sound, plain
from brigade.errors import BrigadeError, CannotDecrypt, CorruptObject
from brigade.model import FailureInfo
from brigade.stores.bucket import wire
from brigade.stores.bucket.book import Book, Rules

KEY = "q/tasks/seg/5/a"


def small_ledger() -> wire.Ledger:
    book = Book.fresh(3)
    rules = Rules(max_attempts=4, dead_letter_queue=None, lapse=None, lifo=False)
    book.claim(limit=2, now=1000, expires=31_000, token="t" * 32, owner="worker-a", rules=rules)
    book.ack([0], 2000)
    book.nack(1, now=2000, due=2500, error="boom", reject=False, rules=rules)
    return book.close("nonce")


ENTRY = wire.Entry(b"payload", 7, 1000, "text/plain", "c", {"k": [1, None]}, "g", 5, 6, 7, "mine", None, 3)
FAILED = wire.Entry(
    None, 9, 1000, "text/plain", failure=FailureInfo("q", "i", "failed", "boom", 3, 2000, 1000, 5, 1, 2, "own")
)
PACKED = wire.Packed(b"abbccc", struct.pack("<4I", 1, 2, 0, 3), 1000, "text/plain", 3)
SAMPLES: list[tuple[Format[Any], Any]] = [
    (wire.SEGMENT, wire.Segment("n", [ENTRY, None, FAILED])),
    (wire.SEGMENT, wire.Segment("n", [], void=True)),
    (wire.PLAIN_SEGMENT, wire.Segment("n", [], packed=PACKED)),
    (wire.LEDGER, small_ledger()),
    (wire.LANE, wire.Lane("n", "group", False, [wire.LaneEntry("s", 5, [wire.Spec(1, 2, 3, True)], small_ledger())])),
    (wire.MARKER, wire.Marker("n", "mine", "ref", 1000, "c", True)),
    (wire.PARKED, wire.Parked("n", ["ref"], [FAILED], {0: "target"})),
    (wire.STATE, wire.StateDoc("n", b'{"step":1}', "c")),
]
EACH = pytest.mark.parametrize("form,value", SAMPLES, ids=lambda part: type(part).__name__)


@EACH
def test_what_is_encoded_comes_back(form: Format[Any], value: Any) -> None:
    again = form.decode(form.encode(value), key=KEY)
    assert msgspec.structs.asdict(again) == msgspec.structs.asdict(value)


@EACH
def test_an_object_cut_at_any_length_is_damaged(form: Format[Any], value: Any) -> None:
    data = form.encode(value)
    for length in range(len(data)):
        assert not is_sound(data[:length])
        with pytest.raises(CorruptObject, match=KEY):
            form.decode(data[:length], key=KEY)


@EACH
def test_every_flipped_bit_is_noticed(form: Format[Any], value: Any) -> None:
    data = form.encode(value)
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            assert not is_sound(bytes(flipped))
            with pytest.raises(CorruptObject):
                form.decode(bytes(flipped), key=KEY)


@EACH
def test_bytes_after_the_end_are_noticed(form: Format[Any], value: Any) -> None:
    for tail in (b"\0", b"BG", form.encode(value)):
        with pytest.raises(CorruptObject):
            form.decode(form.encode(value) + tail, key=KEY)


def test_an_object_of_another_kind_is_damaged() -> None:
    for form, value in SAMPLES:
        for other, _ in SAMPLES:
            if {form, other} not in ({form}, {wire.SEGMENT, wire.PLAIN_SEGMENT}):
                with pytest.raises(CorruptObject, match="starts with"):
                    other.decode(form.encode(value), key=KEY)


def test_an_object_of_a_newer_version_is_no_damage_but_asks_for_an_upgrade() -> None:
    newer: Format[wire.Marker] = Format("M", wire.Marker, version=2)
    data = newer.encode(wire.Marker("n", "mine", "ref", 1000, "c"))
    assert is_sound(data)
    with pytest.raises(BrigadeError, match=r"version 2.*upgrade bucket-brigade") as caught:
        wire.MARKER.decode(data, key=KEY)
    assert not isinstance(caught.value, CorruptObject)
    assert KEY in str(caught.value)


def test_an_object_of_an_older_version_is_read() -> None:
    newer: Format[wire.Marker] = Format("M", wire.Marker, version=2)
    assert newer.decode(wire.MARKER.encode(wire.Marker("n", "m", "r", 1, "c")), key=KEY).own_id == "m"


def test_fields_that_were_added_later_have_defaults() -> None:
    """An object written before a field existed is still read: arrays may end early."""

    class Old(msgspec.Struct, array_like=True):
        nonce: str
        own_id: str
        ref: str
        at: int
        correlation: str

    old: Format[Old] = Format("M", Old)
    assert wire.MARKER.decode(old.encode(Old("n", "m", "r", 1, "c")), key=KEY).done is False


def test_contents_that_do_not_fit_are_damaged() -> None:
    class Other(msgspec.Struct, array_like=True):
        nonce: int

    other: Format[Other] = Format("M", Other)
    with pytest.raises(CorruptObject, match="do not fit"):
        wire.MARKER.decode(other.encode(Other(5)), key=KEY)


@pytest.mark.parametrize("data", [b"", b"B", b"BGS\x01\0\0\0", b"\0" * 8, b"{}" * 40, b"BGS\x01" + b"\0" * 60])
def test_garbage_is_damaged(data: bytes) -> None:
    assert not is_sound(data)
    with pytest.raises(CorruptObject, match=r"corrupt/.*restore or delete"):
        wire.SEGMENT.decode(data, key=KEY)


def test_packed_messages_come_back_as_entries() -> None:
    data = wire.SEGMENT.encode(wire.Segment("n", [], source="job", packed=PACKED))
    again = wire.SEGMENT.decode(data, key=KEY)
    assert (again.source, again.packed) == ("job", None)
    assert again.entries == [
        wire.Entry(payload, len(payload), 1000, "text/plain", priority=3) for payload in (b"a", b"bb", b"", b"ccc")
    ]


def test_only_packed_segments_need_a_reader_of_version_2() -> None:
    assert wire.SEGMENT.encode(wire.Segment("n", [ENTRY]))[3] == 1
    assert wire.SEGMENT.encode(wire.Segment("n", [], packed=PACKED))[3] == 2


@pytest.mark.parametrize("sizes", [b"", struct.pack("<I", 5), struct.pack("<2I", 6, 1), b"\6\0\0"])
@pytest.mark.parametrize("form", [wire.SEGMENT, wire.PLAIN_SEGMENT])
def test_packed_payloads_of_another_length_are_damaged(form: Format[wire.Segment], sizes: bytes) -> None:
    packed = wire.Packed(b"abbccc", sizes, 1000, "text/plain")
    with pytest.raises(CorruptObject, match="not as long"):
        form.decode(form.encode(wire.Segment("n", [], packed=packed)), key=KEY)


def test_the_error_says_which_object_and_how() -> None:
    with pytest.raises(CorruptObject) as caught:
        wire.SEGMENT.decode(b"short", key=KEY)
    assert caught.value.key == KEY
    assert "5 bytes" in caught.value.reason


@given(
    payloads=st.lists(st.one_of(st.none(), st.binary(max_size=50)), max_size=8),
    attributes=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.none())),
)
def test_segments_of_any_content_come_back(payloads: list[bytes | None], attributes: dict[str, Any]) -> None:
    entries = [
        None if payload is None else wire.Entry(payload, len(payload), 1, "x/y", attributes=attributes)
        for payload in payloads
    ]
    again = wire.SEGMENT.decode(wire.SEGMENT.encode(wire.Segment("n", entries)), key=KEY)
    assert [entry and (entry.payload, entry.attributes) for entry in again.entries] == [
        entry and (entry.payload, entry.attributes) for entry in entries
    ]


@given(st.binary(max_size=200))
def test_random_bytes_are_never_taken_for_an_object(data: bytes) -> None:
    for form, _ in SAMPLES:
        with pytest.raises((CorruptObject, CannotDecrypt)):
            form.decode(data, key=KEY)


def test_a_batch_costs_few_bytes_in_its_ledger() -> None:
    """A thousand messages claimed and acked together: the record is a few bytes a message."""
    book = Book.fresh(1000)
    rules = Rules(max_attempts=4, dead_letter_queue=None, lapse=None, lifo=False)
    book.claim(limit=1000, now=1000, expires=31_000, token="t" * 32, owner="worker-a", rules=rules)
    book.ack(range(1000), 2000)
    assert len(wire.LEDGER.encode(book.close("nonce"))) < 6000


def test_plain_objects_are_json_that_people_can_read() -> None:
    assert plain({"a": [1]}) == b'{\n  "a": [\n    1\n  ]\n}'
