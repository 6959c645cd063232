"""``kafkalog``: a partition's directory as a Spark data source, so that a log can be queried with SQL.

    from sexton.spark import datasource
    datasource.register(spark)
    spark.read.format("kafkalog").load("/var/lib/kafka/data/orders-0").createOrReplaceTempView("orders")

The path is a partition directory, a log directory (all its partitions), or a list of them. The first eight columns are
those of Spark's own Kafka source; the others are about producer, transaction and batch. Options:

    isolation        read_uncommitted (default): everything from the log start on. read_committed: what such a consumer
                     would get, that is no aborted records and nothing at or above the last stable offset (the first
                     offset of an open transaction, or the high watermark where a checkpoint has it)
    includeControl   true: COMMIT and ABORT markers, too
    startingOffset   the first offset to read
    endingOffset     the offset to stop before

What the Python data source API of Spark 4.3 allows, and what not:

- *Filters are pushed down*, comparisons of ``offset`` and equality on ``topic`` and ``partition``, after ``register``.
  Spark fails every query on a source that can do this while ``spark.sql.python.filterPushdown.enabled`` is false, which
  is its default, so ``register`` sets it. ``spark.dataSource.register(KafkaLogDataSource)`` changes no Spark config and
  pushes nothing down; the two offset options work either way.
- *Columns are not pruned*: ``PythonScanBuilder`` does not implement ``SupportsPushDownRequiredColumns``, so a query for
  one column still gets all of them built. Ask for fewer by naming them, ``.schema("offset long, key binary")``, and
  only those are built.
- *Planning is not distributed*: batch headers of all segments are read by one process on the driver's machine (threads,
  kernels without the GIL; gigabytes per second from the page cache). Segments outside a range are not even opened
  unless transactions must be known.
- *Paths must be readable where executors run*, as for any file source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from sexton.compaction.survey import LogSurvey, SegmentSurvey, join_surveys, survey_segment
from sexton.compaction.transactions import MARKER
from sexton.errors import SextonError
from sexton.log.stopped.partition import PartitionLog, Segment, find_partitions, mapped, open_partition
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.spark.arrow_columns import Source, read_runs, to_arrow
from sexton.spark.unpacking import worker_unpacker
from sexton.spark.whole_log import stable_end
from sexton.types import OFFSET_MAX

SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    .add("producerId", LongType())
    .add("producerEpoch", IntegerType())
    .add("sequence", IntegerType())
    .add("isTransactional", BooleanType())
    .add("isControl", BooleanType())
    .add("controlType", StringType())
    .add("transactionOutcome", StringType())
    .add("batchBaseOffset", LongType())
    .add("batchLastOffset", LongType())
    .add("leaderEpoch", IntegerType())
    .add("codec", StringType())
    .add("deleteHorizon", TimestampType())
    .add("segment", StringType())
)
"""The columns of Spark's own Kafka source, then those of producer, transaction and batch. Null where there is no
value."""

TASK_BYTES = 32 * 1024 * 1024
"""Bytes that one task reads. The planner does not know the number of cores, so tasks are many and small."""

PLANNING_THREADS = 8
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class BadOptionError(SextonError):
    """An option or a requested column that this source does not have."""

    exit_code: ClassVar[int] = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query asks for: the options, narrowed by the filters that were pushed down."""

    paths: tuple[str, ...]
    read_committed: bool = False
    includes_control: bool = False
    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    topic: str | None = None
    partition: int | None = None
    needs_transactions: bool = True


class KafkaLogDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    def schema(self) -> StructType:
        # Raises for a mistyped path here, so that the error points at the user's line.
        find_partitions([Path(path) for path in parse_options(self.options).paths])
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaLogReader(parse_options(self.options), schema)


