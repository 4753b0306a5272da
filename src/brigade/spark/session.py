"""Spark on this machine: a session with the settings that Brigade's source and pipeline want."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from brigade.errors import ConfigError
from brigade.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session", "sockets_in"]

SOCKET_NAME = 43
"""Characters of what Spark calls a socket, with a slash before it."""

LONGEST_SOCKET = 103
"""Bytes that the path of a socket may have on every system."""

_QUIET = Path(__file__).with_name("log4j2.properties")


def local_session(
    app: str = "brigade",
    *,
    cores: int | str = "*",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session that is already active in this process, or a local one, started with `cores` cores.

    `master` names another kind of local cluster, such as `local-cluster[2,1,1024]`; `settings` go before ours.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Spark is not installed; pip install 'bucket-brigade[spark]'") from error

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    wanted = {**_settings(), **(settings or {})}
    builder = SparkSession.builder.master(master or f"local[{cores}]").appName(app)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def sockets_in(folder: str) -> dict[str, str]:
    """How Java and Python talk to each other: by sockets in a folder, or by TCP where its path is too long for them."""
    fits = len(os.fsencode(folder)) + SOCKET_NAME <= LONGEST_SOCKET
    enabled = {"spark.python.unix.domain.socket.enabled": str(fits).lower()}
    return {**enabled, "spark.python.unix.domain.socket.dir": folder} if fits else enabled


def _settings() -> dict[str, str]:
    return {
        **sockets_in(tempfile.gettempdir()),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
        "spark.log.level": "ERROR",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.schemaInference": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
