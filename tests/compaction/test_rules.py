"""The compaction rules, each in the smallest log that shows it, with an explicit clock; then what holds for any log.

Scenarios go through the reference compactor and assert offsets after each pass, as the tests of Kafka's cleaner do.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction import rules
from sexton.compaction.fates import Fate
from sexton.compaction.reference import Compacted, compact, fold_by_key
from sexton.compaction.rules import Action, LastOfProducer
from sexton.compaction.survey import LogSurvey, join_surveys, survey_segment
from sexton.compaction.terms import Terms
from sexton.records.batch import Batch, ControlType, Record, encode, make_batch
from sexton.records.header import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from sexton.types import OFFSET_MAX
from tests import logs
from tests.logs import NOW_MS, RETENTION_MS, abort, commit, data, in_transaction

A, B, FILLER = b"a", b"b", b"filler"
PID = 7
EXPIRED_MS = NOW_MS - 1
RUNNING_MS = NOW_MS + 1


def terms(bound: int, now_ms: int = NOW_MS, **fields: int) -> Terms:
    return replace(Terms(now_ms, bound, RETENTION_MS), **fields)  # type: ignore[arg-type]


def end_of(batches: Sequence[Batch]) -> int:
    return batches[-1].next_offset


def clean(
    batches: Sequence[Batch],
    now_ms: int = NOW_MS,
    *,
    coordinated_below: int | None = None,
    bound: int | None = None,
    producers: Iterable[LastOfProducer] = (),
) -> Compacted:
    """One pass up to the end of the log: independent, or with MTRO = MXRO and everything settled."""
    upto = end_of(batches) if bound is None else bound
    chosen = terms(upto, now_ms)
    if coordinated_below is None:
        chosen = chosen.independent()
    else:
        chosen = replace(chosen, mtro=coordinated_below, mxro=coordinated_below, settle_below=upto)
    return compact(batches, chosen, producers)


def record_offsets(batches: Iterable[Batch]) -> list[int]:
    return [record.offset for batch in batches for record in batch.records]


def fates(compacted: Compacted) -> dict[int, Fate]:
    return {verdict.offset: verdict.fate for verdict in compacted.verdicts}


def with_horizon(batch: Batch, horizon_ms: int) -> Batch:
    return replace(batch, attributes=batch.attributes | DELETE_HORIZON, base_timestamp_ms=horizon_ms)


# --- each fate in the smallest scenario that has it ---

VALUE = data((A, b"1"), at=0)
TOMBSTONE = data((A, None), at=0)
KEYLESS = data((None, b"1"), at=0)
IN_TXN = in_transaction((A, b"1"), at=0, pid=PID)
OTHER_CONTROL = make_batch([Record(0, NOW_MS, b"\0\0\0\2", b"")], attributes=CONTROL)
LAST = data((FILLER, b""), at=9)


@pytest.mark.parametrize(
    ("log", "fields", "expected"),
    [
        ([VALUE], {}, Fate.NEWEST),
        ([VALUE, data((A, b"2"), at=1)], {}, Fate.SUPERSEDED),
        ([VALUE, data((A, None), at=1)], {}, Fate.SUPERSEDED),
        ([TOMBSTONE, data((A, b"2"), at=1)], {}, Fate.SUPERSEDED),
        ([KEYLESS], {}, Fate.KEYLESS_KEPT),
        ([KEYLESS], {"drop_keyless": True}, Fate.KEYLESS_DROPPED),
        ([TOMBSTONE], {"mtro": 0}, Fate.TOMBSTONE_WAITS_FOR_REPLICAS),
        ([with_horizon(TOMBSTONE, EXPIRED_MS)], {"mtro": 0}, Fate.TOMBSTONE_WAITS_FOR_REPLICAS),
        ([TOMBSTONE], {"mtro": 1}, Fate.TOMBSTONE_STARTS_HORIZON),
        ([with_horizon(TOMBSTONE, RUNNING_MS)], {"mtro": 1}, Fate.TOMBSTONE_WAITS_FOR_HORIZON),
        ([with_horizon(TOMBSTONE, NOW_MS)], {"mtro": 1}, Fate.TOMBSTONE_EXPIRED),
        ([with_horizon(TOMBSTONE, EXPIRED_MS)], {"mtro": 1}, Fate.TOMBSTONE_EXPIRED),
        ([IN_TXN, abort(1, PID)], {}, Fate.ABORTED),
        ([IN_TXN, commit(1, PID)], {}, Fate.NEWEST),
        ([in_transaction((None, b"1"), at=0, pid=PID), abort(1, PID)], {}, Fate.ABORTED),
        ([commit(0, PID)], {"mxro": 0}, Fate.MARKER_WAITS_FOR_REPLICAS),
        ([abort(0, PID)], {"mxro": 0}, Fate.MARKER_WAITS_FOR_REPLICAS),
        ([commit(0, PID)], {"mxro": 1}, Fate.MARKER_STARTS_HORIZON),
        ([with_horizon(commit(0, PID), RUNNING_MS)], {"mxro": 1}, Fate.MARKER_WAITS_FOR_HORIZON),
        ([with_horizon(commit(0, PID), NOW_MS)], {"mxro": 1}, Fate.MARKER_EXPIRED),
        ([with_horizon(abort(0, PID), EXPIRED_MS)], {"mxro": 0}, Fate.MARKER_WAITS_FOR_REPLICAS),
        ([OTHER_CONTROL], {"mxro": 1}, Fate.CONTROL_OF_OTHER_KIND),
    ],
)
def test_the_first_record_meets_its_fate(log: list[Batch], fields: dict[str, int], expected: Fate) -> None:
    compacted = compact([*log, LAST], terms(10, **fields))
    assert fates(compacted)[0] == expected
    assert (0 in record_offsets(compacted.batches)) == expected.stays
    assert expected.why


def test_a_marker_stays_while_records_of_its_transaction_are_in_the_log() -> None:
    marker = with_horizon(commit(1, PID), EXPIRED_MS)
    compacted = compact([IN_TXN, marker, LAST], terms(10).independent())
    assert fates(compacted)[1] == Fate.MARKER_HAS_DATA


@pytest.mark.parametrize("first", [TOMBSTONE, commit(0, PID)], ids=["tombstone", "marker"])
def test_delete_retention_for_ever_keeps_what_it_keeps_for_ever(first: Batch) -> None:
    """Long.MAX_VALUE from now is no timestamp any more; nothing is written that the next pass could take for one."""
    for_ever = replace(terms(10, mtro=5, mxro=5), delete_retention_ms=2**63 - 1)
    log: Sequence[Batch] = [first, LAST]
    for now_ms in (NOW_MS, NOW_MS + 1000, NOW_MS + 10**15):
        compacted = compact(log, replace(for_ever, now_ms=now_ms))
        log = compacted.batches
        assert 0 in record_offsets(log)
        assert fates(compacted)[0] in (Fate.TOMBSTONE_WAITS_FOR_HORIZON, Fate.MARKER_WAITS_FOR_HORIZON)
        assert log[0].delete_horizon_ms is None
    shorter = compact(log, replace(for_ever, delete_retention_ms=RETENTION_MS))
    assert shorter.batches[0].delete_horizon_ms == NOW_MS + RETENTION_MS, "a shorter one counts from when it is set"


@pytest.mark.parametrize("first", [TOMBSTONE, commit(0, PID)], ids=["tombstone", "marker"])
def test_the_longest_horizon_that_is_a_timestamp_is_written(first: Batch) -> None:
    longest = replace(terms(10, mtro=5, mxro=5), delete_retention_ms=2**63 - 1 - NOW_MS)
    (batch, _) = compact([first, LAST], longest).batches
    assert batch.delete_horizon_ms == 2**63 - 1
    assert 0 in record_offsets(compact([batch, LAST], replace(longest, now_ms=NOW_MS + 10**15)).batches)


@pytest.mark.parametrize("first", [TOMBSTONE, commit(0, PID)], ids=["tombstone", "marker"])
def test_a_horizon_that_had_overflowed_starts_again(first: Batch) -> None:
    overflowed = with_horizon(first, NOW_MS - 2**63)
    compacted = compact([overflowed, LAST], terms(10, mtro=5, mxro=5))
    assert fates(compacted)[0] in (Fate.TOMBSTONE_STARTS_HORIZON, Fate.MARKER_STARTS_HORIZON)
    assert compacted.batches[0].delete_horizon_ms == NOW_MS + RETENTION_MS


def test_every_fate_has_a_reason_and_those_below_100_stay() -> None:
    assert all(fate.why for fate in Fate)
    assert [fate for fate in Fate if not fate.stays] == [fate for fate in Fate if fate >= Fate.SUPERSEDED]


def test_rules_give_the_same_answers_for_one_and_for_many() -> None:
    chosen = terms(100, mtro=50, mxro=60, settle_below=70)
    flags = np.array([True, False])
    columns = {
        name: values.ravel()
        for name, values in zip(
            ("has_key", "is_newest", "is_aborted", "is_tombstone", "batch_last", "horizon_ms"),
            np.meshgrid(flags, flags, flags, flags, [49, 50], [-1, EXPIRED_MS, NOW_MS, RUNNING_MS]),
            strict=True,
        )
    }
    many = rules.record_fate(chosen, **columns)
    one_by_one = [
        int(rules.record_fate(chosen, **{name: values[i].item() for name, values in columns.items()}))
        for i in range(len(many))
    ]
    assert many.tolist() == one_by_one


@pytest.mark.parametrize(
    ("record_count", "kept", "must_keep", "starts_horizon", "settles", "expected"),
    [
        (2, 2, False, False, False, Action.COPY),
        (2, 2, False, False, True, Action.PATCH),
        (2, 2, False, True, False, Action.REWRITE),
        (2, 2, False, True, True, Action.REWRITE),
        (2, 1, False, False, False, Action.REWRITE),
        (2, 1, True, False, True, Action.REWRITE),
        (2, 0, False, False, False, Action.DROP),
        (2, 0, True, False, True, Action.EMPTY),
        (0, 0, False, False, False, Action.DROP),
        (0, 0, True, False, False, Action.COPY),
        (0, 0, True, False, True, Action.PATCH),
    ],
)
def test_a_batch_is_copied_patched_rewritten_emptied_or_dropped(
    record_count: int, kept: int, must_keep: bool, starts_horizon: bool, settles: bool, expected: Action
) -> None:
    action = rules.batch_action(
        record_count=record_count,
        kept_count=kept,
        must_keep=must_keep,
        starts_horizon=starts_horizon,
        settles=settles,
    )
    assert int(action) == expected


def test_terms_that_settle_above_the_bound_are_refused() -> None:
    with pytest.raises(AssertionError, match="rule 8"):
        compact([VALUE], terms(1, settle_below=2))


# --- life of a tombstone ---


def test_a_tombstone_below_mtro_gets_a_horizon_waits_it_out_and_goes() -> None:
    log = [data((A, b"1"), at=0), data((A, None), at=1), data((FILLER, b""), at=2)]

    first = clean(log, coordinated_below=3)
    assert record_offsets(first.batches) == [1, 2]
    assert first.batches[0].delete_horizon_ms == NOW_MS + RETENTION_MS

    waits = clean(first.batches, NOW_MS + RETENTION_MS - 1, coordinated_below=3)
    assert record_offsets(waits.batches) == [1, 2]
    assert waits.batches[0].delete_horizon_ms == NOW_MS + RETENTION_MS, "written once and kept"

    gone = clean(waits.batches, NOW_MS + RETENTION_MS, coordinated_below=3)
    assert record_offsets(gone.batches) == [2]


def test_a_tombstone_at_mtro_stays_for_ever_without_a_horizon() -> None:
    log = [data((A, b"1"), at=0), data((A, None), at=1), data((FILLER, b""), at=2)]
    for years in range(3):
        log = clean(log, NOW_MS + years * 365 * RETENTION_MS, coordinated_below=1).batches
        assert record_offsets(log) == [1, 2]
        assert log[0].delete_horizon_ms is None


def test_tombstone_waits_for_the_replica_that_is_down() -> None:
    log = [data((A, b"1"), at=0), data((A, None), at=1), data((FILLER, b""), at=2)]
    mcco_of_the_dead = 1
    held = clean(log, NOW_MS + 10 * RETENTION_MS, coordinated_below=mcco_of_the_dead).batches
    assert record_offsets(held) == [1, 2]
    back = clean(held, NOW_MS + 20 * RETENTION_MS, coordinated_below=3).batches
    assert back[0].delete_horizon_ms == NOW_MS + 21 * RETENTION_MS, "the horizon starts only below MTRO"
    assert record_offsets(clean(back, NOW_MS + 21 * RETENTION_MS, coordinated_below=3).batches) == [2]


def test_a_batch_that_straddles_mtro_counts_as_above_it() -> None:
    log = [data((A, None), (B, None), at=0), data((FILLER, b""), at=2)]
    straddling = clean(log, coordinated_below=1)
    assert fates(straddling)[0] == fates(straddling)[1] == Fate.TOMBSTONE_WAITS_FOR_REPLICAS
    assert straddling.batches[0] == log[0]
    assert fates(clean(log, coordinated_below=2))[0] == Fate.TOMBSTONE_STARTS_HORIZON


def test_a_horizon_moves_no_timestamp() -> None:
    batch = data((A, None), (B, b"1"), at=0)
    (rewritten, _) = clean([batch, data((FILLER, b""), at=2)], coordinated_below=3).batches
    assert [r.timestamp_ms for r in rewritten.records] == [r.timestamp_ms for r in batch.records]
    assert rewritten.max_timestamp_ms == batch.max_timestamp_ms


def test_a_superseded_tombstone_goes_like_any_other_record() -> None:
    log = [data((A, None), at=0), data((A, b"1"), at=1)]
    assert record_offsets(clean(log, coordinated_below=0).batches) == [1]


def test_an_expired_tombstone_leaves_its_neighbours_and_the_horizon_of_its_batch() -> None:
    batch = with_horizon(data((A, None), (B, b"1"), at=0), EXPIRED_MS)
    (left, _) = clean([batch, data((FILLER, b""), at=2)], coordinated_below=3).batches
    assert record_offsets([left]) == [1]
    assert (left.base_offset, left.last_offset) == (0, 1)
    assert left.delete_horizon_ms == EXPIRED_MS


# --- life of a marker ---


def test_markers_below_mxro_go_after_their_data_and_their_horizon() -> None:
    log = [
        in_transaction((A, b"1"), at=0, pid=PID),
        abort(1, PID),
        in_transaction((B, b"1"), at=2, pid=PID),
        commit(3, PID),
        data((FILLER, b""), at=4),
    ]
    first = clean(log, coordinated_below=5)
    assert record_offsets(first.batches) == [1, 2, 3, 4], "aborted data is gone, both markers had data"
    assert [batch.is_transactional for batch in first.batches] == [True, False, True, False], "committed data is plain"

    second = clean(first.batches, coordinated_below=5)
    assert record_offsets(second.batches) == [1, 2, 3, 4]
    assert [batch.delete_horizon_ms for batch in second.batches] == [
        NOW_MS + RETENTION_MS,
        None,
        NOW_MS + RETENTION_MS,
        None,
    ]

    waits = clean(second.batches, NOW_MS + RETENTION_MS - 1, coordinated_below=5)
    assert waits.batches == second.batches
    gone = clean(second.batches, NOW_MS + RETENTION_MS, coordinated_below=5)
    assert record_offsets(gone.batches) == [2, 4]
    assert fold_by_key(gone.batches) == fold_by_key(log)


def test_markers_at_mxro_stay_for_ever() -> None:
    log = [in_transaction((A, b"1"), at=0, pid=PID), abort(1, PID), data((FILLER, b""), at=2)]
    for years in range(4):
        log = clean(log, NOW_MS + years * 365 * RETENTION_MS, coordinated_below=1).batches
        assert record_offsets(log) == [1, 2]
        assert log[0].delete_horizon_ms is None


def test_independent_cleaning_keeps_a_commit_marker_as_long_as_its_records() -> None:
    log = [in_transaction((A, b"1"), at=0, pid=PID), commit(1, PID), data((FILLER, b""), at=2)]
    for years in range(4):
        log = clean(log, NOW_MS + years * 365 * RETENTION_MS).batches
        assert record_offsets(log) == [0, 1, 2]
        assert log[0].is_transactional, "only coordinated cleaning settles"


def test_a_marker_ends_only_the_transaction_of_its_own_producer() -> None:
    log = [
        in_transaction((A, b"1"), at=0, pid=1),
        in_transaction((A, b"2"), at=1, pid=2),
        abort(2, 2),
        commit(3, 1),
        data((FILLER, b""), at=4),
    ]
    compacted = clean(log, coordinated_below=0)
    assert fates(compacted)[0] == Fate.NEWEST
    assert fates(compacted)[1] == Fate.ABORTED


def test_an_aborted_record_supersedes_nothing() -> None:
    log = [
        data((A, b"good"), at=0),
        in_transaction((A, b"poison"), at=1, pid=PID),
        abort(2, PID),
        data((FILLER, b""), at=3),
    ]
    assert fold_by_key(clean(log).batches)[A].value == b"good"


def test_an_aborted_tombstone_deletes_nothing() -> None:
    log = [data((A, b"good"), at=0), in_transaction((A, None), at=1, pid=PID), abort(2, PID), data((FILLER, b""), at=3)]
    assert fold_by_key(clean(log).batches)[A].value == b"good"


@pytest.mark.parametrize("settle_below", [0, 1, 2, 3])
def test_committed_batches_are_settled_only_when_they_end_below_the_given_offset(settle_below: int) -> None:
    log = [in_transaction((A, b"1"), (B, b"1"), at=0, pid=PID), commit(2, PID), data((FILLER, b""), at=3)]
    settled = compact(log, terms(4, settle_below=settle_below)).batches[0]
    assert settled.is_transactional == (settle_below <= 1)
    assert settled.records == log[0].records
    assert settled.producer_id == PID, "a producer's sequence survives settling"


# --- what stays although nothing is in it ---


def test_the_last_batch_of_a_live_producer_stays_empty() -> None:
    old = data((A, b"1"), at=0, producer_id=PID, producer_epoch=3, base_sequence=40, attributes=LOG_APPEND_TIME | 4)
    log = [old, data((A, b"2"), at=1)]
    (kept, _) = clean(log, producers=[LastOfProducer(PID, 3, 0)]).batches
    assert kept.records == ()
    assert (kept.base_offset, kept.last_offset) == (0, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (PID, 3, 40)
    assert kept.max_timestamp_ms == old.max_timestamp_ms
    assert kept.attributes == LOG_APPEND_TIME, "nothing is left to decompress"
    assert clean([kept, log[1]], producers=[LastOfProducer(PID, 3, 0)]).batches[0] == kept, "and stays as it is"
    assert record_offsets(clean([kept, log[1]]).batches) == [1]
    assert len(clean([kept, log[1]]).batches) == 1, "until the producer is forgotten"


def test_an_aborted_batch_that_stays_for_its_producer_is_empty_and_settled() -> None:
    log = [in_transaction((A, b"1"), at=0, pid=PID), abort(1, PID), data((FILLER, b""), at=2)]
    (kept, *_) = clean(log, coordinated_below=0, producers=[LastOfProducer(PID, 0, 0)]).batches
    assert kept.records == ()
    assert not kept.is_transactional


def test_an_expired_marker_stays_empty_when_it_is_all_that_is_known_of_a_live_producer() -> None:
    marker = with_horizon(commit(0, PID, epoch=5), EXPIRED_MS)
    log = [marker, data((FILLER, b""), at=1)]
    (kept, _) = clean(log, producers=[LastOfProducer(PID, 5, -1)]).batches
    assert kept.is_control
    assert kept.control_type == ControlType.UNKNOWN, "it ends no transaction any more"
    assert kept.producer_epoch == 5
    assert len(clean(log, producers=[LastOfProducer(PID, 6, -1)]).batches) == 1


def test_the_last_batch_below_the_bound_stays_empty() -> None:
    log = [data((A, b"1"), (B, b"1"), at=0), data((A, None), (B, None), at=2)]
    expired = [log[0], with_horizon(log[1], EXPIRED_MS)]
    (kept,) = clean(expired).batches
    assert kept.records == ()
    assert (kept.base_offset, kept.last_offset) == (2, 3), "a new replica can reach the log's end"


def test_a_rewritten_batch_keeps_its_base_and_last_offset() -> None:
    log = [data((B, b"0"), (A, b"1"), (B, b"2"), at=0), data((B, b"3"), at=3)]
    (kept, _) = clean(log).batches
    assert record_offsets([kept]) == [1]
    assert (kept.base_offset, kept.last_offset) == (0, 2)
    assert kept.max_timestamp_ms == kept.records[0].timestamp_ms


def test_keyless_records_are_kept_and_counted_unless_cleaning_as_kafka_does() -> None:
    log = [data((None, b"1"), (None, None), at=0), data((FILLER, b""), at=2)]
    coordinated = clean(log, coordinated_below=3)
    assert record_offsets(coordinated.batches) == [0, 1, 2]
    assert [v.fate for v in coordinated.verdicts][:2] == [Fate.KEYLESS_KEPT] * 2
    assert record_offsets(clean(log).batches) == [2]


def test_nothing_at_or_above_the_bound_is_touched_or_counts_as_newer() -> None:
    log = [data((A, b"1"), at=0), data((A, b"2"), at=1), data((A, b"3"), at=2)]
    compacted = clean(log, bound=2)
    assert record_offsets(compacted.batches) == [1, 2]
    assert compacted.batches[1] is log[2]
    assert set(fates(compacted)) == {0, 1}


# --- replicas that clean by themselves, and replicas that ask each other ---


def catch_up(leader: Sequence[Batch], follower: Sequence[Batch]) -> list[Batch]:
    """What a follower holds once it has fetched everything from its end on."""
    return [*follower, *(batch for batch in leader if batch.base_offset >= end_of(follower))]


def clean_often(log: Sequence[Batch], coordinated_below: int | None) -> list[Batch]:
    """Passes over months: whatever may go is gone."""
    left = list(log)
    for week in range(6):
        left = clean(left, NOW_MS + week * 7 * RETENTION_MS, coordinated_below=coordinated_below).batches
    return left


def judged_aborted(log: Sequence[Batch]) -> set[int]:
    """Offsets that a replica with this log hides from read_committed consumers."""
    return {entry for b in log if not b.is_control for entry in record_offsets([b]) if _outcome(log, b) == "aborted"}


def _outcome(log: Sequence[Batch], batch: Batch) -> str:
    if not batch.is_transactional:
        return "plain"
    for later in log:
        ends = later.is_control and later.producer_id == batch.producer_id and later.base_offset > batch.base_offset
        if ends and later.control_type != ControlType.UNKNOWN:
            return "aborted" if later.control_type == ControlType.ABORT else "committed"
    return "open"


def lso(log: Sequence[Batch]) -> int:
    return logs.last_stable_offset(log, end_of(log))


COORDINATED_BELOW_THE_DEAD = 0
"""The replica that is down has cleaned nothing, so MTRO and MXRO stay at 0 whatever the others do."""


def divergence_of_tombstones(coordinated_below: int | None) -> tuple[list[Batch], list[Batch]]:
    before = [data((A, b"1"), at=0)]
    leader = clean_often([*before, data((A, None), at=1), data((FILLER, b""), at=2)], coordinated_below)
    return leader, catch_up(leader, before)


def divergence_of_markers(
    end_of_first: Batch, second: Sequence[Batch], coordinated_below: int | None
) -> tuple[list[Batch], list[Batch]]:
    """A follower sees the first transaction's record and then nothing until long after its end."""
    before = [in_transaction((A, b"first"), at=0, pid=PID)]
    meanwhile = [*before, end_of_first, data((A, b"newer"), at=2), data((FILLER, b""), at=3)]
    leader = [*clean_often(meanwhile, coordinated_below), *second]
    return leader, catch_up(leader, before)


