"""In-sync sets: every rule is missed when it is gone, and nothing is found while it is there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sexton.simulate.broken import breaking
from tests.model.explore import explore, tell
from tests.model.insync import real
from tests.model.insync.arenas import CLEAN, WALKS
from tests.model.insync.machine import Machine
from tests.model.insync.traps import TRAPS
from tests.model.walk import Found, shrink, walk

FOUND_WITHIN = 60_000
"""States that a search for a trap may look at."""

CLEAN_WITHIN = 5_000
"""States of the same arena that are looked at with all rules on in the suite; `python -m tests.model` goes on."""

STATES, STATES_IN_SUITE = 20_000, 5_000
WALKS_PER_ARENA, WALKS_IN_SUITE = 200, 50
STEPS = 150


def assert_clean(machine: Machine, states_max: int, rest_every: int) -> None:
    outcome = explore(machine, states_max, rest_every=rest_every)
    print(outcome)
    assert outcome.violation is None, tell(machine, outcome.trace)


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_found_without_its_rule(name: str) -> None:
    trap = TRAPS[name]
    machine = Machine(trap.arena, trap.rules)
    rest_every = 0 if trap.found == "rule 1" else 1
    outcome = explore(machine, FOUND_WITHIN, lambda found: found.kind == trap.found, rest_every=rest_every)
    print(outcome)
    assert outcome.violation is not None, f"not found: {outcome}"
    print(tell(machine, outcome.trace))


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    yield
    real.forget()


PUT_BACK = {
    "isr-join-forgotten": "a join is carried out after a later attempt was refused",
    "progress-outlives-incarnation": "a replica is removed and added again between two polls of its leader",
}
"""Defects of the past, and where they were."""


@pytest.mark.parametrize("defect", PUT_BACK)
def test_a_defect_that_is_put_back_into_the_product_is_found(defect: str) -> None:
    real.forget()
    with breaking(defect):
        outcome = explore(Machine(TRAPS[PUT_BACK[defect]].arena), FOUND_WITHIN)
    assert outcome.violation is not None, f"not found: {outcome}"
    assert outcome.violation.kind in ("rule 1", "invariant")


@pytest.mark.parametrize("name", TRAPS)
def test_with_all_rules_nothing_is_lost_there_and_all_replicas_come_back_into_sync(name: str) -> None:
    assert_clean(Machine(TRAPS[name].arena), CLEAN_WITHIN, rest_every=20)


@pytest.mark.parametrize("name", CLEAN)
def test_the_first_states_of_a_large_arena_are_safe_and_come_to_rest(name: str, is_soak: bool) -> None:
    assert_clean(Machine(CLEAN[name]), STATES if is_soak else STATES_IN_SUITE, rest_every=100)


@pytest.mark.parametrize("name", WALKS)
def test_walks_lose_nothing_and_come_to_rest(name: str, is_soak: bool) -> None:
    machine = Machine(WALKS[name])
    walks = WALKS_PER_ARENA if is_soak else WALKS_IN_SUITE
    steps = 0
    for seed in range(walks):
        outcome = walk(machine, random.Random(seed), STEPS)
        if isinstance(outcome, Found):
            shrunk = shrink(machine, outcome)
            trace = "\n".join(" ".join(str(part) for part in action) for action in shrunk.trace)
            pytest.fail(f"seed {seed}: {shrunk.violation}\n{trace}")
        steps += outcome
    assert steps > walks * STEPS // 4
