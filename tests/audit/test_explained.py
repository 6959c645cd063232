"""Each of the nine classes in its smallest logs, beside logs that look like it and are as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.audit.classes import Class
from sexton.audit.judge import Verdict
from sexton.records.batch import Batch
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.spark import fold_pass
from tests.audit.replicas import On, judged, the_case, wrong_brokers
from tests.logs import abort, commit, data, in_transaction

FILLER = data((b"filler", b"x"), at=8)
OLD = data((b"poison", b"old"), at=0)


def txn(key: bytes, value: bytes | None, at: int, epoch: int = 0) -> Batch:
    return in_transaction((key, value), at=at, pid=7, producer_epoch=epoch)


# ---- 1: a tombstone is gone that a replica never got ----

ALICE = data((b"user", b"alice"), at=0)
DELETED = data((b"user", None), at=1)


def test_a_value_without_its_tombstone_is_a_key_that_came_back(tmp_path: Path) -> None:
    cleaned = On([FILLER], clean=8)
    report = judged(tmp_path, cleaned, cleaned, On([ALICE, FILLER]))
    case = the_case(report)
    assert report.verdict is Verdict.DIVERGED
    assert (case.explained.is_class, case.explained.is_sure) == (Class.TOMBSTONE, True)
    assert wrong_brokers(report, case) == [3]
    assert case.explained.facts["hole"] == [1, 8]
    assert case.key.key == b"user"


def test_a_replica_that_still_has_the_tombstone_agrees_with_one_that_has_nothing(tmp_path: Path) -> None:
    report = judged(tmp_path, On([FILLER], clean=8), On([ALICE, DELETED, FILLER]), On([DELETED, FILLER], clean=8))
    assert (report.verdict, report.cases) == (Verdict.AGREE, ())


def test_a_replica_that_stopped_before_the_tombstone_lags_as_long_as_another_has_it(tmp_path: Path) -> None:
    report = judged(tmp_path, On([DELETED, FILLER], clean=8), On([ALICE]))
    assert (report.verdict, report.cases) == (Verdict.LAGGING, ())


def test_where_the_own_cleaner_has_been_a_transaction_may_have_hidden_it(tmp_path: Path) -> None:
    cleaned = On([FILLER], clean=8)
    case = the_case(judged(tmp_path, cleaned, cleaned, On([ALICE, FILLER], clean=8)))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.TOMBSTONE, False)
    assert case.explained.alternatives == (Class.COMMITTED_TO_ABORTED,)


def test_a_committed_value_whose_marker_follows_at_once_was_deleted(tmp_path: Path) -> None:
    cleaned = On([FILLER], clean=8)
    case = the_case(judged(tmp_path, cleaned, cleaned, On([txn(b"user", b"alice", 0), commit(1, 7), FILLER])))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.TOMBSTONE, True)


def test_of_two_that_were_away_the_one_that_was_not_is_right(tmp_path: Path) -> None:
    stale = On([ALICE, FILLER])
    report = judged(tmp_path, On([FILLER], clean=8), stale, stale)
    case = the_case(report)
    assert (case.explained.is_class, wrong_brokers(report, case)) == (Class.TOMBSTONE, [2, 3])


def test_replicas_that_were_copied_a_moment_earlier_have_a_vote(tmp_path: Path) -> None:
    """The one that is wrong has got further, and its own cleaner has been everywhere."""
    cleaned, later = On([FILLER], clean=8), data((b"later", b"1"), at=9)
    report = judged(tmp_path, cleaned, cleaned, On([ALICE, FILLER, later], clean=9))
    case = the_case(report)
    assert (case.explained.is_class, wrong_brokers(report, case)) == (Class.TOMBSTONE, [3])


# ---- 2: a COMMIT ends what was aborted ----


def test_a_commit_of_a_later_epoch_ends_what_was_aborted_if_others_have_an_older_record(tmp_path: Path) -> None:
    """With transaction version 2 a marker has the epoch after its data's. No deletion leaves an older record."""
    rest = [txn(b"good", b"1", 4, epoch=1), commit(5, 7, epoch=2), FILLER]
    poisoned = On([OLD, txn(b"poison", b"bad", 1), *rest])
    report = judged(tmp_path, On([OLD, *rest], clean=4), On([OLD, *rest], clean=4), poisoned)
    case = the_case(report)
    assert (case.explained.is_class, case.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, True)
    assert wrong_brokers(report, case) == [3]
    assert case.explained.facts["marker_offset"] == 5