def test_independent_replicas_bring_a_deleted_key_back() -> None:
    leader, follower = divergence_of_tombstones(None)
    assert A not in fold_by_key(leader)
    assert fold_by_key(follower)[A].value == b"1"


def test_coordinated_replicas_agree_that_a_key_is_deleted() -> None:
    leader, follower = divergence_of_tombstones(COORDINATED_BELOW_THE_DEAD)
    assert fold_by_key(leader) == fold_by_key(follower)


SECOND_COMMITTED = [in_transaction((B, b"good"), at=4, pid=PID), commit(5, PID)]
SECOND_ABORTED = [in_transaction((B, b"garbage"), at=4, pid=PID), abort(5, PID)]


def test_independent_replicas_serve_an_aborted_record_as_committed() -> None:
    before = [in_transaction((b"poison", b"!"), at=0, pid=PID)]
    leader = clean_often([*before, abort(1, PID), data((FILLER, b""), at=2)], None)
    leader += [in_transaction((B, b"good"), at=3, pid=PID), commit(4, PID)]
    follower = catch_up(leader, before)
    assert b"poison" not in fold_by_key(leader)
    assert b"poison" in fold_by_key(follower)


def test_coordinated_replicas_never_serve_the_aborted_record() -> None:
    before = [in_transaction((b"poison", b"!"), at=0, pid=PID)]
    leader = clean_often([*before, abort(1, PID), data((FILLER, b""), at=2)], COORDINATED_BELOW_THE_DEAD)
    leader += [in_transaction((B, b"good"), at=3, pid=PID), commit(4, PID)]
    follower = catch_up(leader, before)
    assert fold_by_key(leader) == fold_by_key(follower)
    assert b"poison" not in fold_by_key(follower)


