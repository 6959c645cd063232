"""Compacted logs: what may be gone and what may not, by the smallest histories. Log 0 is compacted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sexton.history.op import Ext, F, Send, Span, Type
from tests.checker.story import Story, delete, poll, send, table_story

GONE = {"lost-record", "lost-key", "stale-value", "resurrected-key", "tombstone-too-early", "table-drift"}


def _story(*sends: Send, retention_ms: int = 60_000) -> Story:
    story = table_story(delete_retention_ms=retention_ms)
    for sent in sends:
        story.sent(0, sent)
    return story


def test_a_keys_only_record_is_lost() -> None:
    story = _story(send(0, 1, 0, key=7))
    reader = story.table(1, 1)
    found = story.findings()
    assert found["lost-record"].cases[0].ops == found["lost-key"].cases[0].ops == (1, reader)
    assert GONE & found.keys() == {"lost-record", "lost-key"}


def test_a_record_may_be_gone_once_a_newer_one_was_sent_even_behind_the_tables_end() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 5, key=7))
    story.table(1, 1)
    assert not GONE & story.findings().keys()


def test_a_record_may_be_gone_once_a_newer_one_may_have_been_sent() -> None:
    for type_ in (Type.OK, Type.INFO):
        story = _story(send(0, 1, 0, key=7))
        story.sent(3, send(0, 2, key=7), type=type_)
        story.table(1, 1)
        assert not GONE & story.findings().keys()


def test_a_record_may_not_be_gone_because_of_one_that_failed_or_came_later() -> None:
    story = _story(send(0, 1, 0, key=7))
    story.sent(3, send(0, 2, 1, key=7), type=Type.FAIL)
    story.table(1, 3)
    story.sent(3, send(0, 3, 4, key=7))
    assert {"lost-record", "lost-key"} <= story.findings().keys()


def test_a_record_whose_transaction_may_have_been_aborted_may_be_gone() -> None:
    story = table_story()
    story.sent(0, send(0, 1, 0, key=7), type=Type.INFO)
    story.sent(0, send(0, 2, 1, key=8), type=Type.FAIL)
    story.table(1, 2)
    assert not GONE & story.findings().keys()


def test_a_record_below_a_log_start_that_somebody_asked_for_may_be_gone() -> None:
    story = _story(send(0, 1, 0, key=7))
    story.call(3, F.DELETE_RECORDS, offsets={0: 1}, type=Type.INFO)
    story.table(1, 1)
    assert not GONE & story.findings().keys()


@pytest.mark.parametrize(("seen_start", "is_lost"), [(0, True), (1, False)])
def test_where_retention_is_in_force_a_record_may_be_gone_since_it_was_last_seen_to_be_there(
    seen_start: int, is_lost: bool
) -> None:
    story = table_story(is_retained=True)
    story.sent(0, send(0, 1, 0, key=7))
    story.table(1, 1)
    story.call(8, F.DEBUG, ext={Ext.LOG_STARTS: {0: seen_start}})
    assert ("lost-record" in story.findings()) == is_lost


def test_a_table_has_an_old_value() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=7))
    story.table(1, 2, (0, 1, 7))
    found = story.findings()
    assert found["stale-value"].cases[0].values == (2, 1)
    assert GONE & found.keys() == {"lost-record", "stale-value"}


def test_a_table_as_of_an_earlier_end_has_the_old_value_lawfully() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=7))
    story.table(1, 1, (0, 1, 7))
    assert not GONE & story.findings().keys()


def test_a_standing_consumer_that_passes_a_record_loses_it_too() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=8))
    story.read(1, (0, 1), (0, 1, 7))
    story.read(1, (1, 2))
    found = story.findings()
    assert found["lost-record"].cases[0].values == found["lost-key"].cases[0].values == (2,)


def test_a_consumer_that_was_rebalanced_passed_nothing() -> None:
    story = _story(send(0, 1, 0, key=7))
    story.read(1, (0, 1), rebalanced=frozenset({0}))
    assert not GONE & story.findings().keys()


def test_a_consumer_that_went_back_reads_again() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=7))
    story.read(1, (0, 2), (0, 1, 7), (1, 2, 7), type=Type.FAIL)
    story.sent(0, send(0, 3, 2, key=7))
    story.read(1, (1, 3), (2, 3, 7))
    assert not GONE & story.findings().keys()


def _deleted(retention_ms: int) -> Story:
    """Key 7 has a value, and then a tombstone, behind which the log goes on."""
    return _story(send(0, 1, 0, key=7), delete(0, 2, 1, key=7), send(0, 3, 2, key=8), retention_ms=retention_ms)


def test_a_deleted_key_is_back_for_a_quick_reader() -> None:
    story = _deleted(60_000)
    story.wait(100)
    reader = story.table(1, 3, (0, 1, 7), (2, 3, 8))
    found = story.findings()
    assert (found["resurrected-key"].cases[0].values, found["resurrected-key"].cases[0].ops[1]) == ((2, 1), reader)
    assert GONE & found.keys() == {"resurrected-key"}


def test_a_reader_slower_than_tombstones_are_kept_is_told_only() -> None:
    story = _deleted(2_000)
    story.wait(100)
    story.begin(1, F.TABLE, poll(0))
    story.wait(5)
    story.end(1, F.TABLE, poll(0, (0, 1, 7), (2, 3, 8)), spans={0: Span(0, 3)})
    found = story.findings()
    assert "slow-reader" in found
    assert not GONE & found.keys()


def test_a_value_that_outlives_its_tombstone_is_back_however_short_tombstones_are_kept() -> None:
    story = _deleted(0)
    story.table(1, 3, (2, 3, 8))
    assert not GONE & story.findings().keys()
    story.table(2, 3, (0, 1, 7), (2, 3, 8))
    assert GONE & story.findings().keys() == {"resurrected-key"}


def test_a_key_that_may_have_been_written_again_is_not_back() -> None:
    story = _deleted(60_000)
    story.sent(4, send(0, 9, key=7), type=Type.INFO)
    story.wait(100)
    story.table(1, 3, (0, 1, 7), (2, 3, 8))
    assert "resurrected-key" not in story.findings()


def test_a_tombstone_is_gone_before_its_time() -> None:
    story = _deleted(60_000)
    reader = story.table(1, 3, (2, 3, 8))
    found = story.findings()
    assert found["tombstone-too-early"].cases[0].ops == (3, reader)
    assert GONE & found.keys() == {"tombstone-too-early", "lost-record"}


def test_a_tombstone_may_go_when_its_time_is_over_less_what_clocks_may_be_wrong() -> None:
    story = _deleted(60_000)
    story.wait(58)
    story.table(1, 3, (2, 3, 8))
    assert not GONE & story.findings().keys()


def test_where_clocks_were_an_hour_apart_a_tombstone_may_go_at_once_and_a_value_may_not_outlive_it() -> None:
    story = _deleted(60_000)
    story.run = replace(story.run, clock_skew_ms=3_601_000)
    story.table(1, 3, (2, 3, 8))
    assert not GONE & story.findings().keys()
    story.table(2, 3, (0, 1, 7), (2, 3, 8))
    assert GONE & story.findings().keys() == {"resurrected-key"}


def test_an_aborted_record_is_in_a_table() -> None:
    story = table_story()
    writer = story.sent(0, send(0, 1, 0, key=7), type=Type.FAIL)
    reader = story.table(1, 1, (0, 1, 7))
    found = story.findings()
    assert found["aborted-in-table"].cases[0].ops == found["G1a"].cases[0].ops == (writer, reader)


def test_a_record_in_doubt_may_be_in_a_table() -> None:
    story = table_story()
    story.sent(0, send(0, 1, 0, key=7), type=Type.INFO)
    story.table(1, 1, (0, 1, 7))
    assert "aborted-in-table" not in story.findings()


def test_a_record_was_there_and_gone_and_is_there_again() -> None:
    story = _story(send(0, 1, 0, key=7), delete(0, 2, 1, key=7), retention_ms=2_000)
    first = story.table(1, 2, (0, 1, 7), (1, 2, 7, True))
    story.wait(10)
    ops = (first, story.table(2, 2), story.table(3, 2, (0, 1, 7)))
    found = story.findings()
    assert found["reappeared"].cases[0].ops == ops
    assert "resurrected-key" in found


def test_a_record_that_only_one_replica_has_compacted_has_not_reappeared() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=7))
    story.table(1, 2, (0, 1, 7), (1, 2, 7))
    story.table(2, 2, (1, 2, 7))
    story.table(3, 2, (0, 1, 7), (1, 2, 7))
    assert "reappeared" not in story.findings()


def _scan(story: Story, replica: int, end: int, *records: tuple[Any, ...]) -> int:
    return story.table(10 + replica, end, *records, f=F.SCAN, ext={Ext.REPLICA: replica})


def test_two_replicas_fold_to_different_tables() -> None:
    story = _deleted(60_000)
    story.wait(100)
    ops = (_scan(story, 1, 3, (2, 3, 8)), _scan(story, 2, 3, (0, 1, 7), (2, 3, 8)))
    found = story.findings()["replicas-disagree"]
    assert (found.count, found.cases[0].ops, found.cases[0].detail["key"]) == (1, ops, 7)


def test_replicas_that_have_compacted_differently_fold_to_the_same_table() -> None:
    story = _deleted(2_000)
    story.wait(100)
    _scan(story, 1, 3, (2, 3, 8))
    _scan(story, 2, 3, (0, 1, 7), (1, 2, 7, True), (2, 3, 8))
    assert "replicas-disagree" not in story.findings()


def test_replicas_that_were_read_to_different_ends_agree_as_far_as_both_were_read() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=7))
    _scan(story, 1, 1, (0, 1, 7))
    _scan(story, 2, 2, (1, 2, 7))
    assert "replicas-disagree" not in story.findings()


def test_a_table_that_was_kept_differs_from_a_fresh_one() -> None:
    story = _story(send(0, 1, 0, key=7))
    given = story.read(1, (0, 1), (0, 1, 7))
    fresh = story.table(2, 1)
    assert story.findings()["table-drift"].cases[0].ops == (given, fresh)


def test_a_kept_table_that_has_heard_of_a_deletion_agrees_with_a_fresh_one_that_has_nothing() -> None:
    story = _deleted(0)
    story.read(1, (0, 3), (0, 1, 7), (1, 2, 7, True), (2, 3, 8))
    story.table(2, 3, (2, 3, 8))
    assert "table-drift" not in story.findings()


def test_a_kept_table_may_have_what_was_deleted_from_the_start_of_the_log() -> None:
    story = _story(send(0, 1, 0, key=7))
    story.read(1, (0, 1), (0, 1, 7))
    story.call(3, F.DELETE_RECORDS, offsets={0: 1}, type=Type.INFO)
    story.table(2, 1)
    assert not GONE & story.findings().keys()


def test_a_deletion_that_comes_after_the_fresh_table_does_not_explain_it() -> None:
    story = _story(send(0, 1, 0, key=7))
    story.read(1, (0, 1), (0, 1, 7))
    story.table(2, 1)
    story.call(3, F.DELETE_RECORDS, offsets={0: 1})
    assert "table-drift" in story.findings()


def test_a_tombstone_that_was_deleted_from_the_start_while_a_table_was_read_brings_nothing_back() -> None:
    story = _story(send(0, 1, 0, key=7), delete(0, 2, 1, key=7))
    story.begin(3, F.DELETE_RECORDS)
    story.end(3, F.DELETE_RECORDS, offsets={0: 2})
    story.table(1, 2, (0, 1, 7))
    assert "resurrected-key" not in story.findings()


def test_a_record_is_at_another_offset_than_it_was() -> None:
    story = _story(send(0, 1, 4, key=7))
    ops = (story.table(1, 5, (4, 1, 7)), story.table(2, 5, (3, 1, 7)))
    found = story.findings()
    assert found["moved"].cases[0].ops == ops
    assert "duplicate" in found


def test_a_record_at_two_offsets_at_the_same_time_is_a_duplicate_only() -> None:
    story = _story(send(0, 1, 4, key=7))
    story.table(1, 5, (3, 1, 7), (4, 1, 7))
    found = story.findings()
    assert "duplicate" in found
    assert "moved" not in found


def test_what_compaction_may_have_removed_was_not_skipped_nor_lost_nor_unseen() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=8), send(0, 3, 2, key=8), send(0, 4, 3, key=9))
    story.polled(1, poll(0, (0, 1, 7)))
    story.polled(1, poll(0, (2, 3, 8), (3, 4, 9)))
    story.call(2, F.POLL, poll(0, (0, 1, 7), (2, 3, 8), (3, 4, 9)))
    assert not {"poll-skip", "int-poll-skip", "lost-write", "unseen"} & story.findings().keys()


def test_what_compaction_may_not_have_removed_was_skipped() -> None:
    story = _story(send(0, 1, 0, key=7), send(0, 2, 1, key=8), send(0, 3, 2, key=9))
    story.polled(2, poll(0, (0, 1, 7), (1, 2, 8), (2, 3, 9)))
    story.polled(1, poll(0, (0, 1, 7)))
    story.polled(1, poll(0, (2, 3, 9)))
    assert story.count("poll-skip") == 1
