"""The smallest plan that still shows what was wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.reference import judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement
from sexton.cli import verify, verify_telling
from sexton.errors import SextonError
from sexton.verify import again
from sexton.verify import run as verifying
from sexton.verify.faults.schedule import episodes, without
from sexton.verify.generator import NS
from sexton.verify.plan import Plan
from sexton.verify.shrinking import Tries, described, kept, shrink
from tests.verify.test_again import described as describe

PLAN = Plan(seed=3, concurrency=6, main_ns=120 * NS, faults=("kill", "pause"), period_ns=9 * NS, interval_ns=3 * NS)
BAD = "lost-write"
ONCE = Tries(1, 1)


def last(plan: Plan, is_bad: Callable[[Plan], bool], tries: Tries = ONCE) -> tuple[Plan, list[Plan]]:
    tried: list[Plan] = []

    def attempt(smaller: Plan) -> Collection[str]:
        tried.append(smaller)
        return {BAD, "other"} if is_bad(smaller) else {"other"}

    smaller = list(shrink(plan, [BAD], attempt, tries))
    return smaller[-1] if smaller else plan, tried


def test_every_fault_that_begins_ends_and_can_be_left_out() -> None:
    acts = PLAN.schedule()
    found = episodes(acts)
    assert len(found) > 8
    assert 2 * len(found) == len(acts)
    assert all(each.begin.fault == each.end.fault and each.begin.at_ns <= each.end.at_ns for each in found)
    left = without(acts, [0, 2])
    assert episodes(left)[0].begin == found[1].begin
    assert len(episodes(left)) == len(found) - 2


def test_what_needs_nothing_is_left_with_nothing() -> None:
    plan, _ = last(PLAN, lambda plan: True)
    assert plan.main_ns < 2 * NS
    assert plan.concurrency == 2
    assert kept(plan) == []
    assert described(plan) == [f"{plan.main_ns / NS:g} s, 2 processes, seed 3", "no faults"]


def test_what_needs_two_faults_some_time_and_some_processes_keeps_them() -> None:
    needed = {1, 3}
    plan, tried = last(
        PLAN,
        lambda plan: (
            needed <= {each.number for each in kept(plan)} and plan.concurrency >= 5 and plan.main_ns >= 20 * NS
        ),
    )
    assert {each.number for each in kept(plan)} == needed
    assert plan.concurrency == 5
    assert plan.main_ns == 30 * NS
    assert len(tried) < 60
    assert len(described(plan)) == 3


def test_another_anomaly_is_not_it() -> None:
    plan, tried = last(PLAN, lambda plan: False)
    assert plan == PLAN
    assert tried


def test_what_is_left_out_stays_out_when_time_is_cut() -> None:
    plan, _ = last(replace(PLAN, left_out=(0,)), lambda plan: 0 not in {each.number for each in kept(plan)})
    assert 0 not in {each.number for each in kept(plan)}


@pytest.mark.parametrize(
    ("tries", "outcomes", "holds", "attempts"),
    [("1/3", "001", True, 3), ("1/3", "100", True, 1), ("2/3", "00", False, 2), ("2/3", "101", True, 3)],
)
def test_it_is_tried_no_more_often_than_it_takes(tries: str, outcomes: str, holds: bool, attempts: int) -> None:
    left = list(outcomes)
    assert Tries.parse(tries).hold(lambda: left.pop(0) == "1") is holds
    assert len(outcomes) - len(left) == attempts


@pytest.mark.parametrize("text", ["3/2", "0/1", "one", "1"])
def test_tries_that_make_no_sense_are_told(text: str) -> None:
    with pytest.raises(SextonError, match="how often of how many"):
        Tries.parse(text)


def test_the_smallest_plan_is_printed_and_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(tmp_path / "run")

    def run(wanted: verifying.Wanted, plan: Plan, listener: object) -> Judgement:
        wanted.directory.mkdir()
        history = sabotage(BAD, 1).history
        return judge(history.ops if plan.concurrency > 2 else [], history.run)

    monkeypatch.setattr(verifying, "run", run)
    done = CliRunner().invoke(verify.app, ["replay", str(tmp_path / "run"), "--shrink", "--tries", "1/1"])
    assert isinstance(done.exception, verify_telling.VerdictFalseError)
    assert "3 processes, seed 5" in done.output.partition("The smallest plan")[2]
    assert "no faults" in done.output.partition("The smallest plan")[2]
    _, plan = again.read(tmp_path / "run-smallest", tmp_path / "next")
    assert (plan.concurrency, kept(plan)) == (3, [])
    assert plan.main_ns < 3 * NS
