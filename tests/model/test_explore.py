"""With all rules on, nothing is found: exhaustively where an arena is small enough, else as far as the suite has time.

`make explore` goes on until each arena is done, or a much larger bound is reached.
"""

from __future__ import annotations

import pytest

from tests.model.explorations import COARSE, DEFERRED, FINE
from tests.model.explore import Outcome, explore, tell
from tests.model.machine import Machine

STATES_IN_SUITE = 5_000
STATES_OF_DEFERRAL_IN_SUITE, STATES_OF_DEFERRAL = 500, 20_000
REST_EVERY = 250


def explored(machine: Machine, states_max: int) -> Outcome:
    outcome = explore(machine, states_max, rest_every=REST_EVERY)
    print(outcome)
    assert outcome.violation is None, tell(machine, outcome.trace)
    return outcome


@pytest.mark.soak
def test_a_value_and_its_tombstone_are_safe_in_every_state_there_is() -> None:
    outcome = explored(Machine(FINE["a value and its tombstone"]), 200_000)
    assert outcome.is_complete
    assert outcome.states > 30_000


def test_a_transaction_is_safe_in_every_state_there_is() -> None:
    outcome = explored(Machine(FINE["a transaction"]), 200_000)
    assert outcome.is_complete
    assert outcome.states > 10_000


@pytest.mark.parametrize("name", [*FINE, *COARSE])
def test_the_first_states_of_a_large_arena_are_safe(name: str) -> None:
    explored(Machine({**FINE, **COARSE}[name]), STATES_IN_SUITE)


@pytest.mark.parametrize("name", DEFERRED)
def test_the_first_states_in_which_superseded_values_are_left_are_safe(name: str, is_soak: bool) -> None:
    explored(Machine(DEFERRED[name]), STATES_OF_DEFERRAL if is_soak else STATES_OF_DEFERRAL_IN_SUITE)


@pytest.mark.soak
def test_leaving_superseded_values_is_safe_in_every_state_there_is() -> None:
    outcome = explored(Machine(DEFERRED["values are left"]), 200_000)
    assert outcome.is_complete
    assert outcome.states > 2_000
