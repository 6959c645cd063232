from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest

from sexton.checker.allowed import Model, allowed
from sexton.checker.anomalies import ANOMALIES, Weight
from sexton.checker.kernels import judge as kernels
from sexton.checker.reference import CHECKS, judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement, Verdict, merge
from sexton.checker.view import prepare
from sexton.history.flat import from_ops, paired
from sexton.history.op import HEAL, Ext, F, Run, Span, Type
from tests.checker.story import Story, delete, poll, send, table_story
from tests.project import PROJECT_DIR


def _good() -> Story:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.polled(1, poll(0, (0, 1)))
    return story


def test_the_table_has_all_forty_and_every_check_is_in_it() -> None:
    assert {anomaly.number for anomaly in ANOMALIES.values()} == set(range(1, 41))
    in_cycles = {name for name, anomaly in ANOMALIES.items() if anomaly.number in (15, 16, 17, 19)}
    assert CHECKS.keys() | in_cycles == ANOMALIES.keys()
    assert all(anomaly.meaning.endswith(".") for anomaly in ANOMALIES.values())


def test_the_rules_that_anomalies_break_are_on_the_page_of_rules() -> None:
    page = (PROJECT_DIR / "docs" / "rules.md").read_text()
    broken = {rule for anomaly in ANOMALIES.values() for rule in anomaly.rules}
    assert all(f'<a id="rule-{rule}"></a>' in page for rule in broken)


def test_false_is_worse_than_unknown_and_unknown_than_true() -> None:
    assert merge([Verdict.TRUE, Verdict.UNKNOWN, Verdict.FALSE]) is Verdict.FALSE
    assert merge([Verdict.TRUE, Verdict.UNKNOWN]) is Verdict.UNKNOWN
    assert merge([Verdict.TRUE]) is Verdict.TRUE


def test_a_history_in_which_all_is_well_is_true() -> None:
    assert _good().judge().verdict is Verdict.TRUE


def test_a_history_in_which_nothing_was_done_is_unknown() -> None:
    judgement = Story().judge()
    assert judgement.verdict is Verdict.UNKNOWN
    assert "a record was sent" in _unmet(judgement)


def test_what_nobody_read_to_its_end_is_unknown_and_not_false() -> None:
    story = _good()
    story.sent(0, send(0, 2, 1))
    judgement = story.judge()
    assert judgement.verdict is Verdict.UNKNOWN
    assert _unmet(judgement) == ["somebody read to the end of every log"]
    assert story.judge(model=Model.JEPSEN).verdict is Verdict.FALSE


def test_an_operation_that_never_worked_leaves_its_part_unknown() -> None:
    story = _good()
    story.call(2, F.ASSIGN, logs=(0,), type=Type.INFO)
    story.call(2, F.CRASH, type=Type.INFO)
    assert _unmet(story.judge()) == ["assign was ok once"]


def test_transactions_need_a_commit_and_an_abort() -> None:
    story = _good()
    story.call(3, F.TXN, send(1, 1, 0))
    story.polled(4, poll(1, (0, 1)))
    assert _unmet(story.judge()) == ["a transaction was aborted"]


def test_a_table_of_which_nothing_was_removed_was_not_tested() -> None:
    story = table_story(delete_retention_ms=0)
    story.sent(0, send(0, 1, 0, key=7))
    story.table(1, 1, (0, 1, 7))
    story.polled(1, poll(0, (0, 1, 7)))
    unmet = {"compaction removed a record", "compaction removed a tombstone", "a leader moved"}
    assert set(_unmet(story.judge())) == unmet
    story.sent(0, delete(0, 2, 1, key=7))
    story.call(8, F.DEBUG, ext={Ext.LEADER_EPOCHS: {"0": 1}})
    story.call(8, F.DEBUG, ext={Ext.LEADER_EPOCHS: {"0": 2}})
    story.wait(10)
    story.table(1, 2)
    assert story.judge().verdict is Verdict.TRUE


def test_each_replica_that_was_to_be_read_at_the_end_must_have_been() -> None:
    def scan(story: Story, broker: int, type_: Type) -> None:
        ext = {Ext.REPLICA: broker, Ext.LOG: 0, Ext.FINAL: True}
        story.call(1, F.SCAN, poll(0, (0, 1)), spans={0: Span(0, 1)}, type=type_, ext=ext)

    story = _good()
    story.call(1, F.SCAN, type=Type.FAIL, ext={Ext.REPLICA: 9})
    scan(story, 1, Type.OK)
    scan(story, 2, Type.FAIL)
    unread = "every replica was read to its end, but not log 0 at broker 2"
    assert _unmet(story.judge()) == [unread]
    assert story.judge().verdict is Verdict.UNKNOWN
    assert _unmet(kernels.judge(paired(from_ops(story.ops)), story.run)) == [unread], "by the kernels, too"
    scan(story, 2, Type.OK)
    assert story.judge().verdict is Verdict.TRUE, "one that could not be read may be read later"


