"""Random walks: far beyond the explored arenas with all rules on; and that they find and shrink what is wrong."""

from __future__ import annotations

import random

import pytest

from tests.model.compact_once import COMPACT_ONCE
from tests.model.explorations import EVERYTHING, WALKS
from tests.model.machine import Machine
from tests.model.switches import KAFKA, SEXTON
from tests.model.traps import AHEAD, IMAGE, MORE, TRAPS
from tests.model.walk import Found, replay, shrink, walk

WALKS_PER_ARENA, WALKS_IN_SUITE = 60, 20
STEPS = 100

PREFIXES = {
    "an image of before the tombstone": IMAGE,
    "high watermarks that differ": AHEAD,
    **{
        name: trap.arena.prefix
        for name, trap in {**TRAPS, **MORE, **COMPACT_ONCE}.items()
        if trap.arena.prefix and not trap.arena.starts_independent and not trap.arena.generations_max
    },
}
"""Known bad traces begin like this: walks that start here come to places that others hardly ever reach."""


def assert_clean(machine: Machine, seeds: range) -> int:
    steps = 0
    for seed in seeds:
        outcome = walk(machine, random.Random(seed), STEPS)
        if isinstance(outcome, Found):
            shrunk = shrink(machine, outcome)
            trace = "\n".join(" ".join(str(part) for part in action) for action in shrunk.trace)
            pytest.fail(f"seed {seed}: {shrunk.violation}\n{trace}")
        steps += outcome
    print(f"{len(seeds)} walks, {steps:,} steps: nothing found")
    return steps


@pytest.mark.parametrize("name", WALKS)
def test_walks_find_nothing(name: str, is_soak: bool) -> None:
    walks = WALKS_PER_ARENA if is_soak else WALKS_IN_SUITE
    assert assert_clean(Machine(WALKS[name]), range(walks)) > walks * STEPS // 2


@pytest.mark.parametrize("name", PREFIXES)
def test_walks_from_the_beginning_of_a_bad_trace_find_nothing(name: str, is_soak: bool) -> None:
    arena = EVERYTHING._replace(consumer=True, coarse=True, lazy_flush=False, prefix=PREFIXES[name])
    assert_clean(Machine(arena), range(6 if is_soak else 2))


def test_walks_without_coordination_find_a_divergence_and_shrink_it() -> None:
    arena = EVERYTHING._replace(membership=False, lost_disks=False, images=False, snapshots=0, coarse=True)
    machine = Machine(arena, KAFKA)
    found = next(
        outcome
        for seed in range(500)
        if isinstance(outcome := walk(machine, random.Random(seed), STEPS, at_rest=False), Found)
    )
    shrunk = shrink(machine, found)
    again = replay(machine, shrunk.trace)
    assert again is not None
    assert again.kind == found.violation.kind
    assert len(shrunk.trace) <= len(found.trace)
    for index in range(len(shrunk.trace)):
        shorter = replay(machine, shrunk.trace[:index] + shrunk.trace[index + 1 :])
        assert shorter is None or shorter.kind != again.kind, "one step could have been left out"


def test_the_same_seed_walks_the_same_way() -> None:
    machine = Machine(EVERYTHING, SEXTON)
    first, second = ([], [])  # type: ignore[var-annotated]
    for steps in (first, second):
        rng = random.Random(7)
        steps += [walk(machine, rng, 40), rng.random()]
    assert first == second
