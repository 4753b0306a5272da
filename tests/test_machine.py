"""The state machine: every pair of state and event, every guard, and the diagram drawn from the table."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from brigade import machine
from brigade.machine import TRANSITIONS, Event, Guard, IllegalTransition, State, Transition, claimable, step

ROOT = Path(__file__).parent.parent
PAIRS = list(itertools.product(State, Event))

# (state, event) -> what it leads to with attempts left, and with attempts spent. Written down a second time, so that
# a change of the table is a change of this test as well.
EXPECTED: dict[tuple[State, Event], tuple[State, State]] = {
    (State.ABSENT, Event.ENQUEUE): (State.READY, State.READY),
    (State.READY, Event.CLAIM): (State.IN_FLIGHT, State.IN_FLIGHT),
    (State.READY, Event.LAPSE): (State.FAILED, State.FAILED),
    (State.READY, Event.PURGE): (State.ABSENT, State.ABSENT),
    (State.IN_FLIGHT, Event.ACK): (State.SUCCEEDED, State.SUCCEEDED),
    (State.IN_FLIGHT, Event.NACK): (State.READY, State.FAILED),
    (State.IN_FLIGHT, Event.DEFER): (State.READY, State.READY),
    (State.IN_FLIGHT, Event.EXTEND): (State.IN_FLIGHT, State.IN_FLIGHT),
    (State.IN_FLIGHT, Event.RELEASE): (State.READY, State.READY),
    (State.IN_FLIGHT, Event.EXPIRE): (State.READY, State.FAILED),
    (State.FAILED, Event.REDRIVE): (State.READY, State.READY),
    (State.FAILED, Event.PURGE): (State.ABSENT, State.ABSENT),
}
LEGAL = [pair for pair in PAIRS if pair in EXPECTED]
ILLEGAL = [pair for pair in PAIRS if pair not in EXPECTED]


def test_the_walk_covers_every_pair() -> None:
    assert len(PAIRS) == len(State) * len(Event) == len(LEGAL) + len(ILLEGAL)
    assert set(TRANSITIONS) == set(LEGAL)


@pytest.mark.parametrize("state,event", LEGAL)
@pytest.mark.parametrize("attempts,max_attempts", [(0, 1), (1, 4), (3, 4)])
def test_a_legal_pair_with_attempts_left(state: State, event: Event, attempts: int, max_attempts: int) -> None:
    assert step(state, event, attempts=attempts, max_attempts=max_attempts).to is EXPECTED[state, event][0]


@pytest.mark.parametrize("state,event", LEGAL)
@pytest.mark.parametrize("attempts,max_attempts", [(1, 1), (4, 4), (5, 4), (1, 0)])
def test_a_legal_pair_with_attempts_spent(state: State, event: Event, attempts: int, max_attempts: int) -> None:
    assert step(state, event, attempts=attempts, max_attempts=max_attempts).to is EXPECTED[state, event][1]


@pytest.mark.parametrize("state,event", ILLEGAL)
@pytest.mark.parametrize("attempts,max_attempts", [(0, 1), (1, 1)])
def test_an_illegal_pair_raises(state: State, event: Event, attempts: int, max_attempts: int) -> None:
    with pytest.raises(IllegalTransition, match=f"{state}.*{event}") as caught:
        step(state, event, attempts=attempts, max_attempts=max_attempts)
    assert (caught.value.state, caught.value.event) == (state, event)


@pytest.mark.parametrize("rows", TRANSITIONS.values(), ids=str)
def test_the_guards_of_a_pair_are_complete_and_exclude_each_other(rows: tuple[Transition, ...]) -> None:
    guards = sorted(row.guard for row in rows)
    assert guards in ([Guard.ALWAYS], sorted([Guard.ATTEMPTS_LEFT, Guard.ATTEMPTS_SPENT]))


def test_an_attempt_is_counted_by_the_claim_and_given_back_by_release_and_defer_alone() -> None:
    """[G4] Attempts are counted when a message is claimed."""
    counted = {
        event: {row.attempts for row in TRANSITIONS[state, event]}
        for state, event in TRANSITIONS
        if any(row.attempts for row in TRANSITIONS[state, event])
    }
    assert counted == {Event.CLAIM: {1}, Event.RELEASE: {-1}, Event.DEFER: {-1}}


def test_success_is_final() -> None:
    """[G3] Nothing leads out of succeeded."""
    assert [event for state, event in TRANSITIONS if state is State.SUCCEEDED] == []


def test_every_state_can_be_reached_and_every_event_happens() -> None:
    reached = {State.ABSENT}
    while more := {row.to for (state, _), rows in TRANSITIONS.items() if state in reached for row in rows} - reached:
        reached |= more
    assert reached == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("due_at", [99, 100, 101])
@pytest.mark.parametrize("lease_expires_at", [99, 100, 101])
def test_claimable_needs_due_not_paused_and_no_live_lease(
    state: State, paused: bool, due_at: int, lease_expires_at: int
) -> None:
    free = state is State.READY or (state is State.IN_FLIGHT and lease_expires_at <= 100)
    expected = free and not paused and due_at <= 100
    answer = claimable(state, now=100, due_at=due_at, lease_expires_at=lease_expires_at, paused=paused)
    assert answer is expected


def test_the_diagram_has_an_arrow_for_every_row_and_no_other() -> None:
    lines = machine.diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    rows = [(key, row) for key, found in TRANSITIONS.items() for row in found]
    assert len(lines) == 1 + len(rows) + 1
    for (state, event), row in rows:
        source = "[*]" if state is State.ABSENT else state
        target = "[*]" if row.to is State.ABSENT else row.to
        assert any(line.strip().startswith(f"{source} --> {target}: {event}") for line in lines)


def test_the_page_in_the_docs_holds_exactly_the_diagram() -> None:
    page = (ROOT / "docs" / "internals" / "states.md").read_text(encoding="utf-8")
    fences = page.split("```mermaid\n")
    assert len(fences) == 2, "the page has one diagram"
    assert fences[1].partition("```")[0] == machine.diagram(), "run python scripts/state_diagram.py"


def test_the_script_finds_the_page_up_to_date() -> None:
    script = ROOT / "scripts" / "state_diagram.py"
    ran = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
