"""Every guarantee of the design, and every scenario of the documents it grew from, has a conformance test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from brigade.testing.conformance import VERBS, suite

GUARANTEES = ("G1", "G2", "G3", "G4", "G5", "G6")

SCENARIOS_OF_SEED_000 = (
    "Acquire message exclusively",
    "Lock visibility timeout",
    "Release lock on success",
    "Release lock on failure",
    "Retry to original queue",
    "Route to dead-letter queue",
    "Retry then dead-letter",
    "Default FIFO ordering",
    "LIFO ordering",
    "Reject unsupported ordering",
    "Strict ordering guarantee",
    "Best-effort ordering",
    "Emit processing outcome event",
    "100 concurrent consumers",
    "Lock token uniqueness",
    "Renew lock before timeout",
    "Prevent renewal after release",
)

SENTENCES_OF_SEED_002 = (
    "Every enqueued job will be processed at least once",
    "Successfully enqueued jobs survive process restarts",
    "FIFO order by default",
    "No cross-queue ordering guarantees",
    "Priority settings may alter ordering within a queue",
    "Jobs are invisible to other workers while leased (in-flight)",
    "Failed jobs become visible again after retry_at time",
    "Successful jobs are never re-processed",
    "Strict FIFO is not maintained across retries",
    "High-priority jobs may skip ahead",
    "A job is always in exactly one state",
    "State Consistency",
    "Only one worker can hold a lease on a job at any time",
    "Jobs are retried at most MaxRetries times before being permanently failed",
    "Leased jobs become reclaimable after lease expiry",
    "No in-flight work is lost",
    "Job with unique ID does not exist",
    "Job status is Ready, retry_at <= now",
    "Stale lease tokens are rejected",
    "Lease version incremented on each claim",
    "Job remains in `InFlight` state in store",
    "Old worker's commits are rejected (stale token)",
    "Initial attempt + 3 retries = 4 total attempts maximum",
    "Exponential backoff",
    "delay = random(0, min(base * 2^attempt, max))",
    "Nack (exhausted)",
)


def tags() -> dict[str, set[str]]:
    """The tests that carry each tag."""
    found: dict[str, set[str]] = {}
    for name, test in suite().items():
        line = (test.__doc__ or "").split("\n", 1)[0]
        while match := re.match(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\s*", line):
            found.setdefault(match.group(1), set()).add(name)
            line = line[match.end() :]
    return found


TAGS = tags()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_every_guarantee_has_a_test(guarantee: str) -> None:
    assert TAGS.get(guarantee)


@pytest.mark.parametrize("scenario", SCENARIOS_OF_SEED_000)
def test_every_scenario_of_seed_000_has_a_test(scenario: str) -> None:
    assert TAGS.get(f"seed 000: {scenario}")


@pytest.mark.parametrize("sentence", SENTENCES_OF_SEED_002)
def test_every_sentence_of_seed_002_has_a_test(sentence: str) -> None:
    assert TAGS.get(f"seed 002: {sentence}")


def test_no_tag_is_misspelt() -> None:
    known = {*GUARANTEES, *(f"seed 000: {name}" for name in SCENARIOS_OF_SEED_000)}
    known |= {f"seed 002: {name}" for name in SENTENCES_OF_SEED_002}
    assert {tag for tag in TAGS if not tag.startswith("seed 001: ")} - known == set()


def test_every_verb_has_tests_of_its_own() -> None:
    for verb in VERBS:
        assert suite(verb), verb
    assert len(suite()) == sum(len(suite(verb)) for verb in VERBS)


PLUGGED_IN = """
import pytest
from brigade.testing.conformance import Harness, suite

@pytest.fixture
async def harness():
    async with Harness("memory://plugged-in", without={"grants"}) as harness:
        yield harness

globals().update(suite("ack", "claim"))
"""


def test_a_store_plugs_in_with_one_file(tmp_path: Path) -> None:
    """As the package's docstring says; what a store cannot do is skipped with its reason."""
    (tmp_path / "test_mine.py").write_text(PLUGGED_IN)
    options = [
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "asyncio_mode=auto",
        "--rootdir",
        str(tmp_path),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    assert "this store lacks 'grants'" in ran.stdout
    assert f"{len(suite('ack', 'claim')) - 1} passed, 1 skipped" in ran.stdout
