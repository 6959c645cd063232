"""Cloud topics: with every rule nothing is found in any state of the models; without each, what it protects from is."""

from __future__ import annotations

import pytest

from tests.model.cloud import collector, commits, levels
from tests.model.cloud.collector import Collector
from tests.model.cloud.commits import Arena, Commits
from tests.model.cloud.levels import Levels
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
    assert {*levels.TRAPS, *levels.EITHER} == set(levels.Rules._fields)


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


LEVELS = {
    "two keys, a transaction": levels.Arena(logs=("ttA", "tbA", "taC", "axa")),
    "a consumer that reads along": levels.Arena(logs=("ax",), epochs=1, jobs=1, has_deletions=False, has_reader=True),
}
WITH_A_CONSUMER = ("horizons_outlast_views", "late_commits_are_refused")


@pytest.mark.parametrize("name", LEVELS)
def test_leveling_and_compaction_keep_what_was_committed_whomever_they_meet(name: str) -> None:
    machine = Levels(levels.Rules(), LEVELS[name])
    outcome = explore(machine, STATES_MAX, rest_every=50)
    print(outcome)
    assert outcome.violation is None, tell(machine, outcome.trace)
    assert outcome.is_complete


@pytest.mark.parametrize("rule", levels.TRAPS)
def test_without_a_rule_of_both_levels_what_it_protects_from_is_found(rule: str) -> None:
    arena = LEVELS["a consumer that reads along" if rule in WITH_A_CONSUMER else "two keys, a transaction"]
    machine = Levels(levels.Rules()._replace(**{rule: False}), arena)
    outcome = explore(machine, STATES_MAX)
    print(f"without {rule}: {outcome}")
    assert outcome.violation is not None
    print(tell(machine, outcome.trace))
    assert outcome.violation.kind in levels.TRAPS[rule]


def test_of_the_compaction_epoch_and_the_inputs_either_would_do() -> None:
    """Both are compared: the epoch is what leaders know their maps of L1 by, and inputs are what a commit removes."""
    arena = levels.Arena(logs=("ax",))
    for rule in levels.EITHER:
        outcome = explore(Levels(levels.Rules()._replace(**{rule: False}), arena), STATES_MAX)
        print(f"without {rule}: {outcome}")
        assert outcome.violation is None
        assert outcome.is_complete
    neither = Levels(levels.Rules()._replace(**dict.fromkeys(levels.EITHER, False)), arena)
    outcome = explore(neither, STATES_MAX)
    print(f"without both: {outcome}")
    assert outcome.violation is not None
    assert outcome.violation.kind == "extents overlap or leave a gap"