def test_a_commit_of_a_later_epoch_may_stand_for_one_of_its_own_before_a_deletion(tmp_path: Path) -> None:
    """Its own COMMIT, a tombstone and their cleaning leave the same logs as an ABORT."""
    rest = [txn(b"good", b"1", 4, epoch=1), commit(5, 7, epoch=2), FILLER]
    poisoned = On([txn(b"poison", b"bad", 0), *rest])
    case = the_case(judged(tmp_path, On(rest, clean=4), On(rest, clean=4), poisoned))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, False)
    assert case.explained.alternatives == (Class.TOMBSTONE,)


def test_a_commit_beyond_a_hole_that_fits_by_its_epoch_may_be_the_records_own(tmp_path: Path) -> None:
    """It is, with transaction version 2. With version 1 a producer that started anew has that epoch, too."""
    rest = [txn(b"good", b"1", 4), commit(5, 7, epoch=1), FILLER]
    case = the_case(judged(tmp_path, On(rest, clean=4), On(rest, clean=4), On([txn(b"k", b"v", 0), *rest])))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.TOMBSTONE, False)
    assert case.explained.alternatives == (Class.ABORTED_TO_COMMITTED,)


def test_an_emptied_marker_is_as_good_as_none(tmp_path: Path) -> None:
    """Kafka keeps the last batch of a producer, without its record; a follower that copies it learns of no ABORT."""
    emptied = Batch(1, 1, TRANSACTIONAL | CONTROL, producer_id=7, producer_epoch=0, base_sequence=-1, leader_epoch=0)
    rest = [data((b"b", b"1"), (b"c", b"1"), at=2), txn(b"good", b"1", 4), commit(5, 7), FILLER]
    case = the_case(judged(tmp_path, On(rest, clean=4), On(rest, clean=4), On([txn(b"k", b"v", 0), emptied, *rest])))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, False)


def test_a_tombstone_that_is_still_there_is_right_against_a_majority(tmp_path: Path) -> None:
    stale = On([ALICE, FILLER])
    report = judged(tmp_path, On([ALICE, DELETED, FILLER]), stale, stale)
    case = the_case(report)
    assert (case.explained.is_class, case.explained.is_sure) == (Class.TOMBSTONE, False)
    assert (case.explained.alternatives, wrong_brokers(report, case)) == ((Class.LOST_RECORD,), [2, 3])


def test_a_tombstone_that_a_later_commit_ended_may_have_been_aborted(tmp_path: Path) -> None:
    rest = [txn(b"good", b"1", 4, epoch=1), commit(5, 7, epoch=2), FILLER]
    right = On([ALICE, *rest], clean=4)
    report = judged(tmp_path, right, right, On([ALICE, txn(b"user", None, 1), *rest]))
    case = the_case(report)
    assert (case.explained.is_class, case.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, True)
    assert wrong_brokers(report, case) == [3]


def test_a_plain_record_above_an_older_one_that_others_keep_was_not_deleted(tmp_path: Path) -> None:
    older, newer = On([OLD, FILLER], clean=8), On([OLD, data((b"poison", b"new"), at=2), FILLER])
    case = the_case(judged(tmp_path, older, older, newer))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.LOST_RECORD, False)


def test_with_the_same_epoch_nobody_can_tell_an_abort_from_a_deletion(tmp_path: Path) -> None:
    rest = [txn(b"good", b"1", 4), commit(5, 7), FILLER]
    case = the_case(judged(tmp_path, On(rest, clean=4), On(rest, clean=4), On([txn(b"k", b"v", 0), *rest])))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, False)
    assert case.explained.alternatives == (Class.TOMBSTONE,)


def test_an_abort_that_every_replica_has_hides_the_same_everywhere(tmp_path: Path) -> None:
    whole = [txn(b"poison", b"bad", 0), abort(1, 7), txn(b"good", b"1", 4), commit(5, 7), FILLER]
    report = judged(tmp_path, On(whole), On(whole[1:], clean=2), On(whole[2:], clean=4))
    assert (report.verdict, report.findings, report.cases) == (Verdict.AGREE, (), ())


