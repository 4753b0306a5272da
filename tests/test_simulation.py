"""The protocol under the seeded scheduler: no seed breaks a promise, and a broken protocol is found out."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from brigade.blobs import Create, Swap
from brigade.stores import bucket
from brigade.stores.bucket import accounts, enqueue, finish, lanes, moves, settle, steps, sweep
from brigade.stores.bucket.book import LEASED, READY, Book
from brigade.testing.sim import check, run
from brigade.testing.sim import records as r
from brigade.testing.sim.__main__ import main, play
from brigade.testing.sim.scenario import KINDS, scenario_of

SEEDS = 306
CHUNKS = 18
LATE_SEEDS = 40
LATE_CHUNKS = 4
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_seed_breaks_a_promise(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        report = run(seed)
        assert not report.violations, f"replay it with: brigade-sim --replay {seed}\n" + "\n".join(
            map(str, report.violations[:5])
        )


@pytest.mark.parametrize("chunk", range(LATE_CHUNKS))
def test_no_seed_breaks_a_promise_when_writes_arrive_late(chunk: int) -> None:
    """Half of the writes in doubt are applied only afterwards, when they may have been tried again."""
    for seed in range(1000 + chunk, 1000 + LATE_SEEDS, LATE_CHUNKS):
        outcome = play(seed, late=0.5)
        assert not outcome.violations, f"replay it with: brigade-sim --late 0.5 --replay {seed}\n" + "\n".join(
            map(str, outcome.violations[:5])
        )


def test_the_seeds_cover_every_kind_of_queue_and_every_actor() -> None:
    scenarios = [scenario_of(seed) for seed in range(SEEDS)]
    assert {scenario.kind for scenario in scenarios} == set(KINDS)
    for role in ("busy", "sweepers", "redrivers", "letter_workers", "purgers", "pausers", "inspectors"):
        assert any(getattr(scenario, role) for scenario in scenarios), role
    assert any(scenario.skew_ms > scenario.lease * 1500 for scenario in scenarios)
    assert any(scenario.skew_ms == 0 for scenario in scenarios)


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in (0, 2, 4, 5, 8):
        assert run(seed).trace.digest == run(seed).trace.digest


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    script = "from brigade.testing.sim import run\nprint([run(seed).trace.digest for seed in (2, 4, 5, 6, 8, 32)])"
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(answers) == 1


def test_a_failing_seed_prints_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _ignore_tokens(monkeypatch)
    assert main(["--seeds", "3", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    assert "replay it with: brigade-sim --replay " in printed
    assert "3 of 3 seeds" in printed


def test_the_command_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "0"]) == 0
    printed = capsys.readouterr().out
    assert "create q/jobs/seg/" in printed
    assert run(0).trace.digest in printed


def _delete_ledgers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    retire = finish.retire

    def swapped(env: Any, view: Any, names: Any, contents: Any) -> Any:
        yield from steps.delete([view.keys.ledger(name) for name in names if not name.lane])
        yield from retire(env, view, names, contents)

    monkeypatch.setattr(finish, "retire", swapped)


def _believe_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(env: Any, op: Create | Swap, *, retry_absent: bool = True) -> Any:
        answer = yield op
        if isinstance(answer, str):
            return answer
        return steps.Lost((yield from steps.get(op.key)), True)

    for info in pkgutil.iter_modules(bucket.__path__, f"{bucket.__name__}."):
        module = import_module(info.name)
        if getattr(module, "write", None) is steps.write and module is not steps:
            monkeypatch.setattr(module, "write", write)


def _copy_before_deciding(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = accounts.commit

    def eager(env: Any, view: Any, account: Any, book: Book) -> Any:
        entries = (yield from accounts.read_segment(env, view, account.name)) if book.unmoved() else None
        for number in book.unmoved() if entries else ():
            ledger = book.close("eager")
            started = env.clock.monotonic()
            yield from moves._copy_out(env, view, account.name, number, ledger, entries, started)
        return (yield from commit(env, view, account, book))

    monkeypatch.setattr(settle, "commit", eager)


def _ignore_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def holds(self: Book, place: int, token: str) -> bool:
        return self.states[place] == LEASED

    monkeypatch.setattr(Book, "holds", holds)


def _hand_out_past_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def head_of(lane: Any) -> Any:
        for entry in lane.entries:
            name = lanes.SegmentName.parse(entry.segment)
            ledger = entry.ledger or Book.fresh(name.size, entry.specs).close("")
            for place, state in enumerate(ledger.states):
                if state == READY:
                    return entry, ledger, place
        return None

    monkeypatch.setattr(lanes, "head_of", head_of)
    monkeypatch.setattr(lanes, "_leased_until", lambda lane: 0)


def _take_ids_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def was_written(env: Any, view: Any, marker: Any, patient: bool) -> Any:
        yield from steps.get(view.keys.policy)
        return False

    monkeypatch.setattr(enqueue, "_was_written", was_written)


def _sweep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_old", lambda env, item, age=0: item.modified <= env.now())


def _forget_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_history(env: Any, keys: Any, records: Any) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(finish, "write_history", write_history)


@contextmanager
def _mutated(mutation: Patch) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutation(monkeypatch)
        yield


@pytest.mark.parametrize(
    "mutation, kinds, rules",
    [
        (_delete_ledgers_first, KINDS, {"order of deletes", "G3"}),
        (_believe_every_refusal, KINDS, {"made twice"}),
        (_copy_before_deciding, ("hybrid", "mix"), {"decide first"}),
        (_ignore_tokens, KINDS, {"G2"}),
        (_hand_out_past_the_head, ("strict", "groups"), {"G6"}),
        (_take_ids_without_a_fence, ("own-ids",), {"own ids", "G1", "made twice"}),
        (_sweep_at_once, KINDS, {"G1", "own ids"}),
        (_forget_history, KINDS, {"history"}),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_broken_protocol_is_found_out(mutation: Patch, kinds: tuple[str, ...], rules: set[str]) -> None:
    seeds = [seed for seed in range(1000) if scenario_of(seed).kind in kinds][:60]
    with _mutated(mutation):
        found = next((report for seed in seeds if (report := run(seed)).violations), None)
    assert found is not None
    assert rules & {violation.rule for violation in found.violations}


def test_a_delivery_after_its_ack_is_seen_from_what_clients_were_told() -> None:
    meant = r.Intent(at=1, queue="q", uid="u", call=1, payload=b"x")
    held = r.Delivered(
        at=2, queue="q", ref="m", uid="u", token="a", version=1, attempt=1, max_attempts=2, payload=b"x",
        own_id=None, group=None, priority=5, since=1,
    )  # fmt: skip
    acked = r.Told(at=3, queue="q", ref="m", token="a", kind="ack", answer="ok")
    again = r.Delivered(
        at=4, queue="q", ref="m", uid="u", token="b", version=2, attempt=2, max_attempts=2, payload=b"x",
        own_id=None, group=None, priority=5, since=3,
    )  # fmt: skip
    limits = r.Limits({"q": 2})
    assert not check([meant, held, acked], limits, r.Final())
    assert [found.rule for found in check([meant, held, acked, again], limits, r.Final())] == ["G3"]