def test_independent_replicas_hide_a_committed_record() -> None:
    _, follower = divergence_of_markers(commit(1, PID), SECOND_ABORTED, None)
    assert 0 in judged_aborted(follower), "it was committed"


def test_coordinated_replicas_never_hide_the_committed_record() -> None:
    leader, follower = divergence_of_markers(commit(1, PID), SECOND_ABORTED, COORDINATED_BELOW_THE_DEAD)
    assert judged_aborted(follower) == {4}
    assert fold_by_key(leader) == fold_by_key(follower)


def test_independent_replicas_freeze_a_partition() -> None:
    leader, follower = divergence_of_markers(commit(1, PID), [], None)
    assert lso(leader) == end_of(leader)
    assert lso(follower) == 0, "and nothing will ever end the transaction"
    assert fold_by_key(follower) == {} != fold_by_key(leader)


def test_coordinated_replicas_never_freeze() -> None:
    leader, follower = divergence_of_markers(commit(1, PID), [], COORDINATED_BELOW_THE_DEAD)
    assert lso(follower) == lso(leader) == end_of(leader)
    assert fold_by_key(leader) == fold_by_key(follower)


# --- why MXFO is stronger than "every transaction below it is resolved" ---


def survey_of(batches: Sequence[Batch]) -> LogSurvey:
    content = np.frombuffer(b"".join(map(encode, batches)), dtype=np.uint8)
    return join_surveys([survey_segment(content, batches[0].base_offset, "a log")], "a log")