@pytest.mark.parametrize("marker_epoch", [1, 2])
def test_a_majority_that_shows_what_was_aborted_does_not_make_it_a_lost_record(
    tmp_path: Path, marker_epoch: int
) -> None:
    """Epochs prove it, or nobody can tell."""
    rest = [txn(b"good", b"1", 4, epoch=1), commit(5, 7, epoch=marker_epoch), FILLER]
    poisoned = On([OLD, txn(b"poison", b"bad", 1), *rest])
    report = judged(tmp_path, On([OLD, *rest], clean=4), poisoned, poisoned)
    case = the_case(report)
    if marker_epoch == 2:
        assert (case.explained.is_class, case.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, True)
        assert wrong_brokers(report, case) == [2, 3]
    else:
        assert (case.explained.is_class, case.explained.is_sure) == (Class.LOST_RECORD, False)
        assert case.explained.alternatives == (Class.ABORTED_TO_COMMITTED,)


def test_a_committed_record_whose_marker_follows_at_once_is_lost_where_it_is_missing(tmp_path: Path) -> None:
    whole = On([OLD, txn(b"poison", b"new", 1), commit(2, 7), FILLER])
    case = the_case(judged(tmp_path, whole, whole, On([OLD, FILLER], clean=8)))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.LOST_RECORD, True)


# ---- 3: an ABORT ends what was committed ----

HIDDEN = [ALICE, txn(b"user", None, 1), txn(b"garbage", b"x", 5), abort(6, 7), FILLER]


def test_the_same_abort_with_two_beginnings_hides_a_deletion(tmp_path: Path) -> None:
    rest = On(HIDDEN[2:], clean=5)
    report = judged(tmp_path, rest, rest, On(HIDDEN))
    case = the_case(report)
    assert (case.explained.is_class, case.explained.is_sure) == (Class.COMMITTED_TO_ABORTED, True)
    assert wrong_brokers(report, case) == [3]
    assert (case.explained.facts["first_offset"], case.explained.facts["first_offset_elsewhere"]) == (1, 5)


def test_two_beginnings_tell_it_even_when_the_deletion_has_been_cleaned_away(tmp_path: Path) -> None:
    rest = On(HIDDEN[2:], clean=5)
    cleaned = On([ALICE, HIDDEN[3], FILLER], clean=8, aborted=[(7, 1, 6, 7)])
    case = the_case(judged(tmp_path, rest, rest, cleaned))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.COMMITTED_TO_ABORTED, False)


def test_an_aborted_transaction_of_which_one_replica_has_cleaned_a_part_is_no_difference(tmp_path: Path) -> None:
    part = On([ALICE, *HIDDEN[2:]], clean=5, aborted=[(7, 1, 6, 7)])
    report = judged(tmp_path, part, On(HIDDEN), On(HIDDEN))
    assert (report.verdict, report.findings, report.cases) == (Verdict.AGREE, (), ())


# ---- 4: a transaction that never ends ----


def test_a_transaction_that_is_open_on_one_replica_alone_freezes_it(tmp_path: Path) -> None:
    newer = data((b"price", b"11"), at=4)
    rest = On([newer, FILLER], clean=4)
    report = judged(tmp_path, rest, rest, On([data((b"a", b"1"), at=0), txn(b"price", b"10", 1), newer, FILLER]))
    (stuck,) = report.findings
    assert (stuck.is_class, stuck.facts["producer_id"], stuck.facts["first_offset"]) == (Class.STUCK, 7, 1)
    assert stuck.key_count == 2
    pinned = [case for case in report.cases if case.key.is_pinned]
    assert {case.key.key for case in pinned} == {b"price", b"filler"}
    assert all(case.explained.is_class == Class.STUCK for case in pinned)


def test_a_tombstone_that_waits_in_it_is_told(tmp_path: Path) -> None:
    """What becomes class 3 with the producer's next ABORT."""
    rest = On([FILLER], clean=8)
    case = the_case(judged(tmp_path, rest, rest, On([ALICE, txn(b"user", None, 1), FILLER])))
    assert case.explained.is_class == Class.STUCK
    assert "a tombstone waits at offset 1" in case.explained.because


