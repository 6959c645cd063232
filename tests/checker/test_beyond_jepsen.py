"""Anomalies that Jepsen's histories cannot show: positions, groups, exactly-once, watermarks. Each has its smallest
history, and one that looks like it and proves nothing."""

from __future__ import annotations

from typing import Any

from sexton.history.op import HEAL, Ext, F, Log, Run, Span, Type
from tests.checker.story import PLAIN, Story, poll, send


def test_what_nobody_sent_cannot_be_read() -> None:
    story = Story()
    reader = story.polled(0, poll(0, (0, 7)))
    assert story.findings()["unwritten-read"].cases[0].ops == (reader,)


def test_what_an_unfinished_call_sent_can_be_read() -> None:
    story = Story()
    story.begin(1, F.SEND, send(0, 7))
    story.polled(0, poll(0, (0, 7)))
    assert story.count("unwritten-read") == 0


def test_a_transaction_of_which_one_record_was_read_and_another_is_lost_is_torn() -> None:
    story = Story()
    writer = story.sent(0, send(0, 1, 0), send(1, 1, 0))
    story.sent(0, send(1, 2, 2))
    reader = story.polled(1, poll(0, (0, 1)))
    passed = story.polled(2, poll(1, (2, 2)))
    found = story.findings()["torn-transaction"]
    assert (found.count, found.cases[0].log, found.cases[0].ops) == (1, 1, (writer, passed, reader))


def test_an_aborted_transaction_of_which_a_part_was_read_is_torn() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(1, 1, 0), type=Type.FAIL)
    story.read(1, (0, 1), (0, 1))
    assert story.count("torn-transaction") == 0  # all of it may have been committed
    story.read(1, (0, 2), log=1)
    assert story.count("torn-transaction") == 1


def test_a_transaction_that_was_read_in_part_because_nobody_read_on_is_whole() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(1, 1, 5))
    story.sent(0, send(1, 2, 2))
    story.polled(1, poll(0, (0, 1)))
    story.polled(2, poll(1, (2, 2)))
    assert story.count("torn-transaction") == 0


def test_a_reader_that_passes_two_records_of_a_transaction_and_gets_one_read_a_fraction() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(0, 2, 1))
    story.read(1, (0, 3), (0, 1))
    assert story.count("fractured-read") == 1
    assert "fractured-read" not in story.wrong()


def test_a_reader_that_stops_between_two_records_of_a_transaction_read_no_fraction() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0), send(0, 2, 1))
    story.read(1, (0, 1), (0, 1))
    assert story.count("fractured-read") == 0


def test_a_record_from_outside_the_span_of_its_poll() -> None:
    story = Story()
    story.sent(0, send(0, 1, 5))
    story.read(1, (0, 5), (5, 1))
    assert story.findings()["wrong-span"].cases[0].detail == {"offset": 5, "span": [0, 5]}


def test_a_span_in_a_rebalance_proves_nothing() -> None:
    story = Story()
    story.sent(0, send(0, 1, 5))
    story.read(1, (0, 5), (5, 1), rebalanced=frozenset({0}))
    story.read(1, (5, 9), (5, 1))
    assert story.count("wrong-span") == 0


def _still(*, seconds: int, healed: bool = True, offset: int = 3) -> Story:
    story = Story()
    story.sent(0, send(0, 1, offset))
    story.nemesis("kill", phase="start")
    if healed:
        story.nemesis(HEAL)
    story.read(1, (3, 3))
    story.wait(seconds)
    story.read(1, (3, 3))
    return story


def test_a_consumer_that_gets_nothing_though_records_lie_ahead_is_stuck() -> None:
    found = _still(seconds=61).findings()["stuck"]
    assert (found.count, found.cases[0].values, found.cases[0].detail["position"]) == (1, (1,), 3)


def test_a_consumer_at_the_end_or_in_a_broken_cluster_or_in_patience_is_not_stuck() -> None:
    assert _still(seconds=59).count("stuck") == 0
    assert _still(seconds=61, healed=False).count("stuck") == 0
    assert _still(seconds=61, offset=2).count("stuck") == 0


def _member(story: Story, process: int, span: tuple[int, int], *records: tuple[int, int], generation: int = 1) -> int:
    return story.read(process, span, *records, ext={Ext.GROUP: "g", Ext.GENERATION: generation})


def _commit(story: Story, process: int, offset: int, type: Type = Type.OK, **ext: Any) -> int:
    return story.call(process, F.COMMIT, type=type, offsets={0: offset}, ext={Ext.GROUP: "g", **ext})


def _committed(story: Story, offset: int) -> int:
    return story.call(9, F.COMMITTED, offsets={0: offset}, ext={Ext.GROUP: "g"})


