"""Two replicas held against each other: found differences against plain folds, and each reason in its smallest log."""

from __future__ import annotations

import random
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction.kernels.contents import CONTENT, buckets_of, hash_contents
from sexton.compaction.reference import compact, fold_by_key
from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE
from sexton.compaction.watermarks.checkpoint import encode as encode_watermarks
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.errors import CorruptLogError, NotALogError
from sexton.records import checkpoints, names
from sexton.records.batch import Batch, Header, Record, encode, make_batch
from sexton.records.kernels import scan
from sexton.records.keyhash import HashKey, hash_key, hash_numbers
from sexton.spark import arrow_columns, file_stretch, fold_job, fold_pass, unpacking
from sexton.spark.diff import Diff, diff
from tests import logs
from tests.spark.local_context import LocalContext


def run(side_a: Path, side_b: Path, limit: int = 1000) -> Diff:
    return diff(LocalContext(random.Random(1)).as_spark, side_a, side_b, limit)


def write(parent: Path, log: logs.Log, high_watermark: int | None = None, log_start_offset: int | None = None) -> Path:
    directory = parent / "orders-0"
    logs.write_partition(log, directory)
    for name, offset in (
        (checkpoints.REPLICATION_OFFSET_CHECKPOINT, high_watermark),
        (checkpoints.LOG_START_OFFSET_CHECKPOINT, log_start_offset),
    ):
        if offset is not None:
            checkpoints.write_offset_checkpoint(parent / name, {("orders", 0): offset})
    return directory


def one_segment(*batches: Batch, clean_below: int | None = None) -> logs.Log:
    return logs.Log([0], [list(batches)], clean_below)


