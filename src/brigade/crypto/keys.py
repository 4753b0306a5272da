"""Keys and where they come from: the environment, a file or a command. Never a URL.

A set of keys is text, one key a line or between commas: `id:base64 of 32 bytes`. The first is the primary, under which
everything new is sealed; the others are there to read what was sealed before.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from brigade.clock import to_datetime
from brigade.errors import ConfigError
from brigade.ids import secret_bytes

__all__ = ["KeySource", "Keys", "check_reference", "new_key", "write_keys"]

KEY_SIZE = 32
COMMAND_PATIENCE = 30.0
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_KINDS = ("env", "file", "command")
_HOW = "write env:NAME, file:PATH or command:PROGRAM ARGUMENTS"


class Keys(NamedTuple):
    """A set of keys by id; `primary` is the one that seals."""

    primary: str
    by_id: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"Keys(primary={self.primary!r}, ids={list(self.by_id)!r})"

    def text(self) -> str:
        """The set as it is written in a file, the primary first."""
        ids = [self.primary, *(one for one in self.by_id if one != self.primary)]
        return "".join(f"{one}:{base64.b64encode(self.by_id[one]).decode()}\n" for one in ids)

    @classmethod
    def parse(cls, text: str, source: str) -> Keys:
        """The keys in a text. Errors name the source and the key's place, never what was there."""
        found: dict[str, bytes] = {}
        lines = [part.strip() for line in text.splitlines() for part in line.partition("#")[0].split(",")]
        for place, line in enumerate(filter(None, lines), 1):
            name, mark, encoded = line.partition(":")
            where = f"key {place} of {source}"
            if not mark or not _ID.fullmatch(name):
                raise ConfigError(f"{where} is not of the form id:base64; `brigade key create` makes one")
            try:
                key = base64.b64decode(encoded.strip(), validate=True)
            except (binascii.Error, ValueError):
                raise ConfigError(f"{where} ({name}) is not base64; `brigade key create` makes one") from None
            if len(key) != KEY_SIZE:
                raise ConfigError(
                    f"{where} ({name}) has {len(key)} bytes and needs {KEY_SIZE}; `brigade key create` makes one"
                )
            if found.setdefault(name, key) != key:
                raise ConfigError(f"{where}: two different keys are called {name}; give one another id")
        if not found:
            raise ConfigError(f"{source} holds no key; `brigade key create` makes one")
        return cls(next(iter(found)), found)

    def with_primary(self, name: str, key: bytes) -> Keys:
        """The same keys and a new primary."""
        if name in self.by_id:
            raise ConfigError(f"there is a key called {name} already; choose another id")
        return Keys(name, {name: key, **self.by_id})

    def fingerprint(self, name: str) -> str:
        """Tells two keys apart without telling anything of them."""
        return hashlib.sha256(b"brigade key fingerprint\0" + self.by_id[name]).hexdigest()[:12]


def new_key(now_ms: int, name: str | None = None) -> tuple[str, bytes]:
    """A random key, called after the day unless it is given a name."""
    if name is not None and not _ID.fullmatch(name):
        raise ConfigError(f"{name!r} can't be a key's id; use up to 32 letters, digits, dots, dashes and underscores")
    made = name or f"{to_datetime(now_ms):%Y-%m-%d}-{secret_bytes(2).hex()}"
    return made, secret_bytes(KEY_SIZE)


def check_reference(option: str, value: object) -> str:
    """Where keys are to be found; a ConfigError that doesn't repeat it, for it may be a key by mistake."""
    text = value if isinstance(value, str) else ""
    kind, mark, rest = text.partition(":")
    if not mark or kind not in _KINDS or not rest.strip():
        raise ConfigError(f"option {option!r} must say where keys are, not be one; {_HOW}")
    if kind == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", rest):
        raise ConfigError(f"option {option!r} has env: and then no name of a variable; {_HOW}")
    return text


class KeySource:
    """Where keys are read from, now and whenever one is missing."""

    def __init__(self, reference: str) -> None:
        self.reference = check_reference("encryption", reference)
        self._kind, _, self._rest = reference.partition(":")

    def __repr__(self) -> str:
        return f"KeySource({self.name!r})"

    @property
    def name(self) -> str:
        """The source as errors name it: of a command only the program, for its arguments may be secret."""
        if self._kind == "command":
            with contextlib.suppress(ValueError):
                return f"command:{shlex.split(self._rest)[0]}"
            return "command"
        return self.reference

    @property
    def cheap(self) -> bool:
        """Whether reading it again costs next to nothing."""
        return self._kind != "command"

    def read(self) -> Keys:
        reader = {"env": self._from_env, "file": self._from_file, "command": self._from_command}[self._kind]
        return Keys.parse(reader(), self.name)

    def _from_env(self) -> str:
        text = os.environ.get(self._rest)
        if text is None:
            raise ConfigError(f"encryption needs keys from {self.name}, and that variable is not set; set it to keys")
        return text

    def _from_file(self) -> str:
        try:
            return Path(self._rest).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{self.name} is not text; `brigade key create --file` makes one") from None
        except OSError as error:
            raise ConfigError(
                f"encryption needs keys from {self.name}: {error.strerror or error}; "
                "`brigade key create --file` makes such a file"
            ) from None

    def _from_command(self) -> str:
        try:
            words = shlex.split(self._rest)
            done = subprocess.run(words, capture_output=True, timeout=COMMAND_PATIENCE, check=False)  # noqa: S603 - the user's own command
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{self.name} gave no keys within {COMMAND_PATIENCE:.0f} seconds; run it by hand"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(f"{self.name} could not be run to get keys: {reason}; check the option") from None
        if done.returncode:
            raise ConfigError(
                f"{self.name} ended with exit code {done.returncode} and gave no keys; run it by hand to see why"
            )
        return done.stdout.decode("utf-8", "replace")


def write_keys(path: Path, keys: Keys, *, replace: bool) -> None:
    """Write a key file that only its owner may read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secret_bytes(6).hex()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(keys.text())
                file.flush()
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
    except FileExistsError:
        raise ConfigError(f"{path} is there already; `brigade key rotate` adds a key to it") from None
    except OSError as error:
        raise ConfigError(f"{path} could not be written: {error.strerror or error}") from None