def mxfo(batches: Sequence[Batch], bound: int) -> int:
    """Nothing transactional lies below it, as docs/rules.md defines it."""
    first = survey_of(batches).first_transactional_offset
    return bound if first is None else min(bound, first)


def weaker_mxfo(batches: Sequence[Batch], bound: int) -> int:
    """Every transaction below it is resolved."""
    return int(survey_of(batches).events.open_first_offsets.min(initial=bound))


def new_replica_beside_a_cleaning_leader(reading: object) -> list[Batch]:
    """A replica that is being added copies an aborted record; then the leader cleans and cleans; then it goes on."""
    assert reading in (mxfo, weaker_mxfo)
    of = mxfo if reading is mxfo else weaker_mxfo
    leader = [in_transaction((A, b"aborted"), at=0, pid=PID), abort(1, PID), data((FILLER, b""), at=2)]
    mxro = of(leader, 3)
    new_replica = leader[:1]  # an empty log starts with its MXFO at MXRO, so it holds nothing back
    for week in range(6):
        leader = clean(leader, NOW_MS + week * 7 * RETENTION_MS, coordinated_below=mxro).batches
        mxro = max(mxro, min(of(leader, 3), of(new_replica, 3)))
    return catch_up(leader, new_replica)


def test_a_new_replica_is_never_left_with_an_orphan() -> None:
    replica = new_replica_beside_a_cleaning_leader(mxfo)
    assert lso(replica) == 3
    assert judged_aborted(replica) == {0}


