"""Schedules, and how a person names a part of one."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from sexton.ports.metastore import LEASE_MARGIN
from sexton.simulate.clock import RATE_PPM_MAX, SimulatedClock, WallClock
from sexton.simulate.faults import BREAKING_PROCESSES, FIRST_FAULT_MS, SHAPES, Kind, schedule
from sexton.simulate.loop import NS, Process, new_loop
from sexton.simulate.nemesis import closed_logs
from sexton.simulate.planning import make_plan
from sexton.simulate.shrink import as_ranges, from_ranges

BROKERS = ["broker-1", "broker-2", "broker-3"]


def test_a_seed_always_gives_the_same_schedule_and_another_seed_another() -> None:
    def make(seed: int) -> list[str]:
        return [f"{each.at_ms} {each}" for each in schedule(random.Random(seed), BROKERS, ["client"], 60_000)]

    assert make(1) == make(1)
    assert make(1) != make(2)


def test_every_kind_of_fault_occurs_and_every_seed_leaves_some_out() -> None:
    seen: set[Kind] = set()
    for seed in range(100):
        faults = schedule(random.Random(seed), BROKERS, ["client"], 120_000)
        kinds = {fault.kind for fault in faults}
        assert kinds != set(SHAPES)
        assert faults == sorted(faults, key=lambda fault: fault.at_ms)
        assert all(fault.at_ms >= FIRST_FAULT_MS for fault in faults)
        seen |= kinds
    assert seen == set(SHAPES)


@pytest.mark.parametrize(("only_certified", "expected"), [(False, ["0.log", "5.log"]), (True, ["0.log"])])
def test_what_no_snapshot_certifies_rots_only_where_others_can_tell(only_certified: bool, expected: list[str]) -> None:
    files: Any = [(name, None) for name in ("0.index", "0.log", "5.log", "5.snapshot", "9.log", "9.snapshot.tmp")]
    assert [name for name, _ in closed_logs(files, only_certified=only_certified)] == expected


def test_an_item_that_is_left_out_does_not_change_the_others() -> None:
    plan = make_plan(7, 3, 1.0)
    shrunk = plan.without({0, 2})
    assert shrunk.items == (plan.items[1], *plan.items[3:])
    assert shrunk.topics == plan.topics


@pytest.mark.parametrize("text", ["", "0", "1-3,7", "2,4,6-9"])
def test_left_out_items_are_written_as_ranges(text: str) -> None:
    assert as_ranges(from_ranges(text)) == text


def test_clocks_differ_by_less_than_leases_allow_for() -> None:
    fastest, slowest = 1_000_000 + RATE_PPM_MAX, 1_000_000 - RATE_PPM_MAX
    assert fastest / slowest < LEASE_MARGIN


def test_a_wall_clock_jumps_and_a_monotonic_one_does_not() -> None:
    loop = new_loop(random.Random(1))
    wall = WallClock()
    clock = SimulatedClock(wall, Process("p", offset_ns=5 * NS), loop)
    before = clock.now_ms(), clock.monotonic_ms()
    wall.jump(-60_000)
    assert clock.now_ms() == before[0] - 60_000
    assert clock.monotonic_ms() == before[1] == 5000
    loop.close()


def test_some_brokers_die_again_as_soon_as_they_have_started() -> None:
    def is_a_loop(seed: int) -> bool:
        faults = schedule(random.Random(seed), BROKERS, ["client"], 60_000)
        falls = [each for each in faults if each.kind in (Kind.KILL, Kind.POWER) and each.targets == ("broker-1",)]
        gaps_ms = [later.at_ms - before.at_ms - before.lasts_ms for before, later in pairwise(falls)]
        return any(0 < gap_ms < 3_000 for gap_ms in gaps_ms)

    assert any(is_a_loop(seed) for seed in range(30))
    assert not all(is_a_loop(seed) for seed in range(30))


def test_requests_break_when_something_else_is_over_or_at_any_time() -> None:
    near = set()
    for seed in range(60):
        faults = schedule(random.Random(seed), BROKERS, ["client"], 60_000)
        ends = [each.at_ms + each.lasts_ms for each in faults if each.kind in BREAKING_PROCESSES]
        for fault in faults:
            if fault.kind is Kind.METASTORE_BREAKS and ends:
                near.add(any(-1_000 <= fault.at_ms - end < 3_000 for end in ends))
    assert near == {True, False}
