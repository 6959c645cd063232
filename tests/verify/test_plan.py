"""What a plan makes of clients' settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Verdict
from sexton.history import run as description
from sexton.history.lines import to_line
from sexton.history.run import Description
from sexton.verify.clients.known import CLIENTS, IMPATIENCE_MS
from sexton.verify.plan import FETCHES, Plan
from sexton.verify.run import Rules, against_expected, check, completed, digest
from sexton.verify.run import judge as judge_run
from sexton.verify.workloads.known import Asked


def test_settings_that_were_asked_for_go_on_top_of_all_others() -> None:
    plan = Plan(seed=1, client_settings={"session.timeout.ms": "9000", "linger.ms": "1"})
    found = plan.consumer_settings("java", {"session.timeout.ms": 1, "max.poll.records": 5}, speaks_kip848=False)
    assert (found["session.timeout.ms"], found["max.poll.records"]) == (9_000, 5)
    assert plan.producer_settings("java")["linger.ms"] == 1


def test_producers_wait_for_all_and_are_idempotent_unless_asked_otherwise() -> None:
    assert "acks" not in Plan(seed=1).producer_settings("confluent-kafka")
    asked = Plan(seed=1, acks="1", is_idempotent=False).producer_settings("confluent-kafka")
    assert (asked["acks"], asked["enable.idempotence"]) == (1, False)


def test_where_requests_are_late_producers_give_up_before_their_transactions_do() -> None:
    plan = Plan(seed=1, faults=("late",))
    assert plan.patience_ms > 2 * IMPATIENCE_MS
    for name, known in CLIENTS.items():
        assert plan.producer_settings(name).items() >= known.impatient.items()
    assert Plan(seed=1).patience_ms == 1_000


def test_a_digest_tells_plans_apart_that_do_or_suffer_something_else() -> None:
    plan = Plan(seed=1, faults=("kill",))
    assert digest(plan, Asked()) == digest(Plan(seed=1, faults=("kill",)), Asked())
    others = (replace(plan, seed=2), replace(plan, faults=("pause",)), replace(plan, left_out=(0,)))
    found = {digest(each, Asked()) for each in (plan, *others)} | {digest(plan, Asked(is_transactional=True))}
    assert len(found) == 5


def test_no_client_waits_for_more_than_it_would_be_given_at_once() -> None:
    """It would be given every piece of a long log only when its time is over, and never get to the end."""
    assert all(int(each["fetch.min.bytes"]) < int(each["max.partition.fetch.bytes"]) for each in FETCHES)
    assert len({each["max.partition.fetch.bytes"] for each in FETCHES}) == 3
    assert 1 in {each["fetch.min.bytes"] for each in FETCHES}


def test_shared_ids_are_of_two_clients_each() -> None:
    ids = [Plan(seed=1, shares_transactional_ids=True).transactional_id(thread, 20 + thread) for thread in range(4)]
    assert len(set(ids)) == 2
    assert len({Plan(seed=1).transactional_id(thread, thread) for thread in range(4)}) == 4


@pytest.mark.parametrize(
    ("expected", "seen", "verdict"),
    [
        ("", {"advance, not rebalanced": 5}, Verdict.TRUE),
        ("advance", {"advance, not rebalanced": 5}, Verdict.TRUE),
        ("rewind", {"advance, not rebalanced": 5}, Verdict.FALSE),
        ("rewind", {"rewind, rebalanced": 1, "rewind-further, rebalanced": 1}, Verdict.FALSE),
        ("rewind", {}, Verdict.UNKNOWN),
    ],
)
def test_where_consumers_stand_after_an_abort_counts_only_if_somebody_relies_on_it(
    expected: str, seen: dict[str, int], verdict: Verdict
) -> None:
    history = correct(1)
    judgement = judge(history.ops, history.run)
    assert judgement.verdict is Verdict.TRUE
    found = against_expected(judgement, expected, seen)
    assert found.verdict is verdict
    assert found.wrong() == []


def test_what_somebody_expected_of_a_run_counts_once_however_it_is_judged(tmp_path: Path) -> None:
    """On Spark, too, where the run's description does not go."""
    history = correct(1)
    run = replace(history.run, workload="abort")
    more = {"options": {"expected": "rewind"}, "seen": {"advance, not rebalanced": 5}}
    description.write(tmp_path, Description(run, more))
    (tmp_path / "history.jsonl").write_bytes(b"".join(map(to_line, history.ops)))
    judged = judge_run(tmp_path, history.ops, run, Rules())
    assert judged.verdict is Verdict.TRUE, "the history alone"
    for found in (completed(judged, tmp_path), check(tmp_path, Rules())):
        assert found.verdict is Verdict.FALSE
        assert [duty.name for duty in found.obligations if "after an abort" in duty.name] == [
            "after an abort consumers rewind: 5 x advance, not rebalanced"
        ]
        assert list(found.counted.values()) == [5]


def test_a_retry_of_a_producer_that_is_not_idempotent_may_write_a_record_twice() -> None:
    planted = sabotage("duplicate", 1)
    for is_idempotent in (True, False):
        run = replace(planted.history.run, is_idempotent=is_idempotent)
        assert ("duplicate" in judge(planted.history.ops, run).wrong()) is is_idempotent
