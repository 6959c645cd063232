"""The judge's own test: nothing wrong is found in correct histories, and in a broken one what was broken, there, and
nothing that this does not imply."""

from __future__ import annotations

import random

import pytest

from sexton.checker.anomalies import ANOMALIES, Weight
from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import PLANS, Sabotage, sabotage
from sexton.checker.verdict import Judgement, Verdict
from sexton.history.lines import from_line, to_line

SEEDS = 2
SOAK_SEEDS = 50


def test_everything_can_be_planted() -> None:
    assert PLANS.keys() == ANOMALIES.keys()


@pytest.mark.parametrize("seed", range(10))
def test_a_correct_history_is_true(seed: int) -> None:
    _check_correct(seed)


@pytest.mark.soak
def test_correct_histories_are_true() -> None:
    for seed in range(500):
        _check_correct(seed)


def test_a_long_correct_history_is_true() -> None:
    _check_correct(7, steps=4_000)


@pytest.mark.parametrize("name", PLANS)
def test_what_was_planted_is_found_there_and_nothing_else(name: str) -> None:
    for seed in range(SEEDS):
        _check_planted(sabotage(name, seed))


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANS)
def test_what_was_planted_is_found_there_and_nothing_else_in_many(name: str) -> None:
    for seed in range(SOAK_SEEDS):
        _check_planted(sabotage(name, seed))


def test_the_same_seed_makes_the_same_history() -> None:
    assert correct(3) == correct(3)
    assert sabotage("lost-key", 3) == sabotage("lost-key", 3)


def test_a_history_that_was_written_and_read_is_judged_as_before() -> None:
    """What the judge needs is in the format."""
    for name in ("eos-loss", "zombie-commit", "replicas-disagree", "watermark-went-back", "stuck"):
        planted = sabotage(name, 1).history
        again = [from_line(to_line(op)) for op in planted.ops]
        assert judge(again, planted.run).canonical() == judge(planted.ops, planted.run).canonical()


def test_the_order_of_operations_does_not_matter() -> None:
    planted = sabotage("stale-value", 1).history
    expected = judge(planted.ops, planted.run).canonical()
    shuffled = random.Random(1).sample(planted.ops, len(planted.ops))
    assert judge(shuffled, planted.run).canonical() == expected


def _check_correct(seed: int, steps: int = 600) -> None:
    history = correct(seed, steps)
    judgement = judge(history.ops, history.run)
    assert _counted(judgement) == set(), f"seed {seed}"
    assert judgement.verdict is Verdict.TRUE, f"seed {seed}"


def _check_planted(planted: Sabotage) -> None:
    judgement = judge(planted.history.ops, planted.history.run, options=planted.options)
    where = f"{planted.name}: {planted.history.run.name}, {planted.place}"
    found = {finding.name: finding for finding in judgement.findings}
    assert planted.name in found, where
    place = planted.place
    assert any(
        place.log in (case.log, -1) and place.value in (*case.values, -1) for case in found[planted.name].cases
    ), where
    assert _counted(judgement) <= {planted.name, *planted.implied}, where


def _counted(judgement: Judgement) -> set[str]:
    """What was found and is neither allowed nor mere information."""
    found = {finding.name for finding in judgement.findings} - judgement.allowed.keys()
    return {name for name in found if ANOMALIES[name].weight is not Weight.INFORMATION}
