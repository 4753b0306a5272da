"""The suite that every store must pass: one module a verb, each test a statement of behaviour.

A test file runs it on a store by giving a fixture called `harness` and taking the tests in:

    import pytest
    from brigade.testing.conformance import Harness, suite

    @pytest.fixture
    async def harness():
        async with Harness("postgresql://localhost/test") as harness:
            yield harness

    globals().update(suite())

It needs pytest with `pytest-asyncio` (`asyncio_mode = "auto"`). A fixture with `params` runs the suite on several
stores. `suite("claim", "ack")` takes in single verbs; `Harness(url, without={"grants"})` says what a store
cannot do, and the tests that need it are skipped with that reason (see `CAPABILITIES`).

A docstring starts with what the test proves: `[G1]` to `[G6]` are the guarantees of the design, `[seed 000: …]` and
`[seed 002: …]` quote the scenario or sentence of the document that asked for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["CAPABILITIES", "VERBS", "Harness", "suite"]

VERBS = (
    "ack",
    "attempts",
    "bad_input",
    "bulk",
    "claim",
    "concurrency",
    "dead_letters",
    "delay",
    "delete",
    "enqueue",
    "events",
    "expiry",
    "extend",
    "failure_routing",
    "get",
    "groups",
    "lanes",
    "large_payloads",
    "nack",
    "operator",
    "ordering",
    "own_ids",
    "pause",
    "peek",
    "policy",
    "priority",
    "purge",
    "redrive",
    "release",
    "scan",
    "settle",
    "sharing",
    "state",
    "stats",
    "sync_api",
    "ttl",
)

pytest.register_assert_rewrite(*(f"{__name__}.{verb}" for verb in (*VERBS, "harness")))

from brigade.testing.conformance.harness import CAPABILITIES, Harness  # noqa: E402


def suite(*verbs: str) -> dict[str, Callable[..., Any]]:
    """The tests of these verbs, or of all, by name: put them into a test module's globals."""
    found: dict[str, Callable[..., Any]] = {}
    for verb in verbs or VERBS:
        module = importlib.import_module(f"{__name__}.{verb}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                if name in found:
                    raise AssertionError(f"two conformance tests are called {name}; rename one")
                found[name] = test
    return found
