"""The judge of the chaos runs, on histories made by hand: a good one passes, and each broken promise is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from brigade.testing.chaos.journal import Line, merge
from brigade.testing.chaos.judge import Ended, Held, judge
from brigade.testing.sim import records as r

LIMITS = r.Limits({"jobs": 4, "line": 4})


class Story:
    """A small history: two messages of a strict line, the first failed once, both acked. Steps can be changed."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.now = 1000
        self.final = r.Final()
        self.enqueue("a", 1)
        self.enqueue("b", 2)
        self.claim("a", version=1)
        self.told("a", version=1, kind="nack")
        self.claim("a", version=2, attempt=2)
        self.told("a", version=2)
        self.claim("b", version=1)
        self.told("b", version=1)
        first = [Held(1, 10, 20, "nacked"), Held(2, 20, 30, "acked")]
        self.ended = [ended("a", first), ended("b", [Held(1, 31, 40, "acked")])]

    def write(self, op: str, record: Any, begun: int = 0) -> None:
        self.now += 10
        self.lines.append(Line(who="x", op=op, at=self.now, begun=begun or self.now - 5, records=[record]))

    def enqueue(self, uid: str, call: int) -> None:
        self.write("enqueue", r.Intent(at=0, queue="line", uid=uid, call=call, payload=uid.encode()))
        self.write("returned", r.Returned(at=0, queue="line", uid=uid, ref=f"ref-{uid}"))

    def claim(self, uid: str, *, version: int, attempt: int = 1, payload: bytes | None = None, begun: int = 0) -> None:
        self.write("claim", delivered(uid, version, attempt, payload), begun)

    def told(self, uid: str, *, version: int, kind: str = "ack", answer: str = "ok") -> None:
        self.write(kind, told(uid, version, kind, answer))

    def rules(self) -> set[str]:
        verdict = judge(merge(self.lines), self.ended, LIMITS, self.final, strict=["line"])
        return {violation.rule for violation in verdict.violations}


def ended(uid: str, held: list[Held], outcome: str = "processed", counted: int = 1) -> Ended:
    return Ended(queue="line", ref=f"ref-{uid}", uid=uid, outcome=outcome, counted=counted, max_attempts=4, held=held)


def delivered(uid: str, version: int, attempt: int = 1, payload: bytes | None = None) -> r.Delivered:
    return r.Delivered(
        at=0,
        queue="line",
        ref=f"ref-{uid}",
        uid=uid,
        token=f"{uid}{version}",
        version=version,
        attempt=attempt,
        max_attempts=4,
        payload=uid.encode() if payload is None else payload,
        own_id=None,
        group=None,
        priority=5,
        since=0,
    )


def told(uid: str, version: int, kind: str, answer: str) -> r.Told:
    return r.Told(at=0, queue="line", ref=f"ref-{uid}", token=f"{uid}{version}", kind=kind, answer=answer)


def test_a_good_run_passes() -> None:
    assert Story().rules() == set()


def lose(story: Story) -> None:
    story.enqueue("c", 3)


def lose_a_dead_letter(story: Story) -> None:
    story.enqueue("c", 3)
    story.ended.append(ended("c", [Held(1, 50, 60, "nacked")], "dead-lettered"))


def deliver_after_an_answered_ack(story: Story) -> None:
    story.claim("b", version=2, attempt=2)


def ack_twice(story: Story) -> None:
    story.told("a", version=1)


def forget_an_answered_ack(story: Story) -> None:
    story.ended[0] = ended("a", [Held(1, 10, 20, "nacked")], "failed")
    story.ended.append(replace(story.ended[0], outcome="processed", queue="jobs"))


def record_another_lease_than_was_answered(story: Story) -> None:
    story.ended[0] = ended("a", [Held(1, 10, 20, "nacked"), Held(3, 20, 30, "acked")])


def end_in_two_ways(story: Story) -> None:
    story.ended.append(ended("b", [Held(1, 31, 40, "nacked")], "failed"))


def record_two_acks(story: Story) -> None:
    story.ended[1] = ended("b", [Held(1, 31, 40, "acked"), Held(2, 41, 45, "acked")])


def give_a_version_out_twice(story: Story) -> None:
    story.write("claim", replace(delivered("b", 1), token="other"), begun=story.now - 15)


def let_versions_shrink(story: Story) -> None:
    story.lines = [line for line in story.lines if line.op != "ack"]
    story.claim("b", version=5)
    story.claim("b", version=4)


def overlap_leases(story: Story) -> None:
    story.ended[0] = ended("a", [Held(1, 10, 20, "nacked"), Held(2, 15, 30, "acked")])


def try_too_often(story: Story) -> None:
    story.ended[1] = ended("b", [Held(1, 31, 40, "acked")], counted=5)


