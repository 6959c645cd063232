"""Cloud topics: with every rule nothing is found in any state of the models; without each, what it protects from is."""

from __future__ import annotations

import pytest

from tests.model.cloud import collector, commits
from tests.model.cloud.collector import Collector
from tests.model.cloud.commits import Arena, Commits
from tests.model.explore import explore, tell

STATES_MAX = 400_000


def test_no_live_object_is_ever_deleted_and_nothing_leaks() -> None:
    machine = Collector(collector.Rules())
    outcome = explore(machine, STATES_MAX, rest_every=1)
    print(outcome)
    assert outcome.violation is None, tell(machine, outcome.trace)
    assert outcome.is_complete


@pytest.mark.parametrize("rule", collector.TRAPS)
def test_without_a_rule_of_the_collector_what_it_protects_from_is_found(rule: str) -> None:
    machine = Collector(collector.Rules()._replace(**{rule: False}))
    outcome = explore(machine, STATES_MAX)
    print(f"without {rule}: {outcome}")
    assert outcome.violation is not None
    print(tell(machine, outcome.trace))
    assert outcome.violation.kind == collector.TRAPS[rule]


def test_every_rule_of_the_models_has_its_trap() -> None:
    assert set(collector.TRAPS) == set(collector.Rules._fields)
    assert {*commits.TRAPS, *commits.HARMLESS} == set(commits.Rules._fields)


ARENAS = {
    "one producer": Arena(),
    "two producers": Arena(one_producer=False),
    "one record, three epochs": Arena(records=1, epochs=3),
}


@pytest.mark.parametrize("name", ARENAS)
def test_what_is_acknowledged_is_in_the_log_once_in_order_at_its_offset(name: str) -> None:
    machine = Commits(commits.Rules(), ARENAS[name])
    outcome = explore(machine, STATES_MAX, rest_every=50)
    print(outcome)
    assert outcome.violation is None, tell(machine, outcome.trace)
    assert outcome.is_complete


@pytest.mark.parametrize("rule", commits.TRAPS)
def test_without_a_rule_of_commits_what_it_protects_from_is_found(rule: str) -> None:
    arena = ARENAS["two producers" if rule == "old_epochs_end_where_the_next_began" else "one producer"]
    machine = Commits(commits.Rules()._replace(**{rule: False}), arena)
    outcome = explore(machine, STATES_MAX)
    print(f"without {rule}: {outcome}")
    assert outcome.violation is not None
    print(tell(machine, outcome.trace))
    assert outcome.violation.kind in commits.TRAPS[rule]


@pytest.mark.parametrize("rule", commits.HARMLESS)
def test_the_writer_epoch_is_for_progress_and_not_for_safety(rule: str) -> None:
    outcome = explore(Commits(commits.Rules()._replace(**{rule: False})), STATES_MAX)
    print(f"without {rule}: {outcome}")
    assert outcome.violation is None
    assert outcome.is_complete