def test_a_transaction_that_is_open_everywhere_is_simply_open(tmp_path: Path) -> None:
    whole = On([ALICE, txn(b"user", None, 1), FILLER])
    report = judged(tmp_path, whole, whole, whole)
    assert (report.verdict, report.findings, report.cases) == (Verdict.AGREE, (), ())


# ---- 5, 6: lost, and other ----


def test_a_record_that_is_missing_where_no_cleaner_has_been_is_lost(tmp_path: Path) -> None:
    whole = [data((b"a", b"1"), at=0), data((b"b", b"1"), at=1), FILLER]
    report = judged(tmp_path, On(whole), On(whole), On([whole[0], whole[2]]))
    case = the_case(report)
    assert (case.explained.is_class, case.explained.is_sure) == (Class.LOST_RECORD, True)
    assert wrong_brokers(report, case) == [3]


def test_where_its_cleaner_has_been_a_missing_key_may_have_been_deleted_while_the_others_were_away(
    tmp_path: Path,
) -> None:
    whole = On([data((b"b", b"1"), at=1), FILLER], clean=8)
    case = the_case(judged(tmp_path, whole, whole, On([FILLER], clean=8)))
    assert (case.explained.is_class, case.explained.is_sure) == (Class.LOST_RECORD, False)
    assert case.explained.alternatives == (Class.TOMBSTONE,)


def test_of_a_log_with_more_holes_than_are_told_nobody_says_that_nothing_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_pass, "GAPS_MAX", 1)
    holed = [data((b"a", b"1"), at=0), data((b"c", b"1"), at=2), data((b"d", b"1"), at=6), FILLER]
    whole = [holed[0], data((b"b", b"1"), at=1), *holed[1:]]
    case = the_case(judged(tmp_path, On(holed, clean=1), On(holed, clean=1), On(whole)))
    assert case.explained.is_class == Class.TOMBSTONE


def test_a_newer_record_that_is_missing_is_lost_whatever_is_compacted(tmp_path: Path) -> None:
    old, new = data((b"a", b"1"), at=0), data((b"a", b"2"), at=1)
    report = judged(tmp_path, On([new, FILLER], clean=8), On([old, new, FILLER]), On([old, FILLER], clean=1))
    case = the_case(report)
    assert case.explained.is_class == Class.LOST_RECORD
    assert wrong_brokers(report, case) == [3]


def test_a_replica_that_ends_below_its_own_high_watermark_has_lost_its_end(tmp_path: Path) -> None:
    whole = [data((b"a", b"1"), at=0), FILLER]
    report = judged(tmp_path, On(whole), On(whole), On(whole[:1], high_watermark=9))
    (lost,) = report.findings
    assert (lost.is_class, report.verdict) == (Class.LOST_RECORD, Verdict.DIVERGED)


def test_a_copy_whose_files_are_of_different_moments_is_only_told_of(tmp_path: Path) -> None:
    whole = [data((b"a", b"1"), at=0), FILLER]
    copied = On(whole[:1], high_watermark=9, was_stopped_cleanly=False)
    report = judged(tmp_path, On(whole), On(whole), copied)
    assert (report.verdict, report.findings) == (Verdict.LAGGING, ())
    assert "was copied while its broker ran" in report.notes[0]


def test_a_replica_that_ends_where_its_high_watermark_is_lags(tmp_path: Path) -> None:
    whole = [data((b"a", b"1"), at=0), FILLER]
    report = judged(tmp_path, On(whole), On(whole), On(whole[:1], high_watermark=1))
    assert (report.verdict, report.findings) == (Verdict.LAGGING, ())


def test_other_records_at_one_offset_are_different_logs(tmp_path: Path) -> None:
    one, other = (On([data((b"a", value), at=0), FILLER]) for value in (b"1", b"2"))
    report = judged(tmp_path, one, one, other)
    case = the_case(report)
    assert (case.explained.is_class, wrong_brokers(report, case)) == (Class.DIFFERENT_LOGS, [3])


# ---- 7: claims ----


def test_an_index_that_lists_less_than_the_log_has_aborted_is_a_wrong_claim(tmp_path: Path) -> None:
    whole = [txn(b"a", b"1", 0), txn(b"b", b"1", 3), abort(6, 7), FILLER]
    report = judged(tmp_path, On(whole), On(whole), On(whole, aborted=[(7, 3, 6, 7)]))
    (claim,) = report.findings
    assert (claim.is_class, report.verdict, report.cases) == (Class.WRONG_CLAIM, Verdict.DIVERGED, ())
    assert report.standings[claim.replica].replica.id.broker == 3