def test_a_fault_must_meet_operations() -> None:
    story = Story()
    story.nemesis("kill", phase="start")
    story.nemesis(HEAL)
    story.ops += [replace(op, index=op.index + 2, time_ns=op.time_ns + 2 * 10**9) for op in _good().ops]
    assert _unmet(story.judge()) == ["a fault was in force while operations were in flight"]


def test_what_a_run_is_set_up_for_is_allowed() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.sent(0, send(0, 2, 1))
    story.polled(1, poll(0, (1, 2)))
    story.nemesis("kill", phase="start")
    assert story.wrong() == {"lost-write"}
    story.run = Run(has_acks_all=False)
    assert story.wrong() == set()
    assert story.judge().allowed.keys() == {"lost-write", "unseen"}
    assert story.judge(model=Model.STRICT).wrong() == ["lost-write"]
    assert story.judge(model=Model.STRICT, ignore=frozenset({"lost-write"})).wrong() == []


@pytest.mark.parametrize(
    "name", ["lost-write", "unseen", "acknowledged-nowhere", "group-skip", "inconsistent-offsets", "nonmonotonic-send"]
)
def test_who_does_not_wait_for_all_replicas_may_lose_what_it_was_told(name: str) -> None:
    """An offset that the producer was told may be that of another record by then."""
    planted = sabotage(name, 1)
    view = prepare(planted.history.ops, replace(planted.history.run, has_acks_all=False), planted.options)
    assert name in allowed(view, Model.KAFKA)
    assert name not in allowed(replace(view, nemesis=()), Model.KAFKA), "nothing was broken"
    assert name not in allowed(prepare(planted.history.ops, planted.history.run), Model.KAFKA)


def test_whom_nobody_holds_to_anything_after_damage_is_neither_true_nor_false() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.sent(0, send(0, 2, 1))
    story.polled(1, poll(0, (1, 2)))
    story.run = Run(is_damage_judged=False)
    story.nemesis("corrupt-file", phase="start")
    assert story.wrong() == {"lost-write"}, "it hit nobody"
    story.nemesis("corrupt-file", phase="start", damaged={"t-0/a": "removed"})
    judgement = story.judge()
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.allowed.keys() == {"lost-write", "unseen"}
    assert "what a system makes of damaged files is judged" in _unmet(judgement)
    assert story.judge(model=Model.STRICT).verdict is Verdict.FALSE
    story.run = Run()
    assert story.wrong() == {"lost-write"}


@pytest.mark.parametrize("name", ["poll-skip", "nonmonotonic-poll"])
def test_who_subscribes_may_be_moved(name: str) -> None:
    story = Story()
    story.sent(0, *(send(0, value, value) for value in range(3)))
    story.polled(2, poll(0, (0, 0), (1, 1), (2, 2)))
    story.polled(1, poll(0, (0, 0)))
    story.polled(1, poll(0, (2, 2) if name == "poll-skip" else (0, 0)))
    assert story.wrong() == {name}
    story.run = Run(uses_subscribe=True)
    assert story.wrong() == set()


def test_jepsens_verdict_counts_jepsens_anomalies_alone() -> None:
    story = _good()
    story.polled(1, poll(1, (0, 9)))
    assert story.judge().wrong() == ["unwritten-read"]
    assert story.judge(model=Model.JEPSEN).verdict is Verdict.TRUE


def test_a_judgement_does_not_depend_on_the_order_in_which_operations_come() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(0, 2, 1), send(1, 3, 0))
    story.sent(2, send(0, 4, 1))
    story.polled(1, poll(0, (1, 2), (0, 1)), poll(1, (0, 3)))
    story.polled(1, poll(0, (1, 4), (0, 1)))
    expected = story.judge().canonical()
    for seed in range(5):
        shuffled = random.Random(seed).sample(story.ops, len(story.ops))
        assert judge(shuffled, story.run).canonical() == expected


def test_the_worst_cases_are_kept_and_all_are_counted() -> None:
    story = Story(options=replace(Story().options, evidence_max=2))
    story.sent(0, *(send(0, value, value) for value in range(8)))
    for first in (1, 5, 3):
        story.call(9, F.ASSIGN, logs=())
        story.polled(9, poll(0, (first, first), (0, 0)))
    found = story.findings()["int-nonmonotonic-poll"]
    assert (found.count, [case.severity for case in found.cases]) == (3, [5, 3])


def test_a_judgement_is_plain_data() -> None:
    judgement = _good().judge()
    told = {"verdict", "model", "allowed", "obligations", "notes", "counted"}
    assert judgement.to_json().keys() == {*told, "anomalies"}
    assert {field.name for field in fields(Judgement)} == {*told, "findings"}
    assert {anomaly.weight for anomaly in ANOMALIES.values()} == set(Weight)


def _unmet(judgement: Judgement) -> list[str]:
    return [duty.name for duty in judgement.obligations if not duty.is_met]
