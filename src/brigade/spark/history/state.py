"""How far the tables have come, kept beside them: what has been read of each queue, and of which store."""

from __future__ import annotations

from pathlib import Path

import msgspec

from brigade.errors import ConfigError
from brigade.ids import digest
from brigade.spark.history.columns import SCHEMA
from brigade.spark.history.folder import Folder
from brigade.stores.history import HistoryPart
from brigade.stores.opening import parse_url

__all__ = ["Progress", "State", "kind_of", "load_state", "read_kind", "save_state"]

PLACE = "_brigade/state.json"


class Progress(msgspec.Struct):
    """One queue: when the newest part was written, and which parts near that time have been read."""

    newest: int = 0
    done: dict[str, int] = {}


class State(msgspec.Struct):
    """`store` tells stores apart without naming them: a URL may hold a password."""

    store: str
    kind: str
    schema: int = SCHEMA
    queues: dict[str, Progress] = {}

    def since(self, queue: str, lookback: int) -> int:
        """From when on to look for parts that have not been read: some arrive late."""
        return max(0, self.queues.get(queue, Progress()).newest - lookback)

    def has(self, part: HistoryPart) -> bool:
        return part.key in self.queues.get(part.queue, Progress()).done

    def note(self, parts: list[HistoryPart], lookback: int) -> None:
        """These have been read. Only names that may be listed again are kept."""
        for part in parts:
            known = self.queues.setdefault(part.queue, Progress())
            known.newest = max(known.newest, part.written_at)
            known.done[part.key] = part.written_at
        for known in self.queues.values():
            oldest = known.newest - lookback
            known.done = {key: at for key, at in known.done.items() if at >= oldest}


def kind_of(url: str) -> str:
    """The kind of store: its clock decides how exact times are."""
    return url.partition("://")[0]


def load_state(folder: Folder, url: str | None = None) -> State | None:
    """What is kept beside the tables. Tables of another store, or of a newer version, are a ConfigError."""
    text = folder.read(PLACE)
    if text is None:
        return None if url is None else State(_identity(url), kind_of(url))
    try:
        state = msgspec.json.decode(text, type=State)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{folder.at(PLACE)} can't be read ({error}); delete it, and all history is looked through again"
        ) from None
    if state.schema > SCHEMA:
        raise ConfigError(
            f"the tables in {folder.place} are of version {state.schema}, this program knows {SCHEMA}; "
            "upgrade bucket-brigade to go on"
        )
    if url is not None and state.store != _identity(url):
        raise ConfigError(
            f"the tables in {folder.place} hold the history of another store; give each store a folder of its own"
        )
    state.schema = SCHEMA
    return state


def read_kind(root: Path) -> str:
    """The kind of store that the tables in a folder of this machine are of; empty where that is not known."""
    try:
        return msgspec.json.decode((root / PLACE).read_bytes(), type=State).kind
    except (OSError, msgspec.DecodeError):
        return ""


def save_state(folder: Folder, state: State) -> None:
    folder.write(PLACE, msgspec.json.format(msgspec.json.encode(state), indent=1).decode())


def _identity(url: str) -> str:
    scheme, place, _ = parse_url(url, {})
    return digest("store", scheme, place.rpartition("@")[2])