def test_the_weaker_reading_of_mxfo_leaves_an_orphan() -> None:
    replica = new_replica_beside_a_cleaning_leader(weaker_mxfo)
    assert lso(replica) == 0, "if this fails, the test above proves nothing"


# --- what holds for any log and any terms ---


@st.composite
def compactions(draw: st.DrawFn) -> tuple[list[Batch], Terms, list[LastOfProducer]]:
    rng = draw(st.randoms(use_true_random=False))
    log = logs.random_log(rng, draw(st.integers(1, 25)))
    bounds = log.bounds() or [log.bases[0]]
    bound = rng.choice(bounds)
    producers = logs.producers_of(log.batches, NOW_MS, rng.choice([0, RETENTION_MS, 10 * RETENTION_MS]))
    return log.batches, logs.random_terms(rng, log, bound), producers


any_log = settings(max_examples=150)


@any_log
@given(compactions())
def test_rule_3_a_fold_by_key_is_the_same_before_and_after(
    compaction: tuple[list[Batch], Terms, list[LastOfProducer]],
) -> None:
    batches, chosen, producers = compaction
    assert fold_by_key(compact(batches, chosen, producers).batches) == fold_by_key(batches)


@any_log
@given(compactions())
def test_rule_2_offsets_and_order_never_change(compaction: tuple[list[Batch], Terms, list[LastOfProducer]]) -> None:
    batches, chosen, producers = compaction
    after = compact(batches, chosen, producers).batches
    originals = {batch.base_offset: batch for batch in batches}
    assert [b.base_offset for b in after] == sorted(b.base_offset for b in after)
    for batch in after:
        original = originals[batch.base_offset]
        assert batch.last_offset == original.last_offset
        assert set(batch.records) <= set(original.records)
        same = ("producer_id", "producer_epoch", "base_sequence", "leader_epoch", "is_control", "is_log_append_time")
        assert all(getattr(batch, name) == getattr(original, name) for name in same)
    if batches:
        assert end_of(after) == end_of(batches)


