from __future__ import annotations

import random
from collections import Counter

import pytest

from sexton.verify.faults.schedule import NS, Act, Kind, Target, schedule

KINDS = (Kind("kill"), Kind("pause"), Kind("partition", (Target.MAJORITY,)))


def acts(seed: int, kinds: tuple[Kind, ...] = KINDS, minutes: int = 20) -> list[Act]:
    return schedule(kinds, random.Random(seed), begin_ns=5 * NS, end_ns=minutes * 60 * NS)


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_that_begins_ends_and_none_is_begun_twice(seed: int) -> None:
    in_force: set[str] = set()
    planned = acts(seed)
    assert [act.at_ns for act in planned] == sorted(act.at_ns for act in planned)
    for act in planned:
        assert (act.fault in in_force) is not act.begins
        (in_force.add if act.begins else in_force.remove)(act.fault)
        assert 5 * NS <= act.at_ns <= 20 * 60 * NS
    assert not in_force


def test_what_ends_is_what_began() -> None:
    begun: dict[str, Act] = {}
    for act in acts(3):
        if act.begins:
            begun[act.fault] = act
        else:
            assert (act.target, act.choice) == (begun[act.fault].target, begun[act.fault].choice)


def test_some_periods_are_calm_and_most_are_not() -> None:
    busy = {(act.at_ns - 5 * NS) // (30 * NS) for act in acts(1, minutes=200) if act.begins}
    assert 0.5 < len(busy) / 400 < 0.9


def test_every_kind_and_every_sort_of_target_comes_up() -> None:
    begun = Counter((act.fault, act.target) for act in acts(1, minutes=200) if act.begins)
    assert set(begun) == {(kind.name, target) for kind in KINDS for target in kind.targets}


def test_one_seed_one_schedule() -> None:
    assert acts(7) == acts(7) != acts(8)


def test_nothing_is_broken_where_nothing_is_allowed() -> None:
    assert acts(1, kinds=()) == []


@pytest.mark.parametrize("seed", range(50))
def test_the_first_period_is_never_calm(seed: int) -> None:
    assert acts(seed)[0].at_ns < 15 * NS


def test_a_steady_fault_is_in_force_from_beginning_to_end() -> None:
    kinds = [Kind("kill"), Kind("late", (Target.ALL,), is_steady=True)]
    acts = schedule(kinds, random.Random(1), begin_ns=5 * NS, end_ns=95 * NS)
    late = [act for act in acts if act.fault == "late"]
    assert [(act.at_ns, act.begins) for act in late] == [(5 * NS, True), (95 * NS, False)]
    assert acts == sorted(acts, key=lambda act: act.at_ns)
    assert any(act.fault == "kill" for act in acts)
    assert [act.fault for act in schedule(kinds[1:], random.Random(1), begin_ns=0, end_ns=NS)] == ["late", "late"]
