"""The judge of compaction: what a log folds to, and for each rule the smallest replica that breaks it."""

from __future__ import annotations

import uuid

import pytest

from sexton.records.batch import Batch, ControlType, Record, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.simulate import compaction_checks as checks
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.snapshots import Watermarks
from sexton.simulate.truth import Newest, Retention, Truth, difference, fold

COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


def put(offset: int, key: bytes, value: bytes | None, producer_id: int | None = None) -> Batch:
    record = Record(offset, 0, key, value)
    if producer_id is None:
        return make_batch([record])
    return make_batch([record], attributes=TRANSACTIONAL, producer_id=producer_id)


def marker(offset: int, control_type: ControlType, producer_id: int) -> Batch:
    return make_marker(offset, control_type, producer_id, 0, 0)


def truth_of(*batches: Batch) -> Truth:
    truth = Truth()
    for batch in batches:
        truth.add(batch)
    return truth


def watermarks(compacted: int, removable: int) -> Watermarks:
    return Watermarks(uuid.UUID(int=1), mcco=compacted, mxfo=compacted, mtro=removable, mxro=removable)


def test_the_newest_record_of_a_key_counts_and_a_tombstone_deletes_it() -> None:
    found = fold([put(0, b"a", b"1"), put(1, b"b", b"2"), put(2, b"a", None), put(3, b"b", b"3")], 4)
    assert found.values == {b"b": Newest(3, b"3")}
    assert found.tombstones == {b"a": Newest(2, None)}


def test_aborted_records_do_not_count_and_open_transactions_hide_what_follows() -> None:
    log = [put(0, b"a", b"1", 5), marker(1, ABORT, 5), put(2, b"b", b"2", 6), put(3, b"c", b"3")]
    found = fold(log, 4)
    assert found.values == {}
    assert found.stable_offset == 2
    assert fold([*log, marker(4, COMMIT, 6)], 5).values == {b"b": Newest(2, b"2"), b"c": Newest(3, b"3")}


def test_a_batch_at_or_above_the_offset_does_not_count() -> None:
    assert fold([put(0, b"a", b"1"), put(1, b"a", b"2")], 1).values == {b"a": Newest(0, b"1")}


def test_a_key_that_came_back_and_one_that_vanished_are_differences() -> None:
    whole = [put(0, b"a", b"1"), put(1, b"a", None), put(2, b"b", b"2")]
    truth = fold(whole, 3)
    assert difference(truth, fold([whole[1], whole[2]], 3)) is None
    assert difference(truth, fold([whole[2]], 3)) is None
    came_back = difference(truth, fold([whole[0], whole[2]], 3))
    assert came_back is not None
    assert "deleted@1" in came_back
    assert difference(truth, fold([whole[1]], 3)) is not None


def test_a_record_that_was_never_committed_breaks_rule_2() -> None:
    truth = truth_of(put(0, b"a", b"1"), put(1, b"a", b"2"))
    checks.check_records("here", truth, [put(1, b"a", b"2")])
    with pytest.raises(SimulationFailure, match="rule 2"):
        checks.check_records("here", truth, [put(1, b"a", b"3")])
    with pytest.raises(SimulationFailure, match="rule 2"):
        checks.check_records("here", truth, [marker(0, COMMIT, 5)])


def test_two_records_of_a_key_below_mcco_break_rule_3() -> None:
    log = [put(0, b"a", b"1"), put(1, b"a", b"2")]
    checks.check_compacted("here", log, watermarks(1, 0))
    with pytest.raises(SimulationFailure, match="rule 3"):
        checks.check_compacted("here", log, watermarks(2, 0))


def test_a_transactional_batch_below_mxfo_breaks_rule_6() -> None:
    log = [put(0, b"a", b"1", 5), marker(1, COMMIT, 5)]
    checks.check_compacted("here", log, watermarks(0, 0))
    with pytest.raises(SimulationFailure, match="MXFO"):
        checks.check_compacted("here", log, watermarks(2, 0))


def test_a_tombstone_is_missed_from_mtro_on() -> None:
    log = [put(0, b"a", b"1"), put(1, b"a", None)]
    expected, without = fold(log, 2), fold([], 2)
    checks.check_tombstones("here", expected, without, watermarks(2, 2))
    with pytest.raises(SimulationFailure, match="rule 5"):
        checks.check_tombstones("here", expected, without, watermarks(2, 1))


