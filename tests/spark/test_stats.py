"""Statistics against plain answers from the reference, and what each question's answer is made of."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.cli import log_stats
from sexton.compaction import survey
from sexton.compaction.fates import Fate
from sexton.compaction.reference import compact
from sexton.compaction.terms import Terms
from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE
from sexton.compaction.watermarks.checkpoint import encode as encode_watermarks
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.errors import CorruptLogError
from sexton.records import checkpoints, names
from sexton.records.batch import Batch, ControlType, Record
from sexton.records.header import DELETE_HORIZON
from sexton.spark import stats, whole_log
from sexton.spark.stats import Options, PartitionStats
from sexton.spark.stats_pass import ABOVE_BOUND
from tests import logs
from tests.spark.local_context import LocalContext

OPTIONS = Options(logs.NOW_MS, {"cleanup.policy": "compact"})


def collect(*directories: Path, options: Options = OPTIONS) -> list[PartitionStats]:
    return stats.collect(LocalContext(random.Random(1)).as_spark, directories, options)


def of(log: logs.Log, parent: Path, options: Options = OPTIONS, high_watermark: int | None = None) -> PartitionStats:
    logs.write_partition(log, parent / "orders-0")
    if high_watermark is not None:
        path = parent / checkpoints.REPLICATION_OFFSET_CHECKPOINT
        checkpoints.write_offset_checkpoint(path, {("orders", 0): high_watermark})
    (result,) = collect(parent / "orders-0", options=options)
    return result


def is_aborted(batch: Batch, batches: list[Batch]) -> bool:
    if not batch.is_transactional or batch.is_control:
        return False
    ends = (
        later.control_type
        for later in batches
        if later.producer_id == batch.producer_id
        and later.base_offset > batch.base_offset
        and later.control_type is not ControlType.UNKNOWN
    )
    return next(ends, None) is ControlType.ABORT


def newest_by_key(batches: list[Batch]) -> dict[bytes, tuple[Batch, Record]]:
    return {
        record.key: (batch, record)
        for batch in batches
        if not batch.is_control and not is_aborted(batch, batches)
        for record in batch.records
        if record.key is not None
    }


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_counts_are_those_of_a_plain_look_at_the_log(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = logs.random_log(rng)
    result = of(log, tmp_path_factory.mktemp("log"))
    assert result.failure is None
    data = [(batch, record) for batch in log.batches if not batch.is_control for record in batch.records]
    newest = newest_by_key(log.batches)
    assert result.record_count == len(data)
    assert result.batch_count == len(log.batches)
    assert result.segment_count == len(log.segments)
    assert result.log_end_offset == log.end_offset
    assert result.last_stable_offset == logs.last_stable_offset(log.batches, log.end_offset)
    assert result.distinct_key_count == len(newest)
    tombstones = [record for _, record in newest.values() if record.is_tombstone]
    assert result.tombstone_count == len(tombstones)
    if tombstones:
        assert min(s.oldest_ms for s in result.measured.tombstones.values()) == min(r.timestamp_ms for r in tombstones)
        assert max(s.newest_ms for s in result.measured.tombstones.values()) == max(r.timestamp_ms for r in tombstones)
    aborted = [record for batch, record in data if is_aborted(batch, log.batches)]
    assert result.measured.aborted_count == len(aborted)
    keyless = [r for batch, r in data if r.key is None and not is_aborted(batch, log.batches)]
    assert result.measured.keyless_count == len(keyless)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_savings_are_what_the_reference_would_remove(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = logs.random_log(rng)
    result = of(log, tmp_path_factory.mktemp("log"))
    assert result.eligibility is not None
    assert result.savings is not None
    bound, first_dirty = result.eligibility.bound.offset, result.eligibility.first_dirty_offset
    if max(first_dirty, log.bases[0]) >= bound:
        assert result.savings.record_count == 0
        return
    terms = Terms(logs.NOW_MS, bound, logs.RETENTION_MS)
    verdicts = compact(log.batches, terms, logs.producers_of(log.batches, logs.NOW_MS, logs.RETENTION_MS)).verdicts
    assert result.savings.record_count == sum(not verdict.fate.stays for verdict in verdicts)


def test_chunks_cut_anywhere_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.random_log(random.Random(4), 80)
    whole = of(log, tmp_path)
    monkeypatch.setattr(survey, "GRAIN_RECORDS", 3)
    monkeypatch.setattr(whole_log, "CHUNK_RECORDS_MAX", 5)
    (cut,) = collect(tmp_path / "orders-0")
    assert replace(cut.measured, chunk=0) == replace(whole.measured, chunk=0)


def test_each_tombstone_says_what_it_waits_for(tmp_path: Path) -> None:
    def cleaned(key: bytes, at: int, horizon_ms: int) -> Batch:
        batch = logs.data((key, None), at=at)
        return replace(batch, attributes=DELETE_HORIZON, base_timestamp_ms=horizon_ms)

    log = logs.Log(
        [0, 10],
        [
            [
                cleaned(b"gone", 0, logs.NOW_MS - 1),
                cleaned(b"soon", 1, logs.NOW_MS + 5000),
                cleaned(b"later", 2, logs.NOW_MS + 9000),
                logs.data((b"new", None), (b"superseded", None), at=3),
                logs.data((b"superseded", b"alive"), at=5),
            ],
            [logs.data((b"active", None), at=10)],
        ],
    )
    measured = of(log, tmp_path).measured
    assert {fate: span.count for fate, span in measured.tombstones.items()} == {
        Fate.TOMBSTONE_EXPIRED: 1,
        Fate.TOMBSTONE_WAITS_FOR_HORIZON: 2,
        Fate.TOMBSTONE_STARTS_HORIZON: 1,
        ABOVE_BOUND: 1,
    }
    assert measured.horizon_next_ms == logs.NOW_MS + 5000


def test_an_open_transaction_is_named_with_offset_time_and_producer(tmp_path: Path) -> None:
    log = logs.Log(
        [0, 10],
        [
            [
                logs.in_transaction((b"a", b"1"), at=0, pid=7),
                logs.commit(1, pid=7),
                logs.in_transaction((b"b", b"2"), (b"c", b"3"), at=2, pid=8),
                logs.abort(4, pid=8),
                logs.in_transaction((b"d", b"4"), at=5, pid=9),
            ],
            [logs.in_transaction((b"d", b"5"), at=10, pid=9)],
        ],
    )
    result = of(log, tmp_path)
    counted = result.transactions
    assert counted is not None
    assert (counted.committed_count, counted.aborted_count, counted.aborted_record_count) == (1, 1, 2)
    assert counted.open == (stats.OpenTransaction(9, 5, logs.NOW_MS - logs.HOUR_MS + 5),)
    assert result.eligibility is not None
    assert result.eligibility.bound.offset == 0
    assert "open since offset 5" in result.eligibility.bound.because


class TestLastCleaned:
    def test_never_when_nothing_speaks_for_it(self, tmp_path: Path) -> None:
        log = logs.Log([0, 2], [[logs.data((b"a", b"1"), (b"b", b"2"), at=0)], [logs.data((b"a", b"3"), at=2)]])
        assert of(log, tmp_path).last_cleaned is None

    def test_by_the_checkpoint_after_the_newest_record_below_it(self, tmp_path: Path) -> None:
        log = logs.Log([0, 2], [[logs.data((b"a", b"1"), (b"b", b"2"), at=0)], [logs.data((b"a", b"3"), at=2)]], 2)
        cleaned = of(log, tmp_path).last_cleaned
        assert cleaned is not None
        assert (cleaned.up_to_offset, cleaned.not_before_ms) == (2, logs.NOW_MS - logs.HOUR_MS + 1)

    def test_by_gaps_in_a_copy_without_checkpoints(self, tmp_path: Path) -> None:
        first = logs.data((b"a", b"1"), at=0)
        holes = replace(logs.data((b"b", b"2"), at=5), base_offset=3, last_offset=6)
        log = logs.Log([0], [[first, holes, logs.data((b"a", b"3"), at=7)]])
        cleaned = of(log, tmp_path).last_cleaned
        assert cleaned is not None
        assert (cleaned.up_to_offset, cleaned.not_before_ms) == (7, logs.NOW_MS - logs.HOUR_MS + 5)
        assert "gaps" in cleaned.evidence

    def test_a_delete_horizon_tells_when_more_exactly(self, tmp_path: Path) -> None:
        marked = replace(
            logs.data((b"a", None), at=0),
            attributes=DELETE_HORIZON,
            base_timestamp_ms=logs.NOW_MS - 7 + logs.RETENTION_MS,
        )
        log = logs.Log([0, 1], [[marked], [logs.data((b"a", b"3"), at=1)]], clean_below=1)
        cleaned = of(log, tmp_path).last_cleaned
        assert cleaned is not None
        assert cleaned.not_before_ms == logs.NOW_MS - 7


def test_what_is_not_known_is_assumed_and_said(tmp_path: Path) -> None:
    log = logs.Log([0], [[logs.data((b"a", b"1"), at=0)]])
    result = of(log, tmp_path, Options(logs.NOW_MS))
    assert result.config.compacts
    assert any("cleanup.policy=compact" in text for text in result.assumptions)
    assert any("high watermark" in text for text in result.assumptions)


def test_a_partition_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    log = logs.Log([0], [[logs.data((b"a", b"1"), at=0)]])
    for partition in range(2):
        logs.write_partition(log, tmp_path / f"orders-{partition}")
    path = tmp_path / "orders-0" / names.log_file_name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    broken, fine = collect(tmp_path / "orders-0", tmp_path / "orders-1")
    assert isinstance(broken.failure, CorruptLogError)
    assert fine.failure is None
    assert fine.distinct_key_count == 1


def test_an_empty_log_has_nothing_to_tell(tmp_path: Path) -> None:
    result = of(logs.Log([0], [[]]), tmp_path)
    assert result.failure is None
    assert (result.record_count, result.distinct_key_count, result.last_cleaned) == (0, 0, None)


# ---- A Sexton broker's replica.

DELETED = logs.Log(
    [0, 10, 20, 30],
    [
        [logs.data((b"a", b"1"), (b"a", None), at=0)],
        [logs.data((b"b", None), at=10)],
        [logs.data((b"c", b"1"), at=20)],
        [],
    ],
)


def of_sexton(tmp_path: Path, watermarks: bytes, incarnation: uuid.UUID) -> PartitionStats:
    directory = tmp_path / "orders-0"
    logs.write_partition(DELETED, directory)
    (directory / WATERMARKS_FILE).write_bytes(watermarks)
    (directory / names.INCARNATION_FILE).write_text(f"{incarnation}\n")
    (result,) = collect(directory)
    return result


def test_a_sexton_brokers_replica_is_as_clean_as_its_watermarks_say(tmp_path: Path) -> None:
    known = ReplicaWatermarks(uuid.uuid4(), compacted=Pair(20, 20), removable=Pair(10, 10))
    found = of_sexton(tmp_path, encode_watermarks(known), known.incarnation)
    assert found.failure is None
    assert found.eligibility is not None
    assert found.eligibility.first_dirty_offset == 20
    assert found.last_cleaned is not None
    assert (found.last_cleaned.up_to_offset, found.last_cleaned.evidence) == (20, "its watermarks")
    assert {fate: span.count for fate, span in found.measured.tombstones.items()} == {
        Fate.TOMBSTONE_STARTS_HORIZON: 1,  # of a, below MTRO
        Fate.TOMBSTONE_WAITS_FOR_REPLICAS: 1,  # of b
    }
    assert any("in Sexton's metastore" in text for text in found.assumptions)
    assert log_stats.as_dict(found)["watermarks"] == {"mcco": 20, "mxfo": 20, "mtro": 10, "mxro": 10, "fence_below": 0}


@pytest.mark.parametrize("are", ["damaged", "another replica's"])
def test_watermarks_that_say_nothing_of_this_log_count_as_none_and_that_is_said(tmp_path: Path, are: str) -> None:
    known = ReplicaWatermarks(uuid.uuid4(), compacted=Pair(20, 20), removable=Pair(10, 10))
    content = encode_watermarks(known)
    other = are == "another replica's"
    found = of_sexton(tmp_path, content if other else content[:-3], uuid.uuid4() if other else known.incarnation)
    assert found.eligibility is not None
    assert found.eligibility.first_dirty_offset == 0
    assert any("watermarks are missing or damaged" in text for text in found.assumptions)
