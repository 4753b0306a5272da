"""The options of `format("brigade")`: which store, which queue, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.names import check_queue_name
from brigade.spark.garbage import spare_modules
from brigade.stores.opening import everywhere, parse_url, shown_url
from brigade.sync import Hub

__all__ = ["Place", "Settings"]

T = TypeVar("T")
_STORE = "store."
FEW = "2"
"""Connections to a database that each task opens: there are many tasks."""


class Place(msgspec.Struct, frozen=True):
    """A store as every process of the cluster reaches it."""

    url: str
    options: dict[str, str]

    def __repr__(self) -> str:
        """Without options: a token may be among them."""
        return f"Place({shown_url(self.url)!r})"

    def connect(self) -> Hub:
        return Hub(self.url, **self.options)

    def connect_async(self) -> AsyncHub:
        spare_modules()
        return AsyncHub(self.url, **self.options)


class Settings:
    """Options as Spark gives them: text, under names whose case doesn't matter. What is not read is refused."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self._known = {"path"}

    def text(self, name: str, default: str | None = None) -> str | None:
        self._known.add(name.lower())
        value = self._given.get(name.lower())
        return default if value is None or value == "" else value

    def needed(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigError(f'option {name!r} is missing; add .option("{name}", "{example}")')
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name, default) or default
        if value not in choices:
            raise ConfigError(f"option {name!r} is {value!r}; use one of {', '.join(choices)}")
        return value

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        return self._number(name, default, int, least, "a whole number")

    def seconds(self, name: str, default: float, *, least: float = 0.0) -> float:
        return self._number(name, default, float, least, "a number of seconds")

    def _number(self, name: str, default: T, kind: Callable[[str], T], least: Any, what: str) -> T:
        value = self.text(name)
        if value is None:
            return default
        try:
            number: Any = kind(value)
        except ValueError:
            number = None
        if number is None or not number >= least:
            raise ConfigError(f"option {name!r} is {value!r}; use {what}, {least} or more")
        return number

    def place(self) -> Place:
        """The store. Its own options stand in the URL's query, or here as `store.<name>`."""
        url = self.needed("url", "s3://bucket/prefix")
        options = {name[len(_STORE) :]: value for name, value in self._given.items() if name.startswith(_STORE)}
        scheme, _, given = parse_url(url, dict(options))
        if scheme in ("postgres", "postgresql") and "pool_size" not in given:
            options["pool_size"] = FEW
        if scheme == "memory":
            raise ConfigError("memory:// lives in one process; Spark works in several: use file://, s3:// or another")
        return Place(everywhere(url), options)

    def queue(self) -> str:
        return check_queue_name(self.needed("queue", "tasks"))

    def refuse_unknown(self) -> None:
        """Call it when every option has been read: a misspelt one is an error, not a default."""
        for name in self._given:
            if name not in self._known and not name.startswith(_STORE):
                known = ", ".join(sorted(self._known - {"path"}))
                raise ConfigError(f'format("brigade") has no option {name!r} here; it has {known} and store.<option>')