@any_log
@given(compactions())
def test_a_second_pass_on_the_same_terms_keeps_the_same_records(
    compaction: tuple[list[Batch], Terms, list[LastOfProducer]],
) -> None:
    batches, chosen, producers = compaction
    once = compact(batches, chosen, producers).batches
    twice = compact(once, chosen, producers).batches
    assert [r for b in twice if not b.is_control for r in b.records] == [
        r for b in once if not b.is_control for r in b.records
    ]


@any_log
@given(compactions())
def test_what_is_clean_holds_one_record_per_key_and_what_is_settled_holds_nothing_transactional(
    compaction: tuple[list[Batch], Terms, list[LastOfProducer]],
) -> None:
    batches, chosen, producers = compaction
    after = [b for b in compact(batches, chosen, producers).batches if b.base_offset < chosen.bound]
    keys = [r.key for b in after if not b.is_control for r in b.records if r.key is not None]
    assert len(keys) == len(set(keys)), "MCCO"
    settled = [b for b in after if not b.is_control and b.last_offset < chosen.settle_below]
    assert not any(b.is_transactional for b in settled), "MXFO"
    aborted = judged_aborted(batches)
    assert not aborted & set(record_offsets(b for b in after if not b.is_control))


@any_log
@given(compactions())
def test_rules_5_and_6_what_others_may_need_leaves_only_below_mtro_and_mxro_and_after_its_horizon(
    compaction: tuple[list[Batch], Terms, list[LastOfProducer]],
) -> None:
    batches, chosen, producers = compaction
    left = set(record_offsets(compact(batches, chosen, producers).batches))
    newest = {
        record.key: (record, batch)
        for batch in batches
        if batch.base_offset < chosen.bound and not batch.is_control and _outcome(batches, batch) != "aborted"
        for record in batch.records
        if record.key is not None
    }
    gone = [(record, batch, chosen.mtro) for record, batch in newest.values() if record.offset not in left]
    assert all(record.is_tombstone for record, _, _ in gone)
    gone += [
        (record, batch, chosen.mxro)
        for batch in batches
        if batch.control_type != ControlType.UNKNOWN
        for record in batch.records
        if record.offset not in left
    ]
    for record, batch, removal_offset in gone:
        assert record.offset < removal_offset <= OFFSET_MAX
        assert batch.delete_horizon_ms is not None
        assert batch.delete_horizon_ms <= chosen.now_ms