class KafkaLogReader(DataSourceReader):
    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        _check_columns(schema)
        needs_transactions = wanted.read_committed or "transactionOutcome" in schema.names
        self.wanted = replace(wanted, needs_transactions=needs_transactions)
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Returns tasks, each with ranges of about ``TASK_BYTES`` together: a log may have many tiny segments."""
        directories = find_partitions([Path(path) for path in self.wanted.paths])
        tasks: list[list[Source]] = [[]]
        task_bytes = 0
        for source in (source for directory in directories for source in plan_partition(directory, self.wanted)):
            if tasks[-1] and task_bytes + source.size_bytes > TASK_BYTES:
                tasks.append([])
                task_bytes = 0
            tasks[-1].append(source)
            task_bytes += source.size_bytes
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for source in cast("list[Source]", partition.value):
            with mapped(source.path, source.start, source.end) as data:
                for run in read_runs(data, source, worker_unpacker(MAX_UNCOMPRESSED_BATCH_BYTES)):
                    yield to_arrow(run, self.arrow_schema)


class PushingKafkaLogReader(KafkaLogReader):
    """A reader that narrows what it reads by the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Returns the filters that Spark must still apply."""
        left = []
        for condition in filters:
            narrowed = narrow(self.wanted, condition)
            if narrowed is None:
                left.append(condition)
            else:
                self.wanted = narrowed
        return left


class PushingKafkaLogDataSource(KafkaLogDataSource):
    """The same source for sessions in which Python sources may push filters down."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingKafkaLogReader(parse_options(self.options), schema)


def register(spark: SparkSession) -> None:
    """Registers ``kafkalog`` in a session, with filters pushed down."""
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(PushingKafkaLogDataSource)


def narrow(wanted: Wanted, condition: Filter) -> Wanted | None:
    """Narrows `wanted` by one more condition; returns None if the condition cannot be pushed down."""
    attribute = getattr(condition, "attribute", None)
    if attribute not in (("offset",), ("topic",), ("partition",)):
        return None
    if isinstance(condition, IsNotNull):
        return wanted  # none of the three is ever null
    value: Any = getattr(condition, "value", None)
    is_equal = isinstance(condition, EqualTo | EqualNullSafe)
    if not isinstance(value, int | str):
        return None
    if attribute == ("offset",):
        return _narrow_offsets(wanted, condition, int(value), is_equal)
    name = attribute[0]
    if not is_equal or getattr(wanted, name) not in (None, value):
        return None
    return replace(wanted, topic=str(value)) if name == "topic" else replace(wanted, partition=int(value))


def _narrow_offsets(wanted: Wanted, condition: Filter, value: int, is_equal: bool) -> Wanted | None:
    start, end = wanted.from_offset, wanted.to_offset
    if is_equal or isinstance(condition, GreaterThanOrEqual):
        start = max(start, value)
    elif isinstance(condition, GreaterThan):
        start = max(start, value + 1)
    if is_equal or isinstance(condition, LessThanOrEqual):
        end = min(end, value + 1)
    elif isinstance(condition, LessThan):
        end = min(end, value)
    known = is_equal or isinstance(condition, GreaterThanOrEqual | GreaterThan | LessThanOrEqual | LessThan)
    return replace(wanted, from_offset=min(start, OFFSET_MAX), to_offset=end) if known else None


def parse_options(options: MutableMapping[str, str]) -> Wanted:
    """Parses options as Spark passes them: texts, with names in any case."""
    given = {name.lower(): value for name, value in options.items()}
    paths = json.loads(given.pop("paths", "[]"))
    if "path" in given:
        paths = [given.pop("path"), *paths]
    if not paths:
        raise BadOptionError("no path was given", "kafkalog", "Pass a partition directory to load(), such as orders-0")
    isolation = given.pop("isolation", "read_uncommitted").lower()
    if isolation not in ("read_committed", "read_uncommitted"):
        raise BadOptionError(
            f"isolation={isolation!r} is unknown", "kafkalog", "Use read_committed or read_uncommitted"
        )
    wanted = Wanted(
        tuple(paths),
        isolation == "read_committed",
        _truth(given.pop("includecontrol", "false")),
        _offset("startingOffset", given.pop("startingoffset", "0")),
        _offset("endingOffset", given.pop("endingoffset", str(OFFSET_MAX))),
    )
    unknown = sorted(name for name in given if not name.startswith("__"))
    if unknown:
        raise BadOptionError(
            f"the option {unknown[0]} is unknown",
            "kafkalog",
            "Options are isolation, includeControl, startingOffset and endingOffset",
        )
    return wanted


