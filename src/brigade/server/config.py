"""The settings of a server: flags go before BRIGADE_ variables, those before a TOML file, and that before defaults.

A value that is wrong is refused by the name under which it was given.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brigade.errors import ConfigError

__all__ = ["SETTINGS", "Setting", "Settings", "default_consumers", "read_settings"]

MIB = 1024 * 1024
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


def default_consumers() -> int:
    """Consumers that may wait at once: 64 for each processor, from 128 to 4096."""
    import os

    return min(4096, max(128, 64 * (os.cpu_count() or 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: `max_wait` is `--max-wait`, BRIGADE_MAX_WAIT, and `max-wait` in a file."""

    name: str
    kind: type[Any]
    help: str
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    shown: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"BRIGADE_{self.name.upper()}"

    def check(self, value: Any, source: str) -> Any:
        """The value as it is used; a ConfigError names where it comes from."""
        made = self._made(value, source)
        if self.choices and made not in self.choices:
            raise ConfigError(f"{source} is {made!r}; use one of {', '.join(self.choices)}")
        if self.kind in (int, float):
            low = -math.inf if self.low is None else self.low
            high = math.inf if self.high is None else self.high
            if not low <= made <= high or not math.isfinite(made):
                upper = "" if self.high is None else f" to {self.high:g}"
                raise ConfigError(f"{source} is {made!r}; use a number from {low:g}{upper or ' up'}")
        return made

    def _made(self, value: Any, source: str) -> Any:
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[self.kind]
        if self.kind is bool:
            if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
                return value.lower() in _TRUE
            if isinstance(value, bool):
                return value
        elif isinstance(value, str) and self.kind is not str:
            try:
                return self.kind(value)
            except ValueError:
                pass
        elif isinstance(value, self.kind) and not isinstance(value, bool):
            return value
        elif self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        raise ConfigError(f"{source} is {value!r}; use {wanted}")


SETTINGS: tuple[Setting, ...] = (
    Setting(name="url", kind=str, help="The store.", default="file://./.brigade"),
    Setting(name="host", kind=str, help="Where to listen.", default="127.0.0.1"),
    Setting(name="port", kind=int, help="0: any that is free.", default=8421, low=0, high=65535),
    Setting(name="auth", kind=str, help="tokens: ask for one.", default="none", choices=("none", "tokens")),
    Setting(name="tls_cert", kind=str, help="A file with the server's certificate: serve https."),
    Setting(name="tls_key", kind=str, help="A file with its key, where that is another one."),
    Setting(name="tls_client_ca", kind=str, help="A file: let in only clients with a certificate of this authority."),
    Setting(
        name="queue_max_consumers",
        kind=int,
        help="Consumers that wait or stream at once.",
        low=1,
        high=1_000_000,
        shown="64 for each processor, 128 to 4096",
    ),
    Setting(
        name="queue_poll_interval",
        kind=float,
        help="Seconds between looks at a store that doesn't tell of changes.",
        default=3.0,
        low=0.01,
    ),
    Setting(name="queue_poll_jitter", kind=float, help="Seconds, by chance, on top of that.", default=0.5, low=0),
    Setting(
        name="queue_resilient_poll_interval",
        kind=float,
        help="Seconds between looks at a store that tells of changes; 0: none.",
        default=300.0,
        low=0,
    ),
    Setting(name="disk_queue_watch", kind=bool, help="Have a folder's changes told, on file://.", default=True),
    Setting(name="disable_mem_queue_watch", kind=bool, help="Poll a memory:// store.", default=False),
    Setting(name="max_wait", kind=float, help="Seconds that a dequeue may wait.", default=300.0, low=0.001),
    Setting(name="max_batch", kind=int, help="Messages in a request.", default=1000, low=1, high=10_000),
    Setting(name="max_body", kind=int, help="Bytes of JSON.", default=16 * MIB, low=1024),
    Setting(name="max_stream", kind=int, help="Bytes of a streamed body.", default=1024 * MIB + 16 * MIB, low=1024),
    Setting(name="max_headers", kind=int, help="Bytes of URL and headers.", default=32 * 1024, low=1024, high=60_000),
    Setting(name="max_requests", kind=int, help="Requests under way at once.", default=8192, low=1),
    Setting(name="dashboard", kind=bool, help="Serve pages for people at /.", default=True),
    Setting(name="redact", kind=str, help="A function, module:function, that hides parts of payloads."),
    Setting(name="grace", kind=float, help="Seconds for requests to end at the end.", default=10.0, low=0, high=3600),
    Setting(
        name="log_level",
        kind=str,
        help="What is logged.",
        default="info",
        choices=("debug", "info", "warning", "error"),
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What was found, by name; `options` are those of the store, from the file."""

    values: dict[str, Any]
    options: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None = None) -> Settings:
    """All settings. `flags` has None where a flag was not given; `file` may also be named by BRIGADE_CONFIG."""
    source = file or environment.get("BRIGADE_CONFIG") or None
    stored, options = _read(Path(source)) if source else ({}, {})
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        if flags.get(setting.name) is not None:
            values[setting.name] = setting.check(flags[setting.name], setting.flag)
        elif environment.get(setting.variable):
            values[setting.name] = setting.check(environment[setting.variable], setting.variable)
        elif setting.name in stored:
            key = setting.name.replace("_", "-")
            values[setting.name] = setting.check(stored[setting.name], f"{key} in {source}")
        else:
            values[setting.name] = setting.default
    if values["queue_max_consumers"] is None:
        values["queue_max_consumers"] = default_consumers()
    return Settings(values, options)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file says: settings at the top, and the store's options in a table called options."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config {str(path)!r} can't be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {str(path)!r} is not valid TOML: {error}") from None
    options = found.pop("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"options in {path} must be a table: write [options], then a line for each")
    known = {setting.name for setting in SETTINGS}
    stored: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{key} in {path} is no setting; use some of {', '.join(sorted(known))}")
        if name in stored:
            raise ConfigError(f"{key} in {path} is given twice, with '-' and with '_'; keep one")
        stored[name] = value
    return stored, dict(options)  # pyright: ignore[reportUnknownArgumentType]