@any_log
@given(compactions())
def test_nothing_above_the_bound_changes_and_every_record_below_it_gets_a_verdict(
    compaction: tuple[list[Batch], Terms, list[LastOfProducer]],
) -> None:
    batches, chosen, producers = compaction
    compacted = compact(batches, chosen, producers)
    above = [b for b in batches if b.base_offset >= chosen.bound]
    assert compacted.batches[len(compacted.batches) - len(above) :] == above
    below = record_offsets(b for b in batches if b.base_offset < chosen.bound)
    assert [verdict.offset for verdict in compacted.verdicts] == below
    stays = [verdict.offset for verdict in compacted.verdicts if verdict.fate.stays]
    assert record_offsets(b for b in compacted.batches if b.base_offset < chosen.bound) == stays


def test_random_logs_are_what_they_should_be() -> None:
    """The generator is worth nothing if its logs do not contain what the rules are about."""
    seen: set[Fate] = set()
    for seed in range(120):
        rng = random.Random(seed)
        log = logs.random_log(rng)
        for bound in log.bounds()[-1:]:
            chosen = logs.random_terms(rng, log, bound)
            seen |= {v.fate for v in compact(log.batches, chosen).verdicts}
    assert seen == set(Fate)


def test_a_transactional_batch_without_its_marker_is_open_and_stays() -> None:
    log = [in_transaction((A, b"1"), at=0, pid=PID), data((A, b"2"), at=1)]
    compacted = compact(log, terms(0, mtro=2, mxro=2))
    assert compacted.batches == log
    assert TRANSACTIONAL & compacted.batches[0].attributes


@pytest.mark.parametrize("seed", range(60))
def test_what_is_clean_may_be_believed(seed: int) -> None:
    """A pass that looks again only at keys of the dirty part comes to the same as one that looks at all."""
    rng = random.Random(seed)
    log = logs.random_log(rng)
    while not log.bounds() or log.clean_below is None:
        log = logs.random_log(rng)
    chosen = logs.random_terms(rng, log, log.bounds()[-1])
    believed = compact(log.batches, chosen, (), (), min(log.clean_below, chosen.bound))
    assert believed == compact(log.batches, chosen)