def folds_differ(a: dict[bytes, Record], b: dict[bytes, Record]) -> set[bytes]:
    def content(record: Record | None) -> object:
        return None if record is None else (record.offset, record.timestamp_ms, record.value, record.headers)

    return {key for key in {*a, *b} if content(a.get(key)) != content(b.get(key))}


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_differing_keys_are_those_of_the_plain_folds(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    """A replica beside one that lags, lost batches, or holds other records."""
    log = logs.random_log(rng)
    other = [list(segment) for segment in log.segments]
    for _ in range(rng.choice([0, 1, 3])):
        segment = rng.choice([segment for segment in other if segment] or [[]])
        if segment:
            place = rng.randrange(len(segment))
            batch = segment[place]
            if batch.is_control or not batch.records or rng.random() < 0.5:
                del segment[place]
            else:
                # With LogAppendTime the batch alone has a time, and no record one of its own.
                times = [] if batch.is_log_append_time else [{"timestamp_ms": 12_345}]
                other_fields: dict[str, Any] = rng.choice([{"value": b"other"}, *times])
                changed = tuple(replace(record, **other_fields) for record in batch.records)
                segment[place] = replace(batch, records=changed)
    twin = logs.Log(log.bases, other)
    parent = tmp_path_factory.mktemp("logs")
    result = run(write(parent / "a", log), write(parent / "b", twin))
    fold_a, fold_b = fold_by_key(log.batches), fold_by_key(twin.batches)
    assert {difference.key for difference in result.differences} == folds_differ(fold_a, fold_b)
    assert result.equal_count == len({*fold_a} & {*fold_b} - folds_differ(fold_a, fold_b))
    assert result.only_a_count == len({*fold_a} - {*fold_b})
    assert result.only_b_count == len({*fold_b} - {*fold_a})
    assert all(difference.reason for difference in result.differences)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_log_and_what_compaction_makes_of_it_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = logs.random_log(rng)
    bounds = log.bounds()
    if not bounds:
        return
    terms = logs.random_terms(rng, log, rng.choice(bounds))
    cleaned = compact(log.batches, terms, logs.producers_of(log.batches, logs.NOW_MS, logs.RETENTION_MS)).batches
    segments: list[list[Batch]] = [[] for _ in log.bases]
    for batch in cleaned:
        segments[max(i for i, base in enumerate(log.bases) if base <= batch.base_offset)].append(batch)
    parent = tmp_path_factory.mktemp("logs")
    result = run(write(parent / "a", log), write(parent / "b", logs.Log(log.bases, segments, terms.bound)))
    assert result.differing_count == 0, result.differences
    assert result.equal_count == len(fold_by_key(log.batches))


def test_the_newest_of_two_transactions_counts_whoever_wrote_it(tmp_path: Path) -> None:
    """Both are open at the end of their segment, where entries come by producer: the newer record came first."""
    older, newer = logs.in_transaction((b"k", b"old"), at=0, pid=9), logs.in_transaction((b"k", b"new"), at=1, pid=8)
    ends = [logs.commit(2, pid=8), logs.commit(3, pid=9)]
    log = logs.Log([0, 2], [[older, newer], ends])
    compacted = logs.Log([0, 2], [[newer], ends], 2)
    result = run(write(tmp_path / "a", log), write(tmp_path / "b", compacted))
    assert (result.differing_count, result.equal_count) == (0, 1), result.differences


def test_chunks_cut_anywhere_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.random_log(random.Random(9), 80)
    lagging = logs.Log(log.bases[:1], [log.batches[: len(log.batches) // 2]])
    side_a, side_b = write(tmp_path / "a", log), write(tmp_path / "b", lagging)
    whole = run(side_a, side_b)
    monkeypatch.setattr(file_stretch, "PIECE_BYTES", 100)
    monkeypatch.setattr(fold_pass, "RUN_ENTRIES_MAX", 3)
    monkeypatch.setattr(fold_job, "BUCKET_BYTES", 1000)
    monkeypatch.setattr(unpacking, "RUN_RECORDS", 2)
    cut = run(side_a, side_b)
    assert whole.differing_count > 0
    assert cut.differences == whole.differences
    assert cut.equal_count == whole.equal_count


def test_only_as_many_differences_as_asked_for_are_fetched_but_all_are_counted(tmp_path: Path) -> None:
    records = [(b"key %d" % number, b"v") for number in range(50)]
    side_a = write(tmp_path / "a", one_segment(logs.data(*records, at=0)))
    side_b = write(tmp_path / "b", one_segment(logs.data((b"other", b"v"), at=0)))
    result = run(side_a, side_b, limit=3)
    assert len(result.differences) == 3
    assert (result.only_a_count, result.only_b_count) == (50, 1)


VALUE = logs.data((b"k", b"old"), at=0)
TOMBSTONE = logs.data((b"k", None), at=1)
FILLER = logs.data((b"filler", b"x"), at=2)


def reason(tmp_path: Path, log_a: logs.Log, log_b: logs.Log, **of_b: int) -> str:
    result = run(write(tmp_path / "a", log_a), write(tmp_path / "b", log_b, **of_b))
    (difference,) = [each for each in result.differences if each.key == b"k"]
    return difference.reason


class TestReasons:
    def test_a_tombstone_that_one_has_and_the_other_lacks(self, tmp_path: Path) -> None:
        said = reason(tmp_path, one_segment(VALUE, TOMBSTONE, FILLER), one_segment(VALUE, FILLER))
        assert said.startswith("B lacks the tombstone at offset 1 that A has")

    def test_a_tombstone_that_one_has_compacted_away_and_the_other_never_got(self, tmp_path: Path) -> None:
        """The corruption of the first seed: the key is back on B."""
        said = reason(tmp_path, one_segment(FILLER, clean_below=2), one_segment(VALUE, FILLER))
        assert "B lacks the tombstone that A has compacted away" in said

    def test_the_same_on_a_sexton_broker_whose_watermarks_say_what_is_compacted(self, tmp_path: Path) -> None:
        side_a = write(tmp_path / "a", one_segment(FILLER))
        known = ReplicaWatermarks(uuid.uuid4(), compacted=Pair(2, 2))
        (side_a / WATERMARKS_FILE).write_bytes(encode_watermarks(known))
        (difference,) = run(side_a, write(tmp_path / "b", one_segment(VALUE, FILLER))).differences
        assert "B lacks the tombstone that A has compacted away" in difference.reason

    def test_beyond_the_others_end(self, tmp_path: Path) -> None:
        said = reason(tmp_path, one_segment(VALUE, TOMBSTONE), one_segment(VALUE))
        assert said == "offset 1 lies beyond B's end at 1"

    def test_above_the_others_high_watermark(self, tmp_path: Path) -> None:
        said = reason(tmp_path, one_segment(VALUE, TOMBSTONE), one_segment(VALUE, TOMBSTONE), high_watermark=1)
        assert said == "offset 1 is not below B's high watermark 1"

    def test_below_the_others_log_start(self, tmp_path: Path) -> None:
        said = reason(tmp_path, one_segment(VALUE, FILLER), one_segment(VALUE, FILLER), log_start_offset=2)
        assert said == "offset 0 lies below B's log start at 2"

    def test_behind_an_open_transaction(self, tmp_path: Path) -> None:
        opened = logs.in_transaction((b"other", b"x"), at=1, pid=77)
        newer = logs.data((b"k", b"new"), at=2)
        marker = logs.commit(3, pid=77)
        said = reason(tmp_path, one_segment(VALUE, opened, newer, marker), one_segment(VALUE, opened, newer))
        assert said == "B's last stable offset is pinned at 1 by an open transaction of producer 77"

    def test_behind_a_marker_that_is_not_committed_yet(self, tmp_path: Path) -> None:
        opened = logs.in_transaction((b"k", b"new"), at=1, pid=77)
        log = one_segment(VALUE, opened, FILLER, logs.commit(3, pid=77))
        said = reason(tmp_path, log, log, high_watermark=3)
        assert "pinned at 1 by a transaction of producer 77, whose marker at 3 is not committed yet" in said

    def test_of_a_transaction_that_the_other_saw_aborted(self, tmp_path: Path) -> None:
        written = logs.in_transaction((b"k", b"new"), at=1, pid=77)
        committed, aborted = logs.commit(2, pid=77), logs.abort(2, pid=77)
        said = reason(tmp_path, one_segment(VALUE, written, committed), one_segment(VALUE, written, aborted))
        assert said == "the record at offset 1 is of a transaction that B saw aborted (marker at offset 2)"

    def test_the_same_offset_with_different_records(self, tmp_path: Path) -> None:
        other = logs.data((b"k", b"forged"), at=0, leader_epoch=4)
        said = reason(tmp_path, one_segment(VALUE), one_segment(other))
        assert said == "offset 0 holds different records (leader epochs 0 and 4): the logs have diverged"

    def test_another_key_at_the_offset(self, tmp_path: Path) -> None:
        said = reason(tmp_path, one_segment(VALUE), one_segment(logs.data((b"other", b"old"), at=0)))
        assert said == "offset 0 holds another record on B: the logs have diverged"


def test_headers_count_as_content(tmp_path: Path) -> None:
    plain = Record(0, 1, b"k", b"v")
    side_a = write(tmp_path / "a", one_segment(make_batch([plain])))
    side_b = write(tmp_path / "b", one_segment(make_batch([replace(plain, headers=(Header("h", b"1"),))])))
    assert run(side_a, side_b).changed_count == 1


def test_a_timestamp_is_part_of_what_a_consumer_gets(tmp_path: Path) -> None:
    record = Record(0, logs.NOW_MS, b"k", b"v")
    side_a = write(tmp_path / "a", one_segment(make_batch([record])))
    side_b = write(tmp_path / "b", one_segment(make_batch([replace(record, timestamp_ms=12_345)])))
    (difference,) = run(side_a, side_b).differences
    assert difference.reason == (
        f"offset 0 has the timestamp {logs.NOW_MS} on one and 12345 on the other, and is else the same"
    )


def test_a_value_that_ends_where_a_header_begins_elsewhere_is_another_value(tmp_path: Path) -> None:
    """Byte for byte the same from the value on: an empty value and a header, or a value that looks like them."""
    headed = Record(0, logs.NOW_MS, b"k", b"", (Header("x", b"\0"),))
    valued = Record(0, logs.NOW_MS, b"k", b"\x02\x02x\x02")
    side_a = write(tmp_path / "a", one_segment(make_batch([headed])))
    side_b = write(tmp_path / "b", one_segment(make_batch([valued])))
    assert run(side_a, side_b).changed_count == 1


def test_a_side_that_cannot_be_read_fails_the_comparison(tmp_path: Path) -> None:
    side_a = write(tmp_path / "a", one_segment(VALUE))
    side_b = write(tmp_path / "b", one_segment(VALUE))
    path = side_b / names.log_file_name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CorruptLogError):
        run(side_a, side_b)


def test_two_different_partitions_are_not_compared(tmp_path: Path) -> None:
    side_a = write(tmp_path / "a", one_segment(VALUE))
    shutil.copytree(side_a, tmp_path / "b" / "orders-1")
    with pytest.raises(NotALogError, match="this is orders-1, but the other is orders-0"):
        run(side_a, tmp_path / "b" / "orders-1")


def test_two_empty_logs_are_the_same(tmp_path: Path) -> None:
    result = run(write(tmp_path / "a", logs.Log([0], [[]])), write(tmp_path / "b", logs.Log([5], [[]])))
    assert (result.differing_count, result.equal_count) == (0, 0)


def test_fingerprints_are_those_of_the_plain_hash() -> None:
    points = HashKey(12345, 67890)
    made = logs.data((b"key", b"value"), (b"gone", None), (None, b"x"), (b"", b""), at=0)
    batch = make_batch([*made.records[:3], replace(made.records[3], timestamp_ms=-1)])
    data = np.frombuffer(encode(batch), dtype=np.uint8)
    table = scan.scan_whole(data, 0, len(data), "test", check_crc=True)
    records = arrow_columns.walk(data, table["position"] + 61, table["position"] + table["size"], table, "test")
    entries = np.zeros(len(records), dtype=CONTENT)
    filled = hash_contents(data, records, np.uint64(points.first), np.uint64(points.second), entries)
    expected = []
    for record in (batch.records[index] for index in (0, 1, 3)):
        assert record.key is not None
        code = record.offset << 2 | (2 if record.value is None else 0)
        rest = hash_key((record.value or b"") + b"\0", points)[0]
        value_size = -1 if record.value is None else len(record.value)
        content = hash_numbers((rest, record.timestamp_ms, value_size), points.first)
        expected.append((*hash_key(record.key, points), code, content))
    assert [tuple(entry) for entry in entries[:filled].tolist()] == expected
    assert buckets_of(entries[:filled], 7).tolist() == [(entry[0] * 7) >> 64 for entry in expected]
