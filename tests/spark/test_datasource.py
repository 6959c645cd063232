"""The ``kafkalog`` data source: every column against the reference decoder, then through Spark itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, InputPartition, IsNotNull, LessThanOrEqual
from pyspark.sql.types import StructType

from sexton.compaction import survey
from sexton.compaction.reference import fold_by_key
from sexton.errors import CorruptLogError, NotALogError
from sexton.records import checkpoints, codecs, names
from sexton.records.batch import Batch, ControlType, Header, Record, encode, make_batch
from sexton.spark import arrow_columns, datasource, unpacking
from sexton.spark.datasource import SCHEMA, BadOptionError, KafkaLogReader, PushingKafkaLogReader, parse_options
from tests import logs

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OUTCOMES = {ControlType.COMMIT: "committed", ControlType.ABORT: "aborted", None: "open"}


def moment(timestamp_ms: int | None) -> datetime | None:
    return None if timestamp_ms is None else EPOCH + timedelta(milliseconds=timestamp_ms)


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_a_time_that_no_clock_shows_is_null(timestamp_ms: int) -> None:
    found = arrow_columns.moments(np.array([timestamp_ms, 5], dtype=np.int64), None, pa.timestamp("us", tz="UTC"))
    assert found.to_pylist() == [None, moment(5)]


def outcomes_of(batches: list[Batch]) -> dict[int, str | None]:
    """By base offset, how each batch's transaction ended, found by looking ahead for its producer's next marker."""
    found: dict[int, str | None] = {}
    for index, batch in enumerate(batches):
        if not batch.is_transactional or batch.is_control:
            found[batch.base_offset] = None
            continue
        ends = (
            later.control_type
            for later in batches[index:]
            if later.producer_id == batch.producer_id and later.control_type is not ControlType.UNKNOWN
        )
        found[batch.base_offset] = OUTCOMES[next(ends, None)]
    return found


def expected_rows(log: logs.Log) -> list[dict[str, Any]]:
    """Every record of the log, control records too, as the source must show it."""
    outcomes = outcomes_of(log.batches)
    return [
        _row(record, batch, outcomes[batch.base_offset], names.log_file_name(base))
        for base, segment in zip(log.bases, log.segments, strict=True)
        for batch in segment
        for record in batch.records
    ]


def _row(record: Record, batch: Batch, outcome: str | None, segment: str) -> dict[str, Any]:
    has_producer = batch.producer_id >= 0
    control = batch.control_type.name.lower() if batch.control_type is not ControlType.UNKNOWN else None
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": 0,
        "offset": record.offset,
        "timestamp": moment(record.timestamp_ms),
        "timestampType": int(batch.is_log_append_time),
        "headers": [{"key": h.name, "value": h.value} for h in record.headers] or None,
        "producerId": batch.producer_id if has_producer else None,
        "producerEpoch": batch.producer_epoch if has_producer else None,
        "sequence": batch.base_sequence + record.offset - batch.base_offset if batch.base_sequence >= 0 else None,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "controlType": control,
        "transactionOutcome": outcome,
        "batchBaseOffset": batch.base_offset,
        "batchLastOffset": batch.last_offset,
        "leaderEpoch": batch.leader_epoch,
        "codec": codecs.Codec(batch.codec).name.lower(),
        "deleteHorizon": moment(batch.delete_horizon_ms),
        "segment": segment,
    }


def read(
    directory: Path, schema: StructType = SCHEMA, filters: tuple[Filter, ...] = (), **options: str
) -> list[dict[str, Any]]:
    """What the source's own reader yields, without Spark."""
    reader = PushingKafkaLogReader(parse_options({"path": str(directory), **options}), schema)
    reader.pushFilters(list(filters))
    return [row for batch in _batches(reader) for row in batch.to_pylist()]


def _batches(reader: KafkaLogReader) -> Iterator[pa.RecordBatch]:
    for task in reader.partitions():
        for batch in reader.read(InputPartition(task.value)):
            batch.validate(full=True)
            yield batch