def test_a_marker_is_missed_from_mxro_on() -> None:
    truth = truth_of(put(0, b"a", b"1", 5), marker(1, COMMIT, 5))
    checks.check_markers("here", truth, 2, [], watermarks(2, 2))
    checks.check_markers("here", truth, 2, [marker(1, COMMIT, 5)], watermarks(2, 1))
    with pytest.raises(SimulationFailure, match="rule 6"):
        checks.check_markers("here", truth, 2, [], watermarks(2, 1))


# Logs whose start has moved


def test_what_lies_below_the_log_start_is_gone_whether_or_not_it_is_on_the_disk() -> None:
    log = [put(0, b"a", b"1"), put(1, b"b", b"2"), put(2, b"a", b"3")]
    truth = truth_of(*log)
    assert truth.fold(3, 1).values == {b"a": Newest(2, b"3"), b"b": Newest(1, b"2")}
    assert truth.fold(3, 2).values == {b"a": Newest(2, b"3")}
    assert difference(truth.fold(3, 2), fold(log, 3, 2)) is None
    assert difference(truth.fold(3, 2), fold(log[2:], 3, 2)) is None
    assert difference(truth.fold(3, 1), fold(log[2:], 3, 1)) is not None


def test_a_transaction_that_began_below_the_log_start_still_hides_what_follows() -> None:
    log = [put(0, b"a", b"1", 5), put(1, b"b", b"2")]
    expected = truth_of(*log).fold(2, 1)
    assert expected.values == {}
    assert difference(expected, fold(log[1:], 2, 1, expected.stable_offset)) is None


def test_below_the_log_start_neither_a_second_record_of_a_key_nor_a_lost_marker_counts() -> None:
    log = [put(0, b"a", b"1", 5), marker(1, COMMIT, 5), put(2, b"a", b"2"), put(3, b"a", b"3")]
    checks.check_compacted("here", log, watermarks(3, 0), 2)
    with pytest.raises(SimulationFailure, match="rule 3"):
        checks.check_compacted("here", log, watermarks(4, 0), 2)
    checks.check_compacted("here", log, watermarks(4, 0), 0, 3)
    checks.check_markers("here", truth_of(*log), 4, [], watermarks(3, 0), 2)


def test_mcco_below_the_log_start_breaks_rule_7() -> None:
    with pytest.raises(SimulationFailure, match="rule 7"):
        checks.check_compacted("here", [], watermarks(1, 0), 2)


def test_a_log_start_that_neither_time_nor_size_explains_breaks_rule_1() -> None:
    judge = checks.CompactionJudge(lambda place, batch: None)
    key = (uuid.UUID(int=1), 0)
    truth = judge.truths[key] = truth_of(put(0, b"a", b"1"), put(1, b"b", b"2"), put(2, b"a", b"3"))
    enough = truth.size_bytes_from(1)

    def check(now: int, retention: Retention, now_ms: int = 1000) -> None:
        judge.check_start("here", key, (0, now), retention, now_ms, 0)

    check(1, Retention(-1, -1))  # what was at 0 is superseded
    check(2, Retention(999, -1))
    check(2, Retention(-1, enough))
    for too_early in (Retention(-1, -1), Retention(1000, -1), Retention(-1, enough + 1)):
        with pytest.raises(SimulationFailure, match="rule 1"):
            check(2, too_early)
    with pytest.raises(SimulationFailure, match="committed is 3"):
        check(4, Retention(0, 0))


# Leaders that were forced


def test_the_log_of_a_forced_leader_is_the_truth_with_its_gaps_and_what_follows_has_none() -> None:
    truth = Truth(1, gaps_below=5)
    truth.add(put(2, b"a", b"1"))
    assert truth.may_add(put(5, b"b", b"2")), "the first batch after the election"
    assert not truth.may_add(put(6, b"b", b"2"))
    truth.add(put(4, b"b", b"2"))
    truth.add(put(5, b"b", b"3"))
    assert not truth.may_add(put(7, b"b", b"4"))
    assert truth.fold(6).values == {b"a": Newest(2, b"1"), b"b": Newest(5, b"3")}


def test_a_new_generation_forgets_what_was_committed_before() -> None:
    judge = checks.CompactionJudge(lambda place, batch: None)
    key = (uuid.UUID(int=1), 0)
    judge.truths[key] = truth_of(put(0, b"a", b"1"))
    judge.begin_generation(key, 1, 0)
    assert (judge.truths[key].generation, judge.truths[key].end_offset) == (1, 0)
