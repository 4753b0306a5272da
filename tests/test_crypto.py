"""Sealing and opening, away from any store: what was sealed comes out again, and nothing else ever does."""

from __future__ import annotations

import base64
import itertools
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brigade.crypto.fields import Fields
from brigade.crypto.keys import Keys, KeySource, check_reference, new_key, write_keys
from brigade.crypto.streams import FRAME, StreamOpener, StreamSealer
from brigade.crypto.vault import Vault, Wrapper, key_id_of
from brigade.errors import CannotDecrypt, ConfigError

ONE, TWO = (base64.b64encode(bytes((number,)) * 32).decode() for number in (1, 2))
TAMPERED = st.integers(0, 10_000)


class Given(KeySource):
    """Keys that a test holds in its hand."""

    def __init__(self, text: str) -> None:
        super().__init__("env:GIVEN")
        self.text = text

    def read(self) -> Keys:
        return Keys.parse(self.text, "the test")


def vault(text: str = f"one:{ONE}") -> Vault:
    made = Vault(Given(text))
    made.unlock()
    return made


KNOWN = vault()


def test_data_keys_are_wrapped_as_xaes_256_gcm_specifies() -> None:
    nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX"
    sealed = Wrapper(b"\1" * 32).seal(nonce, b"XAES-256-GCM", b"")
    assert sealed.hex() == "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"
    sealed = Wrapper(b"\3" * 32).seal(nonce, b"XAES-256-GCM", b"c2sp.org/XAES-256-GCM")
    assert sealed.hex() == "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"


@given(st.binary(max_size=2000), st.text(max_size=60), st.booleans())
def test_what_was_sealed_for_a_place_opens_there(data: bytes, place: str, carry: bool) -> None:
    sealed = KNOWN.seal(data, place, carry=carry)
    assert KNOWN.open(sealed, place) == data
    assert key_id_of(sealed) == "one"


@given(st.binary(max_size=300), st.text(min_size=1, max_size=20), st.text(max_size=20), st.booleans())
def test_what_was_sealed_for_one_place_opens_in_no_other(data: bytes, place: str, other: str, carry: bool) -> None:
    sealed = KNOWN.seal(data, place, carry=carry)
    if place != other:
        with pytest.raises(CannotDecrypt):
            KNOWN.open(sealed, other)


@given(st.binary(min_size=1, max_size=200), TAMPERED, st.integers(1, 255), st.booleans())
def test_a_changed_byte_is_noticed_wherever_it_is(data: bytes, at: int, change: int, carry: bool) -> None:
    sealed = bytearray(KNOWN.seal(data, "place", carry=carry))
    sealed[at % len(sealed)] ^= change
    with pytest.raises(CannotDecrypt):
        KNOWN.open(bytes(sealed), "place")


@given(st.binary(min_size=1, max_size=200), TAMPERED, st.booleans())
def test_a_value_cut_short_is_noticed_wherever_it_is_cut(data: bytes, at: int, carry: bool) -> None:
    sealed = KNOWN.seal(data, "place", carry=carry)
    with pytest.raises(CannotDecrypt):
        KNOWN.open(sealed[: at % len(sealed)], "place")


@given(st.binary(max_size=400))
def test_bytes_that_nobody_sealed_do_not_open(data: bytes) -> None:
    for attempt in (data, b"BX" + data, b"BX\1\3one" + data):
        with pytest.raises(CannotDecrypt):
            KNOWN.open(attempt, "place")
        with pytest.raises(CannotDecrypt):
            KNOWN.open_moved(attempt, "place")


def test_many_values_under_one_data_key_are_all_different() -> None:
    key = KNOWN.data_key()
    sealed = [key.seal(b"same", "place") for _ in range(100)]
    assert len({one[len(key.head) :] for one in sealed}) == 100
    assert {KNOWN.open(one, "place") for one in sealed} == {b"same"}


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)] or [data]


def _sealed(data: bytes, cuts: list[int], binding: int = 7) -> bytes:
    sealer = StreamSealer(KNOWN, binding)
    return b"".join(sealer.update(piece) for piece in _pieces(data, cuts)) + sealer.finish()


def _opened(sealed: bytes, cuts: list[int], binding: int = 7) -> bytes:
    opener = StreamOpener(KNOWN, binding, "the payload")
    return b"".join(opener.update(piece) for piece in _pieces(sealed, cuts)) + opener.finish()


SIZES = st.one_of(st.integers(0, 300), st.sampled_from([FRAME - 1, FRAME, FRAME + 1, 2 * FRAME, 3 * FRAME + 5]))
CUTS = st.lists(st.integers(0, 10**6), max_size=6)


@given(SIZES, CUTS, CUTS)
@settings(max_examples=60, deadline=None)
def test_a_stream_comes_out_as_it_went_in_however_it_is_cut(size: int, going: list[int], coming: list[int]) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert _opened(_sealed(data, going), coming) == data


@given(SIZES, st.integers(0, 10**6), CUTS)
@settings(max_examples=60, deadline=None)
def test_a_stream_cut_short_is_noticed_wherever_it_is_cut(size: int, at: int, cuts: list[int]) -> None:
    sealed = _sealed(bytes(size), [])
    with pytest.raises(CannotDecrypt):
        _opened(sealed[: at % len(sealed)], cuts)


def _frames(sealed: bytes) -> tuple[bytes, list[bytes]]:
    head = 4 + sealed[3] + 24 + 48
    frame = FRAME + 16
    return sealed[:head], [sealed[at : at + frame] for at in range(head, len(sealed), frame)]


