"""Settings: flags before variables before a file, and errors that name what is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brigade import ConfigError
from brigade.server.config import SETTINGS, read_settings
from brigade.server.serve import ServerConfig

Done = subprocess.CompletedProcess[bytes]


def test_every_setting_has_a_flag_a_variable_and_a_key(tmp_path: Path) -> None:
    """Each goes before the next, one by one."""
    file = tmp_path / "brigade.toml"
    values = {int: (2000, 3000, 4000), float: (1.5, 2.5, 3.5), bool: (True, False, True), str: ("a", "b", "c")}
    for setting in SETTINGS:
        flag, variable, stored = (setting.choices * 2)[:3] if setting.choices else values[setting.kind]
        text = str(stored).lower() if setting.kind is bool else repr(stored).replace("'", '"')
        file.write_text(f"{setting.name.replace('_', '-')} = {text}\n")
        environment = {setting.variable: str(variable)}
        assert read_settings({}, {}, str(file))[setting.name] == stored
        assert read_settings({}, environment, str(file))[setting.name] == variable
        assert read_settings({setting.name: flag}, environment, str(file))[setting.name] == flag
        assert read_settings({}, {"BRIGADE_CONFIG": str(file)})[setting.name] == stored


def test_settings_reach_the_server() -> None:
    flags: dict[str, Any] = {
        "url": "file:///x",
        "queue_max_consumers": 7,
        "queue_poll_interval": 1.0,
        "queue_poll_jitter": 0.0,
        "queue_resilient_poll_interval": 9.0,
        "disk_queue_watch": False,
        "max_headers": 2048,
    }
    made = ServerConfig.of(read_settings(flags, {}))
    assert (made.limits.most_consumers, made.limits.most_headers) == (7, 2048)
    assert (made.pace.poll, made.pace.jitter, made.pace.safety, made.pace.watch) == (1.0, 0.0, 9.0, False)
    assert not ServerConfig.of(read_settings({"url": "memory://x", "disable_mem_queue_watch": True}, {})).pace.watch


@pytest.mark.parametrize(
    "environment, why",
    [
        ({"BRIGADE_PORT": "no"}, "BRIGADE_PORT is 'no'; use a whole number"),
        ({"BRIGADE_PORT": "70000"}, "BRIGADE_PORT is 70000; use a number from 0 to 65535"),
        ({"BRIGADE_MAX_WAIT": "nan"}, "BRIGADE_MAX_WAIT is nan"),
        ({"BRIGADE_DISK_QUEUE_WATCH": "maybe"}, "BRIGADE_DISK_QUEUE_WATCH is 'maybe'; use true or false"),
        ({"BRIGADE_LOG_LEVEL": "loud"}, "BRIGADE_LOG_LEVEL is 'loud'; use one of debug"),
    ],
)
def test_a_wrong_variable_is_named(environment: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({}, environment)
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    "text, why",
    [
        ("port = 'x'", "port in {file} is 'x'; use a whole number"),
        ("port = true", "port in {file} is True; use a whole number"),
        ("max-wait = -1", "max-wait in {file} is -1.0; use a number from 0.001 up"),
        ("colour = 1", "colour in {file} is no setting"),
        ("max-wait = 1\nmax_wait = 2", "max_wait in {file} is given twice"),
        ("options = 1", "options in {file} must be a table"),
        ("port = ", "config '{file}' is not valid TOML"),
    ],
)
def test_a_wrong_key_in_a_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "brigade.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings({}, {}, str(file))
    assert str(caught.value).startswith(why.format(file=file))


def test_a_file_that_is_not_there_is_said_so(run: Callable[..., Done]) -> None:
    assert b"nowhere.toml" in run("serve", "--config", "nowhere.toml", code=2).stderr
    assert b"BRIGADE_PORT is" in run("serve", code=2, BRIGADE_PORT="x").stderr


def test_options_of_the_store_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "brigade.toml"
    file.write_text('url = "file:///x"\n[options]\nfsync = false\n')
    assert ServerConfig.of(read_settings({}, {}, str(file))).options == {"fsync": False}