def test_a_group_committed_more_than_it_was_given() -> None:
    story = Story()
    _member(story, 0, (0, 4), (0, 1))
    bad = _commit(story, 0, 6)
    found = story.findings()["committed-too-far"]
    assert found.cases[0].ops == (bad,)
    assert found.cases[0].detail == {"group": "g", "offset": 6, "given-to": 4}


def test_a_group_may_commit_what_another_member_was_given_or_one_that_died_may_have_been() -> None:
    story = Story()
    _member(story, 0, (0, 4))
    _member(story, 1, (4, 6))
    _commit(story, 0, 6)
    assert story.count("committed-too-far") == 0
    story.begin(2, F.POLL, poll(0))
    story.end(2, F.POLL, type=Type.INFO, ext={Ext.GROUP: "g"})
    _commit(story, 0, 9)
    assert story.count("committed-too-far") == 0


def test_a_member_that_does_not_tell_its_position_may_stand_behind_a_marker() -> None:
    story = Story()
    _member(story, 0, (0, 4))
    story.polled(1, poll(0, (4, 1)), ext={Ext.GROUP: "g"})
    _commit(story, 1, 6)
    assert story.count("committed-too-far") == 0


def test_a_record_below_the_committed_offset_that_no_member_was_given() -> None:
    story = Story()
    sender = story.sent(5, send(0, 1, 0), send(0, 2, 1))
    _member(story, 0, (0, 2), (1, 2))
    commit = _commit(story, 0, 2)
    found = story.findings()["group-skip"]
    assert (found.cases[0].values, found.cases[0].ops) == ((1,), (sender, commit))


def test_a_record_that_a_member_was_given_before_it_died_was_not_skipped() -> None:
    story = Story()
    story.sent(5, send(0, 1, 0), send(0, 2, 1))
    story.begin(0, F.POLL, poll(0))
    story.end(0, F.POLL, poll(0, (0, 1)), type=Type.INFO, ext={Ext.GROUP: "g"})
    _member(story, 1, (1, 2), (1, 2))
    _commit(story, 1, 2)
    assert story.count("group-skip") == 0


def test_a_committed_offset_is_lower_than_it_was() -> None:
    story = Story()
    _member(story, 0, (0, 9))
    high = _commit(story, 0, 9)
    low = _committed(story, 4)
    found = story.findings()["offset-went-back"]
    assert (found.cases[0].ops, found.cases[0].detail) == ((high, low), {"group": "g", "from": 9, "to": 4})


def test_a_reset_or_a_commit_that_came_late_lowers_the_offset_lawfully() -> None:
    story = Story()
    _commit(story, 0, 9)
    _commit(story, 0, 4, reset=True)
    _committed(story, 4)
    assert story.count("offset-went-back") == 0
    story = Story()
    story.begin(1, F.COMMIT)
    _commit(story, 0, 9)
    story.end(1, F.COMMIT, type=Type.INFO, offsets={0: 4}, ext={Ext.GROUP: "g"})
    _committed(story, 4)
    assert story.count("offset-went-back") == 0


def test_who_assigns_logs_to_itself_commits_from_its_own_place() -> None:
    story = Story()
    for process, offset in ((0, 9), (1, 4)):
        story.call(process, F.ASSIGN, logs=(0,))
        story.call(process, F.TXN, poll(0), ext={Ext.GROUP: "g", Ext.OFFSETS: {"0": offset}})
    assert story.count("offset-went-back") == 0


def test_a_member_of_a_generation_that_is_over_can_still_commit() -> None:
    story = Story()
    other = _member(story, 1, (0, 1), generation=2)
    zombie = _commit(story, 0, 0, generation=1)
    found = story.findings()["zombie-commit"]
    assert found.cases[0].ops == (other, zombie)


def test_a_member_whose_commit_is_refused_or_came_first_is_no_zombie() -> None:
    story = Story()
    _commit(story, 0, 0, generation=1)
    _member(story, 1, (0, 1), generation=2)
    _commit(story, 0, 0, type=Type.FAIL, generation=1)
    assert story.count("zombie-commit") == 0


def _copier() -> Story:
    return Story(Run(workload="eos", logs={0: PLAIN, 1: Log("out", 0, eos_input=(0,))}))


def _copy(story: Story, process: int, value: int, made: int, type: Type = Type.OK, offset: int = 1) -> int:
    return story.call(
        process,
        F.EOS,
        poll(0, (offset - 1, value)),
        send(1, made, made, key=value),
        type=type,
        spans={0: Span(offset - 1, offset)},
        ext={Ext.GROUP: "copiers", Ext.OFFSETS: {"0": offset}},
    )


