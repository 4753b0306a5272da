"""The examples in README and docs are run.

Python and bash as they stand, and `$ brigade …` lines as a user would type them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postgres_server import database, postgres

__all__ = ["database", "postgres"]
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced example and the line of the page that it starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(found[1], found[2], text.count("\n", 0, found.start(2)) + 1)


def with_examples() -> list[Any]:
    """The pages with something to run. Those on Spark go where the other tests on Spark do: one Java is enough."""
    spark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
    return [
        pytest.param(page, marks=spark if page.name.startswith("spark") else [], id=name_of(page))
        for page in PAGES
        if any(b.language in ("python", "console", "bash") for b in blocks(page))
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", with_examples())
def test_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page.name == "postgres.md":
        database = request.getfixturevalue("database")
        monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRIGADE_URL", raising=False)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            padded = "\n" * (block.line - 1) + block.text
            exec(compile(padded, str(page), "exec"), namespace)
        elif block.language == "console":
            run_console(block, page, tmp_path)
        elif block.language == "bash":
            check_command(f"set -euo pipefail\n{block.text}", [], f"{name_of(page)}:{block.line}", tmp_path)


def run_console(block: Block, page: Path, folder: Path) -> None:
    """Run the block's `$ brigade` lines. Lines below one are its output; `…` stands for anything."""
    command: str | None = None
    expected: list[str] = []
    for line in [*block.text.splitlines(), "$ "]:
        if not line.startswith("$ "):
            expected.append(line)
            continue
        if command is not None and "brigade " in command and "brigade demo" not in command:
            check_command(command, expected, f"{name_of(page)}:{block.line}", folder)
        command, expected = line[2:], []


def check_command(command: str, expected: list[str], where: str, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    said = (done.stdout + done.stderr).strip()
    assert done.returncode == 0, f"{where}: `{command}` ended with {done.returncode}: {said}"
    if expected:
        pattern = r"\s*".join(".*?".join(map(re.escape, word.split("…"))) for word in " ".join(expected).split())
        assert re.fullmatch(pattern, said, re.DOTALL), f"{where}: `{command}` printed\n{said}\nnot\n" + "\n".join(
            expected
        )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name_of(page)} links to {target}"