def plan_partition(directory: Path, wanted: Wanted) -> Iterator[Source]:
    """Yields the ranges of a partition that tasks read, without those that an offset range or a filter excludes."""
    log = open_partition(directory)
    if wanted.topic not in (None, log.topic) or wanted.partition not in (None, log.partition):
        return
    # Records below the log start are deleted, whether or not their file is gone yet.
    wanted = replace(wanted, from_offset=max(wanted.from_offset, log.log_start_offset))
    in_range = list(_segments_in_range(log, wanted))
    if not in_range:
        return
    survey = _survey(log, log.segments if wanted.needs_transactions else in_range)
    end = wanted.to_offset
    if wanted.read_committed:
        end = min(end, stable_end(log, survey))
    files = {file.base_offset: file for file in in_range}
    markers = survey.events.markers if wanted.needs_transactions else np.zeros(0, dtype=MARKER)
    for segment in survey.segments:
        if segment.base_offset in files:
            yield from _cut(log, files[segment.base_offset], segment, replace(wanted, to_offset=end), markers)


def _segments_in_range(log: PartitionLog, wanted: Wanted) -> Iterator[Segment]:
    ends = [segment.base_offset for segment in log.segments[1:]]
    for segment, end in zip(log.segments, [*ends, OFFSET_MAX], strict=True):
        if segment.base_offset < wanted.to_offset and end > wanted.from_offset:
            yield segment


def _survey(log: PartitionLog, segments: Iterable[Segment]) -> LogSurvey:
    with ThreadPoolExecutor(PLANNING_THREADS) as threads:
        surveys = list(threads.map(_survey_file, segments))
    return join_surveys(surveys, str(log.directory))


def _survey_file(segment: Segment) -> SegmentSurvey:
    with mapped(segment.path) as data:
        return survey_segment(data, segment.base_offset, str(segment.path))


def _cut(
    log: PartitionLog,
    file: Segment,
    segment: SegmentSurvey,
    wanted: Wanted,
    markers: npt.NDArray[np.void],
) -> Iterator[Source]:
    """Cuts a segment into ranges of about ``TASK_BYTES``; it may be cut at grains."""
    make = partial(
        Source,
        path=str(file.path),
        segment=file.path.name,
        topic=log.topic,
        partition=log.partition,
        from_offset=wanted.from_offset,
        to_offset=wanted.to_offset,
        includes_control=wanted.includes_control,
        includes_aborted=not wanted.read_committed,
    )
    starts = segment.grains["position"]
    bounds = [*np.flatnonzero(np.diff(starts // TASK_BYTES, prepend=-1)), len(starts)]
    for first, last in pairwise(bounds):
        grain = segment.grains[first]
        is_end = last == len(starts)
        last_offset = segment.last_offset if is_end else int(segment.grains["previous_offset"][last])
        if last_offset < wanted.from_offset or grain["base_offset"] >= wanted.to_offset:
            continue
        yield make(
            start=int(grain["position"]),
            end=segment.size_bytes if is_end else int(starts[last]),
            previous_offset=int(grain["previous_offset"]),
            markers=_relevant(markers, int(grain["base_offset"]), last_offset),
        )


def _relevant(markers: npt.NDArray[np.void], first_offset: int, last_offset: int) -> npt.NDArray[np.void]:
    """Returns the markers inside a range, and each producer's first one after it: no other can end its transactions."""
    inside = markers[(markers["offset"] >= first_offset) & (markers["offset"] <= last_offset)]
    after = markers[markers["offset"] > last_offset]
    _, first = np.unique(after["producer_id"], return_index=True)
    return np.concatenate([inside, after[first]])


def _check_columns(schema: StructType) -> None:
    offered = {field.name: field.dataType for field in SCHEMA.fields}
    for field in schema.fields:
        if offered.get(field.name) != field.dataType:
            raise BadOptionError(
                f"there is no column {field.name} of type {field.dataType.simpleString()}",
                "kafkalog",
                "Leave .schema() out for all columns, or choose among: "
                + ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in SCHEMA.fields),
            )


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadOptionError(f"includeControl={text!r} is unknown", "kafkalog", "Use true or false")
    return text.lower() == "true"


def _offset(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) > OFFSET_MAX:
        raise BadOptionError(f"{name}={text!r} is not an offset", "kafkalog", "Use a number from 0 on")
    return int(text)