def test_an_index_that_lists_committed_data_is_a_wrong_claim(tmp_path: Path) -> None:
    whole = [txn(b"a", b"1", 0), commit(1, 7), txn(b"b", b"1", 3), abort(6, 7), FILLER]
    report = judged(tmp_path, On(whole), On(whole, aborted=[(7, 0, 6, 7)]))
    (claim,) = report.findings
    assert claim.is_class == Class.WRONG_CLAIM
    assert "COMMIT in between" in claim.because


def test_replicas_that_were_copied_after_a_part_was_cleaned_list_less_rightly(tmp_path: Path) -> None:
    rest = [txn(b"b", b"1", 3), abort(6, 7), FILLER]
    original, copied = On(rest, clean=3, aborted=[(7, 0, 6, 7)]), On(rest)
    report = judged(tmp_path, original, copied, copied)
    assert (report.verdict, report.findings) == (Verdict.AGREE, ())


def test_an_index_that_outlives_the_aborted_data_is_as_it_should_be(tmp_path: Path) -> None:
    whole = [txn(b"a", b"1", 0), abort(6, 7), FILLER]
    report = judged(tmp_path, On(whole), On(whole[1:], clean=7, aborted=[(7, 0, 6, 7)]))
    assert (report.verdict, report.findings) == (Verdict.AGREE, ())


# ---- 8: what a broker that is down brings back ----


def test_a_broker_that_missed_a_tombstone_which_is_gone_will_diverge(tmp_path: Path) -> None:
    cleaned = On([FILLER], clean=8)
    report = judged(tmp_path, cleaned, cleaned, On([ALICE]))
    case = the_case(report)
    assert (report.verdict, case.explained.is_class) == (Verdict.WILL_DIVERGE, Class.WILL_DIVERGE)
    assert case.explained.facts["will_be"] == Class.TOMBSTONE


def test_a_broker_with_an_open_transaction_will_take_the_next_commit_for_its_own(tmp_path: Path) -> None:
    rest = On([txn(b"good", b"1", 4, epoch=1), commit(5, 7, epoch=2), FILLER], clean=4)
    report = judged(tmp_path, rest, rest, On([txn(b"poison", b"bad", 0)]))
    case = the_case(report)
    assert (report.verdict, case.explained.facts["will_be"]) == (Verdict.WILL_DIVERGE, Class.ABORTED_TO_COMMITTED)
    assert case.key.key == b"poison"


def test_a_broker_with_an_open_transaction_will_take_the_next_abort_for_its_own(tmp_path: Path) -> None:
    rest = On(HIDDEN[2:], clean=5)
    case = the_case(judged(tmp_path, rest, rest, On(HIDDEN[:2])))
    assert case.explained.facts["will_be"] == Class.COMMITTED_TO_ABORTED


def test_a_broker_with_an_open_transaction_that_nothing_ends_will_be_stuck(tmp_path: Path) -> None:
    rest = On([FILLER], clean=8)
    report = judged(tmp_path, rest, rest, On([txn(b"price", b"10", 1)]))
    (stuck,) = report.findings
    assert (report.verdict, stuck.is_class) == (Verdict.WILL_DIVERGE, Class.WILL_DIVERGE)
    assert stuck.facts["will_be"] == Class.STUCK


def test_a_broker_whose_marker_is_still_to_come_only_lags(tmp_path: Path) -> None:
    rest = [abort(4, 7), FILLER]
    report = judged(tmp_path, On(rest, clean=4), On(rest, clean=4), On([txn(b"poison", b"bad", 0)]))
    assert (report.verdict, report.cases, report.findings) == (Verdict.LAGGING, (), ())


# ---- 9: retention ----


def test_what_lies_below_a_log_start_is_retention_and_no_error(tmp_path: Path) -> None:
    whole = [data((b"a", b"1"), at=0), FILLER]
    report = judged(tmp_path, On(whole), On(whole), On([FILLER], start=5))
    assert (report.verdict, report.by_class) == (Verdict.AGREE, {Class.RETENTION: 1})
