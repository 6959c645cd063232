"""What a walk over headers tells about a log, against a plain replay of the same log."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction import survey
from sexton.compaction.survey import LogSurvey, SegmentSurvey, join_surveys, live_producers, survey_segment
from sexton.compaction.transactions import TransactionEvents, TransactionIndex, events_of, join_events
from sexton.errors import CorruptLogError
from sexton.records.batch import Batch, ControlType, encode
from sexton.records.kernels import scan
from sexton.records.kernels.scan import Table, scan_whole
from sexton.types import NO_OFFSET
from tests import logs
from tests.logs import abort, commit, data, in_transaction

some = settings(max_examples=60)
randoms = st.randoms(use_true_random=False)


def survey_of(batches: Iterable[Batch], base_offset: int) -> SegmentSurvey:
    content = np.frombuffer(b"".join(map(encode, batches)), dtype=np.uint8)
    return survey_segment(content, base_offset, "a segment")


def survey_log(log: logs.Log) -> LogSurvey:
    pairs = zip(log.segments, log.bases, strict=True)
    return join_surveys([survey_of(batches, base) for batches, base in pairs], "a log")


def table_of(batches: Iterable[Batch]) -> Table:
    content = np.frombuffer(b"".join(map(encode, batches)), dtype=np.uint8)
    return scan_whole(content, 0, len(content), "a log", check_crc=True)


# --- a segment ---


@some
@given(randoms)
def test_a_segment_s_survey_says_what_is_in_it(rng: random.Random) -> None:
    log = logs.random_log(rng)
    for batches, base in zip(log.segments, log.bases, strict=True):
        found = survey_of(batches, base)
        assert found.base_offset == base
        assert found.size_bytes == sum(len(encode(batch)) for batch in batches)
        assert found.batch_count == len(batches)
        assert found.record_count == sum(len(batch.records) for batch in batches)
        assert found.last_offset == (batches[-1].last_offset if batches else -1)
        assert found.first_timestamp_ms == (batches[0].max_timestamp_ms if batches else -1)
        assert found.max_timestamp_ms == max((batch.max_timestamp_ms for batch in batches), default=-1)
        transactional = [b.base_offset for b in batches if b.is_transactional and not b.is_control]
        assert found.first_transactional_offset == (transactional[0] if transactional else -1)


def test_an_empty_segment_has_a_survey_too() -> None:
    found = survey_of([], 7)
    assert (found.batch_count, found.last_offset, len(found.grains)) == (0, -1, 0)
    assert join_surveys([found], "a log").log_end_offset == 7


def test_batches_below_the_segment_s_base_offset_are_refused() -> None:
    with pytest.raises(CorruptLogError, match="not above"):
        survey_of([data((b"a", b""), at=6)], 7)


# --- grains ---


@some
@given(randoms)
def test_grains_cover_every_batch_exactly_once(rng: random.Random) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(survey, "GRAIN_BYTES", rng.choice([1, 100, 300, 10_000]))
    patch.setattr(survey, "GRAIN_RECORDS", rng.choice([1, 4, 20, 10_000]))
    patch.setattr(scan.scan, "__kwdefaults__", {**(scan.scan.__kwdefaults__ or {}), "rows_per_step": rng.randint(1, 9)})
    try:
        log = logs.random_log(rng)
        batches, base = log.batches, log.bases[0]
        grains = survey_of(batches, base).grains
    finally:
        patch.undo()
    starts = np.cumsum([0, *(len(encode(batch)) for batch in batches)]).tolist()
    rows = [starts.index(int(position)) for position in grains["position"]]
    assert rows == sorted(set(rows))
    assert rows[0] == 0
    for grain, first, last in zip(grains, rows, [*rows[1:], len(batches)], strict=True):
        assert grain["base_offset"] == batches[first].base_offset
        assert grain["previous_offset"] == (batches[first - 1].last_offset if first else base - 1)
        assert grain["record_count"] == sum(len(batch.records) for batch in batches[first:last])


def test_a_grain_is_full_by_bytes_or_by_records(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [data((b"a", b"x" * 10), (b"b", b"x" * 10), at=2 * index) for index in range(20)]
    size = len(encode(batches[0]))
    monkeypatch.setattr(survey, "GRAIN_BYTES", 5 * size)
    assert survey_of(batches, 0).grains["position"].tolist() == [0, 5 * size, 10 * size, 15 * size]
    monkeypatch.setattr(survey, "GRAIN_RECORDS", 4)
    assert survey_of(batches, 0).grains["record_count"].tolist() == [4] * 10


# --- transactions ---


def replay(batches: Sequence[Batch]) -> tuple[list[tuple[int, int, int, int]], dict[int, int]]:
    """Markers as (producer id, offset, first data offset, type), and what is open at the end."""
    markers, opened = [], dict[int, int]()
    for batch in batches:
        if batch.control_type != ControlType.UNKNOWN:
            first = opened.pop(batch.producer_id, NO_OFFSET)
            markers.append((batch.producer_id, batch.last_offset, first, int(batch.control_type)))
        elif batch.is_transactional and not batch.is_control:
            opened.setdefault(batch.producer_id, batch.base_offset)
    return markers, opened


def as_plain(events: TransactionEvents) -> tuple[list[tuple[int, int, int, int]], dict[int, int]]:
    columns = ("producer_id", "offset", "first_data_offset", "control_type")
    markers = [(int(m[columns[0]]), int(m[columns[1]]), int(m[columns[2]]), int(m[columns[3]])) for m in events.markers]
    opened = zip(events.open_producer_ids.tolist(), events.open_first_offsets.tolist(), strict=True)
    return markers, dict(opened)


@some
@given(randoms)
def test_events_are_those_of_a_replay_however_the_log_is_cut(rng: random.Random) -> None:
    batches = logs.random_log(rng).batches
    table = table_of(batches)
    cuts = sorted(rng.sample(range(len(table) + 1), min(3, len(table) + 1)))
    parts = [table[a:b] for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)]
    assert as_plain(events_of(table)) == replay(batches)
    assert as_plain(join_events([events_of(part) for part in parts])) == replay(batches)


@some
@given(randoms)
def test_every_batch_learns_how_its_transaction_ended(rng: random.Random) -> None:
    batches = logs.random_log(rng).batches
    table = table_of(batches)
    index = TransactionIndex(events_of(table).markers)
    outcomes, has_data = index.outcome(table), index.has_data(table)
    waiting: dict[int, list[int]] = {}
    expected = [ControlType.UNKNOWN] * len(batches)
    for row, batch in enumerate(batches):
        if batch.control_type != ControlType.UNKNOWN:
            mine = waiting.pop(batch.producer_id, [])
            assert has_data[row] == bool(mine)
            for earlier in mine:
                expected[earlier] = batch.control_type
        elif batch.is_transactional and not batch.is_control:
            waiting.setdefault(batch.producer_id, []).append(row)
    assert outcomes.tolist() == expected


def test_a_log_without_transactions_has_no_events() -> None:
    assert as_plain(join_events([])) == ([], {})
    table = table_of([data((b"a", b""), at=0)])
    assert as_plain(events_of(table)) == ([], {})
    assert TransactionIndex(events_of(table).markers).outcome(table).tolist() == [ControlType.UNKNOWN]


# --- the last stable offset ---


@some
@given(randoms)
def test_the_last_stable_offset_is_kafka_s_at_any_high_watermark(rng: random.Random) -> None:
    log = logs.random_log(rng)
    surveyed = survey_log(log)
    for high_watermark in {log.bases[0], log.end_offset, *(b.base_offset for b in log.batches)}:
        expected = logs.last_stable_offset(log.batches, high_watermark)
        assert surveyed.last_stable_offset(high_watermark) == expected


def test_a_marker_above_the_high_watermark_decides_nothing_yet() -> None:
    """It may be truncated, and the transaction end otherwise: what it aborts must not be dropped."""
    batches = [in_transaction((b"a", b""), at=0, pid=1), data((b"b", b""), at=1), abort(2, 1)]
    surveyed = join_surveys([survey_of(batches, 0)], "a log")
    assert surveyed.last_stable_offset(2) == 0
    assert surveyed.last_stable_offset(3) == 3


def test_open_and_transactional_offsets_are_told_apart() -> None:
    batches = [in_transaction((b"a", b""), at=0, pid=1), commit(1, 1), in_transaction((b"a", b""), at=2, pid=1)]
    surveyed = join_surveys([survey_of(batches, 0)], "a log")
    assert surveyed.first_transactional_offset == 0
    assert surveyed.events.open_first_offsets.tolist() == [2]
    settled = join_surveys([survey_of([data((b"a", b""), at=0), commit(1, 1)], 0)], "a log")
    assert settled.first_transactional_offset is None, "markers do not count"
    assert len(settled.events.open_first_offsets) == 0


# --- producers ---


@some
@given(randoms, st.sampled_from([0, logs.RETENTION_MS, 100 * logs.RETENTION_MS]))
def test_producers_are_those_that_a_broker_would_remember(rng: random.Random, expiration_ms: int) -> None:
    log = logs.random_log(rng)
    live = live_producers(survey_log(log).producers, logs.NOW_MS, expiration_ms)
    found = {(int(p["producer_id"]), int(p["producer_epoch"]), int(p["last_data_offset"])) for p in live}
    expected = logs.producers_of(log.batches, logs.NOW_MS, expiration_ms)
    assert found == {(p.producer_id, p.producer_epoch, p.last_data_offset) for p in expected}
    assert live["producer_id"].tolist() == sorted(live["producer_id"].tolist())


def test_a_marker_of_the_same_epoch_leaves_the_last_data_offset_and_one_of_a_new_epoch_does_not() -> None:
    batches = [in_transaction((b"a", b""), at=0, pid=1), commit(1, 1, epoch=0)]
    assert survey_of(batches, 0).producers["last_data_offset"].tolist() == [0]
    batches = [in_transaction((b"a", b""), at=0, pid=1), commit(1, 1, epoch=1)]
    assert survey_of(batches, 0).producers["last_data_offset"].tolist() == [-1]


def test_a_producer_expires_exactly_when_kafka_s_does() -> None:
    batch = data((b"a", b""), at=0, producer_id=1, producer_epoch=0, base_sequence=0)
    producers = survey_of([batch], 0).producers
    written_ms = batch.max_timestamp_ms
    assert len(live_producers(producers, written_ms + 99, 100)) == 1
    assert len(live_producers(producers, written_ms + 100, 100)) == 0


# --- segments that do not fit together ---


def test_overlapping_segments_are_refused() -> None:
    first = survey_of([data((b"a", b""), (b"b", b""), at=0)], 0)
    with pytest.raises(CorruptLogError, match="reaches offset 1, into the segment 1"):
        join_surveys([first, survey_of([data((b"a", b""), at=2)], 1)], "a log")
    assert join_surveys([first, survey_of([data((b"a", b""), at=2)], 2)], "a log").log_end_offset == 3


def test_an_empty_segment_between_others_overlaps_nothing() -> None:
    first, last = survey_of([data((b"a", b""), at=0)], 0), survey_of([data((b"a", b""), at=9)], 9)
    assert join_surveys([first, survey_of([], 5), last], "a log").log_end_offset == 10
    with pytest.raises(CorruptLogError):
        join_surveys([first, survey_of([], 0), last], "a log")