@pytest.mark.parametrize(
    "change",
    [
        lambda frames: [frames[1], frames[0], *frames[2:]],
        lambda frames: [frames[0], *frames[2:]],
        lambda frames: [frames[0], frames[0], *frames[1:]],
        lambda frames: frames[:-1],
        lambda frames: [*frames, frames[-1]],
    ],
    ids=["swapped", "missing", "repeated", "without the last", "with more after the end"],
)
def test_frames_that_are_not_in_their_place_are_noticed(change: Callable[[list[bytes]], list[bytes]]) -> None:
    head, frames = _frames(_sealed(bytes(3 * FRAME + 5), []))
    with pytest.raises(CannotDecrypt):
        _opened(head + b"".join(change(frames)), [])


def test_a_stream_does_not_stand_in_for_another() -> None:
    with pytest.raises(CannotDecrypt, match="swapped"):
        _opened(_sealed(b"mine", [], binding=7), [], binding=8)


@given(st.text(), st.text(max_size=30))
def test_texts_and_json_come_out_as_they_went_in(text: str, place: str) -> None:
    fields = Fields(KNOWN)
    place = f"error\0{place}"
    sealed = fields.seal_text(text, place)
    assert fields.open_text(sealed, place) == text
    assert sealed.isascii()
    assert fields.open_json(fields.seal_json({"a": [text]}, place), place) == {"a": [text]}
    assert fields.open_text(sealed, "error\0elsewhere\0", moved=True) == text
    with pytest.raises(CannotDecrypt):
        fields.open_text(sealed, "result\0elsewhere\0", moved=True)


def test_what_was_never_sealed_is_read_as_it_is() -> None:
    fields = Fields(KNOWN)
    for text in ("", "plain", "sealed:", "sealed:not base64", "sealed:AAAA"):
        assert fields.open_text(text, "error\0q\0r") == text
    assert fields.open_json({"a": 1}, "attributes\0q\0r") == {"a": 1}


def test_a_key_that_is_not_there_is_named_and_one_added_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Given(f"two:{TWO}")
    late = Vault(source)
    sealed = KNOWN.seal(b"data", "place")
    with pytest.raises(CannotDecrypt, match=r"'one'.*add that key"):
        late.open(sealed, "place")
    source.text += f"\none:{ONE}"
    monkeypatch.setattr("brigade.crypto.vault.REREAD_EVERY", 0)
    assert late.open(sealed, "place") == b"data"


def test_another_key_under_the_same_id_is_told_from_a_missing_one() -> None:
    with pytest.raises(CannotDecrypt, match="another key than the one"):
        vault(f"one:{TWO}").open(KNOWN.seal(b"data", "place"), "place")


def test_after_a_rotation_the_new_key_seals_and_the_old_one_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Given(f"one:{ONE}")
    turning = Vault(source)
    before = turning.seal(b"before", "place")
    source.text = f"two:{TWO},one:{ONE}"
    monkeypatch.setattr("brigade.crypto.vault.LOOK_EVERY", -1)
    after = turning.seal(b"after", "place")
    assert (key_id_of(before), key_id_of(after)) == ("one", "two")
    assert turning.open(before, "place") == b"before"
    source.text = "broken"
    assert turning.open(turning.seal(b"still", "place"), "place") == b"still"


def test_keys_never_show_themselves() -> None:
    keys = Keys.parse(f"one:{ONE}", "the test")
    for text in (repr(keys), repr(KNOWN), repr(Given(f"one:{ONE}")), keys.fingerprint("one")):
        assert ONE not in text
        assert repr(b"\1" * 32) not in text


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "holds no key"),
        ("# a comment alone", "holds no key"),
        (ONE, "not of the form id:base64"),
        ("one:%%%", "not base64"),
        ("one:c2hvcnQ=", "has 5 bytes and needs 32"),
        (f"one:{ONE},one:{TWO}", "two different keys"),
        (f"bad id:{ONE}", "not of the form"),
    ],
)
def test_bad_keys_are_refused_without_being_repeated(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Keys.parse(text, "the test")
    assert ONE not in str(caught.value)


def test_keys_come_from_the_environment_a_file_or_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEYS", f"one:{ONE}, two:{TWO}")
    (tmp_path / "keys").write_text(f"# ours\none:{ONE}\n\ntwo:{TWO}  # old\n")
    for reference in ("env:SOME_KEYS", f"file:{tmp_path}/keys", f"command:cat '{tmp_path}/keys'"):
        keys = KeySource(reference).read()
        assert (keys.primary, list(keys.by_id)) == ("one", ["one", "two"])


@pytest.mark.parametrize(
    "reference, said",
    [
        ("env:NO_SUCH_VARIABLE", "not set"),
        ("file:/no/such/file", "No such file"),
        ("command:false --password=hunter2", "exit code 1"),
        ("command:/no/such/program --password=hunter2", "could not be run"),
        ("command:true --password=hunter2", "holds no key"),
        ("command:'", "could not be run"),
    ],
)
def test_a_source_that_fails_says_so_and_keeps_its_secrets(reference: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        KeySource(reference).read()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [f"one:{ONE}", ONE, "", "file:", "env:not-a-name", "vault:x", 7, None])
def test_a_key_given_in_place_of_its_source_is_refused_without_being_repeated(value: object) -> None:
    with pytest.raises(ConfigError, match="option 'encryption'") as caught:
        check_reference("encryption", value)
    assert ONE not in str(caught.value)


def test_a_key_file_is_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    name, key = new_key(0)
    write_keys(path, Keys(name, {name: key}), replace=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="is there already"):
        write_keys(path, Keys("other", {"other": key}), replace=False)
    assert KeySource(f"file:{path}").read().primary == name
    assert [one.name for one in tmp_path.iterdir()] == ["keys"]