def test_one_input_was_processed_twice() -> None:
    story = _copier()
    story.sent(5, send(0, 1, 0))
    _copy(story, 0, 1, 10)
    _copy(story, 1, 1, 11)
    found = story.findings()["eos-duplicate"]
    assert (found.cases[0].values, found.cases[0].detail) == ((10, 11), {"input": 1})


def test_one_input_was_processed_again_after_an_abort() -> None:
    story = _copier()
    story.sent(5, send(0, 1, 0))
    _copy(story, 0, 1, 10, type=Type.FAIL)
    _copy(story, 0, 1, 11, type=Type.INFO)
    _copy(story, 1, 1, 12)
    assert story.count("eos-duplicate") == 0


def test_nothing_came_of_an_input_that_counts_as_processed() -> None:
    story = _copier()
    story.sent(5, send(0, 1, 0), send(0, 2, 1))
    _copy(story, 0, 2, 10, offset=2)
    assert story.findings()["eos-loss"].cases[0].values == (1,)


def test_something_may_have_come_of_an_input_whose_transaction_is_in_doubt() -> None:
    story = _copier()
    story.sent(5, send(0, 1, 0), send(0, 2, 1), send(0, 3, 2))
    _copy(story, 0, 1, 10, type=Type.INFO)
    _copy(story, 1, 2, 11, offset=2)
    assert story.count("eos-loss") == 0


def _look(story: Story, high_watermark: int, epoch: int, process: int = 8) -> int:
    ext = {Ext.HIGH_WATERMARKS: {"0": high_watermark}, Ext.LEADER_EPOCHS: {"0": epoch}}
    return story.call(process, F.DEBUG, ext=ext)


def test_a_high_watermark_went_back_under_the_same_leader() -> None:
    story = Story()
    looks = (_look(story, 9, 1), _look(story, 7, 1))
    found = story.findings()["watermark-went-back"]
    assert (found.count, found.cases[0].ops) == (1, looks)


def test_a_high_watermark_that_is_lower_after_a_failover_is_told_only() -> None:
    story = Story()
    _look(story, 9, 1)
    _look(story, 7, 2)
    found = story.findings()
    assert "watermark-went-back" not in found
    assert found["watermark-went-back-at-failover"].count == 1
    assert not story.wrong()


def test_a_send_without_an_offset_is_nowhere_though_what_came_later_was_read() -> None:
    story = Story()
    sender = story.sent(0, send(0, 1))
    story.sent(0, send(0, 2, 4))
    reader = story.polled(1, poll(0, (4, 2)))
    assert story.findings()["acknowledged-nowhere"].cases[0].ops == (sender, reader)


def test_a_send_without_an_offset_may_lie_behind_all_that_was_read() -> None:
    story = Story()
    story.begin(1, F.SEND, send(0, 2))
    story.sent(0, send(0, 1))
    story.end(1, F.SEND, send(0, 2, 4))
    story.polled(1, poll(0, (4, 2)))
    assert story.count("acknowledged-nowhere") == 0


def test_a_whole_read_is_stale_if_it_began_after_an_acknowledgement_and_ended_in_front_of_it() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.sent(0, send(0, 2, 1))
    sender = story.sent(1, send(0, 3, 2))
    reader = story.table(2, 1, (0, 1))
    [case] = story.findings()["G-single-realtime"].cases
    assert (case.log, case.values, case.ops, case.severity) == (0, (3,), (sender, reader), 1)
    assert case.detail == {"offset": 2, "end": 1}
    assert "G-single-realtime" in story.wrong()
    story.nemesis("kill", phase="start")
    assert "G-single-realtime" not in story.wrong(), "a leader may have been deposed without knowing it"


def test_a_whole_read_that_began_before_the_acknowledgement_may_miss_the_record() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.begin(1, F.SEND, send(0, 2))
    story.begin(2, F.TABLE, poll(0))
    story.end(1, F.SEND, send(0, 2, 1))
    story.end(2, F.TABLE, poll(0, (0, 1)), spans={0: Span(0, 1)})
    assert story.count("G-single-realtime") == 0


def test_a_whole_read_may_end_in_front_of_a_transaction_that_may_be_open() -> None:
    story = Story()
    story.call(3, F.TXN, send(0, 9), type=Type.INFO)
    story.sent(0, send(0, 2, 1))
    story.table(2, 0)
    assert story.count("G-single-realtime") == 0


def test_a_scan_through_a_replica_may_be_behind_and_a_poll_reads_no_whole_log() -> None:
    story = Story()
    story.sent(0, send(0, 1, 0))
    story.table(2, 0, f=F.SCAN)
    story.read(3, (0, 0))
    assert story.count("G-single-realtime") == 0