def deliver_too_often(story: Story) -> None:
    story.lines.insert(6, Line(who="x", op="claim", at=1055, begun=1051, records=[delivered("b", 1, 5)]))


def change_a_payload(story: Story) -> None:
    story.lines[4] = replace(story.lines[4], records=[delivered("a", 1, payload=b"other")])


def overtake_in_a_line(story: Story) -> None:
    """The second is in somebody's hands before the first is claimed again."""
    story.lines.append(Line(who="y", op="claim", at=1055, begun=1051, records=[delivered("b", 7)]))


def leave_something(story: Story) -> None:
    story.final = r.Final(keys=["q/jobs/led/5/x"])


def get_stuck(story: Story) -> None:
    story.final = r.Final(stuck=["jobs: 1 ready"])


def raise_what_should_not_be(story: Story) -> None:
    story.write("raised", r.Raised(at=0, queue="line", where="claim", error="KeyError"))


@pytest.mark.parametrize(
    "plant, rule",
    [
        (lose, "G1"),
        (lose_a_dead_letter, "G1"),
        (deliver_after_an_answered_ack, "G3"),
        (ack_twice, "G2"),
        (forget_an_answered_ack, "G3"),
        (record_another_lease_than_was_answered, "G2"),
        (end_in_two_ways, "G3"),
        (record_two_acks, "G3"),
        (give_a_version_out_twice, "versions"),
        (let_versions_shrink, "versions"),
        (overlap_leases, "G2"),
        (try_too_often, "attempts"),
        (deliver_too_often, "attempts"),
        (change_a_payload, "payload"),
        (overtake_in_a_line, "G6"),
        (leave_something, "left behind"),
        (get_stuck, "stuck"),
        (raise_what_should_not_be, "raised"),
    ],
)
def test_a_planted_violation_is_seen(plant: Callable[[Story], None], rule: str) -> None:
    story = Story()
    plant(story)
    assert rule in story.rules()


def test_order_is_judged_within_a_call_and_within_a_group_only() -> None:
    def rules(group: str | None, queue: str, first: str) -> set[str]:
        """One call with two messages; `first` is handed out first, then both until they are done."""
        lines: list[Line] = []
        for n, uid in enumerate("ab"):
            meant = r.Intent(at=0, queue=queue, uid=uid, call=1, payload=b"", group=group)
            lines.append(Line(who="x", op="enqueue", at=10 + n, records=[meant]))
        for n, uid in enumerate("ab"):
            lines.append(Line(who="x", op="returned", at=20 + n, records=[made(r.Returned, uid, queue)]))
        for n, uid in enumerate((first, *"ab")):
            held = replace(delivered(uid, n + 1, payload=b""), queue=queue, group=group)
            lines.append(Line(who="x", op="claim", at=40 + 10 * n, begun=35 + 10 * n, records=[held]))
        done = [replace(ended(uid, [Held(9, 1, 2, "acked")]), queue=queue) for uid in "ab"]
        verdict = judge(merge(lines), done, LIMITS, r.Final(), strict=["line"])
        return {violation.rule for violation in verdict.violations}

    def made(kind: type[r.Returned], uid: str, queue: str) -> r.Returned:
        return kind(at=0, queue=queue, uid=uid, ref=f"ref-{uid}")

    assert rules(None, "line", "b") == {"G6"}
    assert rules("g", "jobs", "b") == {"G6"}
    assert rules(None, "jobs", "b") == set()
    assert rules(None, "line", "a") == set()


def test_claims_that_overlap_in_time_may_come_in_any_order() -> None:
    """A claim that began before the ack was answered may deliver after it: that lease is the older one."""
    story = Story()
    story.lines.append(Line(who="z", op="claim", at=story.now + 50, begun=1041, records=[delivered("a", 1)]))
    story.lines[4] = replace(story.lines[4], records=[])
    assert story.rules() == set()


def test_a_line_torn_by_a_kill_is_counted_and_skipped(tmp_path: Any) -> None:
    from brigade.testing.chaos.journal import Journal, read_journals

    journal = Journal(str(tmp_path / "a.jsonl"), "a")
    journal.write("enqueue", [r.Unsure(at=1, queue="jobs", uid="u")])
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"who":"a","op":"en')
    lines, torn = read_journals(tmp_path)
    assert ([line.op for line in lines], torn) == (["enqueue"], 1)


def test_memory_is_flat_or_it_is_not() -> None:
    from brigade.testing.chaos.soak import MIB, growth

    wavy = [(float(n), 100 * MIB + (n % 7) * 10_000) for n in range(100)]
    rising = [(float(n), 100 * MIB + n * MIB) for n in range(100)]
    assert growth("x", wavy).flat
    assert not growth("x", rising).flat
    assert growth("x", rising).grew_mib == pytest.approx(49, abs=0.1)
