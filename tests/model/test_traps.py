"""Every rule is missed when it is gone, and nothing is found while it is there."""

from __future__ import annotations

import pytest

from tests.model.compact_once import COMPACT_ONCE
from tests.model.deferral_traps import DEFERRAL
from tests.model.explore import Outcome, explore, tell
from tests.model.machine import Machine
from tests.model.switches import SEXTON
from tests.model.traps import MORE, SEEDS, TRAPS, Trap

FOUND_WITHIN = 60_000
"""States that a search for a trap may look at."""

CLEAN_WITHIN = 1_500
"""States of the same arena that are looked at with all rules on, in the suite; `make explore` looks at more."""


def search(trap: Trap) -> tuple[Machine, Outcome]:
    machine = Machine(trap.arena, trap.rules, definitions=trap.by_definition)
    rest_every = 1 if trap.at_rest else 0
    return machine, explore(machine, FOUND_WITHIN, lambda found: found.kind == trap.found, rest_every=rest_every)


def assert_found(trap: Trap) -> None:
    machine, outcome = search(trap)
    print(outcome)
    assert outcome.violation is not None, f"not found: {outcome}"
    print(tell(machine, outcome.trace))


@pytest.mark.soak
@pytest.mark.parametrize("name", SEEDS)
def test_without_coordination_what_seed_1_describes_is_found(name: str) -> None:
    assert_found(SEEDS[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_of_the_table_is_found_without_its_rule(name: str) -> None:
    assert_found(TRAPS[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", MORE)
def test_a_rule_from_elsewhere_in_the_design_is_missed(name: str) -> None:
    assert_found(MORE[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", COMPACT_ONCE)
def test_a_condition_of_compact_once_is_missed(name: str) -> None:
    assert_found(COMPACT_ONCE[name])


@pytest.mark.parametrize("name", DEFERRAL)
def test_a_condition_of_deferral_is_missed(name: str) -> None:
    assert_found(DEFERRAL[name])


ALL = {**SEEDS, **TRAPS, **MORE, **COMPACT_ONCE, **DEFERRAL}


@pytest.mark.parametrize("name", ALL)
def test_with_all_rules_the_same_arena_is_clean(name: str) -> None:
    machine = Machine(ALL[name].arena, SEXTON)
    outcome = explore(machine, CLEAN_WITHIN, rest_every=100)
    print(outcome)
    assert outcome.violation is None, tell(machine, outcome.trace)


def test_an_old_disk_of_an_older_incarnation_is_stopped_by_the_fence_alone() -> None:
    trap = TRAPS["old disk of an older incarnation, and no fence"]
    machine = Machine(trap.arena, SEXTON._replace(other_incarnation_is_wiped=False), definitions=False)
    outcome = explore(machine, CLEAN_WITHIN)
    assert outcome.violation is None, tell(machine, outcome.trace)