def write(log: logs.Log, parent: Path, name: str = "orders-0") -> Path:
    logs.write_partition(log, parent / name)
    return parent / name


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_column_says_what_the_reference_decoder_says(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = logs.random_log(rng)
    directory = write(log, tmp_path_factory.mktemp("log"))
    expected = expected_rows(log)
    assert read(directory, includeControl="true") == expected
    assert read(directory) == [row for row in expected if not row["isControl"]]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_read_committed_shows_what_such_a_consumer_gets(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = logs.random_log(rng)
    parent = tmp_path_factory.mktemp("log")
    directory = write(log, parent)
    high_watermark = rng.choice([None, log.end_offset, rng.choice(log.batches).base_offset])
    if high_watermark is not None:
        path = parent / checkpoints.REPLICATION_OFFSET_CHECKPOINT
        checkpoints.write_offset_checkpoint(path, {("orders", 0): high_watermark})
    end = log.end_offset if high_watermark is None else high_watermark
    stable = logs.last_stable_offset(log.batches, end)
    expected = [
        row
        for row in expected_rows(log)
        if row["offset"] < stable and not row["isControl"] and row["transactionOutcome"] != "aborted"
    ]
    assert read(directory, isolation="read_committed") == expected


@pytest.mark.parametrize("beside", ["all logs, as Kafka keeps it", "the log, as Sexton keeps it"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_what_was_deleted_below_the_log_start_is_not_read(tmp_path: Path, beside: str, isolation: str) -> None:
    """DeleteRecords is how people erase, and the file that holds the records may stay for long."""
    batches = [logs.data((b"a", b"1"), (b"b", b"2"), at=0), logs.data((b"c", b"3"), (b"d", b"4"), at=2)]
    directory = write(logs.Log([0], [batches]), tmp_path)
    place = tmp_path if "Kafka" in beside else directory
    checkpoints.write_offset_checkpoint(place / checkpoints.LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 3})
    assert [row["offset"] for row in read(directory, isolation=isolation)] == [3]
    assert [row["offset"] for row in read(directory, isolation=isolation, startingOffset="1")] == [3]


def test_the_fold_of_read_committed_rows_is_the_references_fold(tmp_path: Path) -> None:
    log = logs.random_log(random.Random(7), 60)
    fold: dict[bytes, bytes] = {}
    for row in read(write(log, tmp_path), isolation="read_committed"):
        if row["key"] is not None:
            fold.pop(row["key"], None)
            if row["value"] is not None:
                fold[row["key"]] = row["value"]
    assert fold == {key: record.value for key, record in fold_by_key(log.batches).items()}


def test_runs_and_tasks_of_any_size_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [
        [logs.data(*[(b"k", b"v" * at)] * 4, at=base + at, attributes=at // 4 % 5) for at in range(0, 80, 4)]
        for base in (0, 80)
    ]
    log = logs.Log([0, 80], segments)
    directory = write(log, tmp_path)
    monkeypatch.setattr(unpacking, "RUN_BYTES", 100)
    monkeypatch.setattr(unpacking, "RUN_RECORDS", 3)
    monkeypatch.setattr(arrow_columns, "SCAN_ROWS", 4)
    monkeypatch.setattr(survey, "GRAIN_RECORDS", 8)
    monkeypatch.setattr(datasource, "TASK_BYTES", 500)
    reader = KafkaLogReader(parse_options({"path": str(directory), "includeControl": "true"}), SCHEMA)
    assert len(reader.partitions()) > len(log.segments)
    batches = list(_batches(reader))
    assert len(batches) == len(log.batches)
    assert [row for batch in batches for row in batch.to_pylist()] == expected_rows(log)


@pytest.mark.parametrize(
    ("filters", "keeps"),
    [
        ((GreaterThan(("offset",), 5), IsNotNull(("offset",))), lambda offset: offset > 5),
        ((EqualTo(("offset",), 7), EqualTo(("topic",), "orders")), lambda offset: offset == 7),
        ((GreaterThan(("offset",), 2), LessThanOrEqual(("offset",), 9)), lambda offset: 2 < offset <= 9),
        ((EqualTo(("partition",), 1),), lambda offset: False),
        ((EqualTo(("offset",), -1),), lambda offset: False),
    ],
)
def test_filters_that_are_pushed_down_are_applied_to_the_record(
    tmp_path: Path, filters: tuple[Filter, ...], keeps: Any
) -> None:
    batches = [[logs.data(*[(b"k", b"v")] * 4, at=at)] for at in (0, 4, 8)]
    directory = write(logs.Log([0, 4, 8], batches), tmp_path)
    assert [row["offset"] for row in read(directory, filters=filters)] == [o for o in range(12) if keeps(o)]


def test_filters_that_cannot_be_pushed_down_stay_sparks() -> None:
    reader = PushingKafkaLogReader(parse_options({"path": "x"}), SCHEMA)
    theirs: list[Filter] = [In(("offset",), (1, 2)), EqualTo(("codec",), "none"), EqualTo(("offset",), None)]
    assert list(reader.pushFilters([*theirs, GreaterThan(("offset",), 1)])) == theirs
    assert reader.wanted.from_offset == 2


def test_segments_out_of_range_are_not_opened_unless_transactions_matter(tmp_path: Path) -> None:
    directory = write(logs.Log([0, 4], [[logs.data((b"k", b"v"), at=0)], [logs.data((b"k", b"v"), at=4)]]), tmp_path)
    (directory / names.log_file_name(0)).write_bytes(b"not a segment at all, but nobody looks")
    schema = StructType([SCHEMA["offset"]])
    assert read(directory, schema, startingOffset="4") == [{"offset": 4}]
    with pytest.raises(CorruptLogError):
        read(directory, startingOffset="4")


def test_sequences_wrap_around_as_a_producers_do(tmp_path: Path) -> None:
    batch = logs.data(*[(b"k", b"v")] * 3, at=0, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    directory = write(logs.Log([0], [[batch]]), tmp_path)
    assert [row["sequence"] for row in read(directory)] == [2**31 - 2, 2**31 - 1, 0]


def test_a_clock_in_nanoseconds_gives_null_instead_of_another_century(tmp_path: Path) -> None:
    batch = make_batch([Record(0, 1_700_000_000_000_000_000, b"k", b"v")])
    assert read(write(logs.Log([0], [[batch]]), tmp_path))[0]["timestamp"] is None


def test_a_batch_that_claims_more_records_than_fit_is_refused_before_room_is_made(tmp_path: Path) -> None:
    batch = logs.data((b"k", b"v"), at=0, last_offset=2**31 - 2, attributes=codecs.Codec.ZSTD)
    encoded = bytearray(encode(batch))
    encoded[57:61] = (2**31 - 2).to_bytes(4, "big")
    encoded[17:21] = crc_of(encoded)
    directory = write(logs.Log([0], [[batch]]), tmp_path)
    (directory / names.log_file_name(0)).write_bytes(encoded)
    with pytest.raises(CorruptLogError, match="cannot be parsed"):
        read(directory)


def test_header_names_that_are_no_text_are_shown_as_kafka_reads_them(tmp_path: Path) -> None:
    batch = make_batch([Record(0, 1, b"k", b"v", (Header("a?c", b"1"),))])
    encoded = bytearray(encode(batch))
    at = encoded.index(b"a?c") + 1
    encoded[at] = 0xFF
    directory = write(logs.Log([0], [[batch]]), tmp_path)
    crc = crc_of(encoded)
    encoded[17:21] = crc
    (directory / names.log_file_name(0)).write_bytes(encoded)
    assert read(directory)[0]["headers"] == [{"key": "a\ufffdc", "value": b"1"}]


def crc_of(encoded: bytearray) -> bytes:
    return int(crc32c.crc32c(encoded[21:])).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no path"),
        ({"path": "x", "isolation": "serializable"}, "serializable"),
        ({"path": "x", "includeControl": "maybe"}, "maybe"),
        ({"path": "x", "startingOffset": "-1"}, "startingOffset"),
        ({"path": "x", "endingOffset": "latest"}, "endingOffset"),
        ({"path": "x", "isolaton": "read_committed"}, "isolaton"),
    ],
)
def test_options_that_mean_nothing_are_refused_with_what_would(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOptionError, match=says) as caught:
        parse_options(options)
    assert caught.value.remedy


@pytest.mark.spark
def test_spark_reads_a_log_directory_with_sql(spark: SparkSession, tmp_path: Path) -> None:
    """Two partitions in one directory, queried as the README shows."""
    seeds = {f"orders-{partition}": logs.random_log(random.Random(partition), 30) for partition in range(2)}
    for name, log in seeds.items():
        write(log, tmp_path, name)
    datasource.register(spark)
    spark.read.format("kafkalog").option("includeControl", "true").load(str(tmp_path)).createOrReplaceTempView("log")
    counts = spark.sql("SELECT partition, count(*), max(offset), count(key) FROM log GROUP BY 1 ORDER BY 1").collect()
    for row, log in zip(counts, seeds.values(), strict=True):
        records = [record for batch in log.batches for record in batch.records]
        keys = [record for record in records if record.key is not None]
        assert tuple(row)[1:] == (len(records), max(r.offset for r in records), len(keys))


@pytest.mark.spark
def test_spark_gets_every_column_and_only_the_named_ones(spark: SparkSession, tmp_path: Path) -> None:
    log = logs.random_log(random.Random(11), 40)
    directory = write(log, tmp_path)
    spark.dataSource.register(datasource.KafkaLogDataSource)
    spark.conf.set(datasource.PUSHDOWN_SETTING, "false")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    reader = spark.read.format("kafkalog").option("includeControl", "true")
    rows = [row.asDict(recursive=True) for row in reader.load(str(directory)).orderBy("offset").collect()]
    expected = expected_rows(log)
    for name in SCHEMA.names:
        if name not in ("timestamp", "deleteHorizon"):  # collect() makes them local and naive
            assert [row[name] for row in rows] == [row[name] for row in expected], name
    few = reader.schema("offset long, codec string").load(str(directory))
    assert few.columns == ["offset", "codec"]
    assert {tuple(row) for row in few.collect()} == {(row["offset"], row["codec"]) for row in expected}


@pytest.mark.spark
def test_spark_pushes_offset_filters_down(spark: SparkSession, tmp_path: Path) -> None:
    directory = write(logs.Log([0, 4], [[logs.data(*[(b"k", b"v")] * 4, at=at)] for at in (0, 4)]), tmp_path)
    datasource.register(spark)
    (directory / names.log_file_name(0)).write_bytes(b"never opened, because the query does not ask for it")
    frame = spark.read.format("kafkalog").schema("offset long").load(str(directory))
    assert [row.offset for row in frame.where("offset >= 6").collect()] == [6, 7]


@pytest.mark.spark
def test_spark_tells_a_mistyped_path_a_wrong_column_and_a_corrupt_batch(spark: SparkSession, tmp_path: Path) -> None:
    datasource.register(spark)
    reader = spark.read.format("kafkalog")
    with pytest.raises(Exception, match=r"NotALogError.*there is no such directory"):
        reader.load(str(tmp_path / "orders-7"))
    directory = write(logs.Log([0], [[logs.data((b"k", b"v"), at=0)]]), tmp_path)
    with pytest.raises(Exception, match=r"there is no column ofset"):
        spark.read.format("kafkalog").schema("ofset long").load(str(directory)).collect()
    path = directory / names.log_file_name(0)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(Exception, match=r"00000000000000000000.log at byte 0: the CRC does not match"):
        reader.load(str(directory)).collect()


def test_a_bad_directory_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="neither a partition directory"):
        read(tmp_path)
