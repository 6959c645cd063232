"""``kafkalog`` on cloud topics: SQL on what the store has, without a broker.

    from sexton.compactor.cloud import kafkalog
    kafkalog.register(spark)
    source = spark.read.format("kafkalog").option("metastore", "sqlite:///…").option("store", "file:///…/objects")
    source.load("cloud:orders").createOrReplaceTempView("orders")           # a topic, by its metastore
    spark.read.format("kafkalog").load("file:///…/objects/…/l1/ab/UUID")    # an object, or all below a prefix

Columns and options are those of `sexton.spark.datasource`, which this source also is for paths of directories. Of a
topic, each partition is read as of one moment, with a pin: nothing that the query was planned on is deleted for
`pinRounds` rounds of the collector (60, an hour by default), however long it takes and whatever is compacted meanwhile.

With ``isolation=read_committed`` rows are those of such a consumer: L1 is settled, and for L0 the plan carries the
metastore's list of aborted transactions, and ends at the last stable offset. Filters on partition and offset choose
extents; a lower bound on ``timestamp`` leaves out extents that are older. Objects without a metastore are read as they
are: of L0 nobody knows there what was aborted, so read_committed is refused.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
)
from pyspark.sql.types import StructType

from sexton.adapters.metastore import open_metastore
from sexton.adapters.objects.blocking import BlockingStore
from sexton.adapters.objects.named import find_objects, read_footer
from sexton.compaction.leveling import Aborted, aborted_index, is_aborted
from sexton.compaction.transactions import MARKER
from sexton.ports.cloud import AbortedRow, CloudPartitionRow, Extent, Level
from sexton.ports.metastore import Metastore
from sexton.ports.object_names import ObjectName
from sexton.records.batch import ControlType
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import scan_whole
from sexton.records.objects import Level as ObjectLevel
from sexton.spark.arrow_columns import Source, read_runs, to_arrow
from sexton.spark.datasource import (
    PUSHDOWN_SETTING,
    SCHEMA,
    TASK_BYTES,
    BadOptionError,
    PushingKafkaLogDataSource,
    PushingKafkaLogReader,
    Wanted,
    parse_options,
)
from sexton.spark.unpacking import worker_unpacker
from sexton.types import OFFSET_MAX

CLOUD: Final = "cloud:"
PAGE: Final = 1_000
ATTEMPTS_MAX: Final = 20
"""To read the pages of a partition between two compactions."""
PIN_ROUNDS: Final = 60
NO_MARKERS: Final = np.zeros(0, dtype=MARKER)


@dataclass(frozen=True, slots=True)
class Place:
    """Where topics are: both are empty for objects that are named themselves."""

    metastore_url: str = ""
    store_url: str = ""
    pin_rounds: int = PIN_ROUNDS


@dataclass(frozen=True, slots=True)
class CloudSource:
    """A run in an object, or inline, and what is known of its transactions."""

    source: Source
    store: BlockingStore
    key: str
    position: int
    inline: bytes | None
    aborted: tuple[Aborted, ...]
    decided_below: int
    """Transactional batches below it were committed, unless they are among the aborted."""


class CloudKafkaLogDataSource(PushingKafkaLogDataSource):
    def schema(self) -> StructType:
        place, wanted = _parse(self.options)
        return SCHEMA if _is_cloud(wanted, place) else super().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        place, wanted = _parse(self.options)
        return CloudReader(place, wanted, schema) if _is_cloud(wanted, place) else super().reader(schema)


def register(spark: SparkSession) -> None:
    """Registers ``kafkalog`` in a session, for directories, cloud topics and objects, with filters pushed down."""
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(CloudKafkaLogDataSource)


def _parse(options: Any) -> tuple[Place, Wanted]:
    given = {name.lower(): value for name, value in options.items()}
    rounds = given.pop("pinrounds", str(PIN_ROUNDS))
    if not rounds.isdecimal() or int(rounds) < 1:
        raise BadOptionError(f"pinRounds={rounds!r} is no number of rounds", "kafkalog", "Use a number from 1 on")
    place = Place(given.pop("metastore", ""), given.pop("store", ""), int(rounds))
    return place, parse_options(given)


def _is_cloud(wanted: Wanted, place: Place) -> bool:
    """Whether the paths are topics or objects in a store. Raises BadOptionError if they are not all of a kind."""
    topics = [path.startswith(CLOUD) for path in wanted.paths]
    objects = ["://" in path for path in wanted.paths]
    if not any(topics) and not any(objects):
        return False
    if not all(topics) and not all(objects):
        raise BadOptionError("paths of different kinds", "kafkalog", "Load cloud topics, objects and directories apart")
    if all(topics) and not (place.metastore_url and place.store_url):
        raise BadOptionError(
            "a cloud topic needs the options metastore and store", "kafkalog", "Give the cluster's URLs of both"
        )
    return True


class CloudReader(PushingKafkaLogReader):
    def __init__(self, place: Place, wanted: Wanted, schema: StructType) -> None:
        super().__init__(wanted, schema)
        self.place = place
        self.from_ms = -1
        """Older records are not needed."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Times only choose extents: Spark still compares each record's."""
        for condition in filters:
            self._narrow_times(condition)
        return super().pushFilters(filters)

    def _narrow_times(self, condition: Filter) -> None:
        value = getattr(condition, "value", None)
        if getattr(condition, "attribute", None) != ("timestamp",) or not isinstance(value, datetime):
            return
        time_ms = int(value.timestamp() * 1000)
        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.from_ms = max(self.from_ms, time_ms)

    def partitions(self) -> list[InputPartition]:
        if self.wanted.paths[0].startswith(CLOUD):
            sources = asyncio.run(self._plan_topics())
        else:
            sources = [one for path in self.wanted.paths for one in plan_objects(path, self.wanted)]
        tasks: list[list[CloudSource]] = [[]]
        task_bytes = 0
        for one in sources:
            if tasks[-1] and task_bytes + one.source.size_bytes > TASK_BYTES:
                tasks.append([])
                task_bytes = 0
            tasks[-1].append(one)
            task_bytes += one.source.size_bytes
        return [InputPartition(task) for task in tasks]

    async def _plan_topics(self) -> list[CloudSource]:
        metastore = open_metastore(self.place.metastore_url)
        try:
            return await self.plan(metastore)
        finally:
            await metastore.close()

    async def plan(self, metastore: Metastore) -> list[CloudSource]:
        names = [path.removeprefix(CLOUD) for path in self.wanted.paths]
        return [one for name in names for one in await self._plan_topic(metastore, name)]

    async def _plan_topic(self, metastore: Metastore, name: str) -> list[CloudSource]:
        """Pinned before anything is read: what is planned on stays."""
        cluster_id = await metastore.find_cluster()
        await metastore.pin(uuid.uuid4(), "kafkalog", f"a query of {name}", self.place.pin_rounds)
        known = await metastore.read_changes(0)
        topic = next((one for one in known.topics if one.name == name), None)
        placed = [] if topic is None else [row for row in known.partitions if row.topic_id == topic.topic_id]
        in_cloud = {row.partition for row in placed if row.is_cloud}
        if topic is None or not in_cloud:
            raise BadOptionError(f"there is no cloud topic {name}", "kafkalog", "`sexton cloud status` lists them")
        if local := sorted(row.partition for row in placed if not row.is_cloud):
            raise BadOptionError(
                f"{name} is being moved to the store: partitions {local} are not there yet",
                "kafkalog",
                "Try again later. `sexton cloud status` shows how far it is",
            )
        rows = [row for row in await metastore.read_cloud_partitions() if row.topic_id == topic.topic_id]
        store = BlockingStore(self.place.store_url)
        found: list[CloudSource] = []
        if self.wanted.topic not in (None, name):
            return found
        for row in rows:
            if self.wanted.partition in (None, row.partition):
                snapshot = await read_snapshot(metastore, row)
                found += self._sources(name, snapshot, store, cluster_id)
        return found

    def _sources(
        self, topic: str, snapshot: Snapshot, store: BlockingStore, cluster_id: uuid.UUID
    ) -> Iterator[CloudSource]:
        row, wanted = snapshot.row, self.wanted
        stable = max(row.stable_offset, row.start_offset)
        start = max(wanted.from_offset, row.start_offset)
        end = min(wanted.to_offset, stable if wanted.read_committed else row.end_offset)
        aborted = tuple((int(one.producer_id), one.first_offset, one.marker_offset) for one in snapshot.aborted)
        for extent in snapshot.extents:
            if extent.end_offset <= start or extent.base_offset >= end:
                continue
            if extent.max_timestamp_ms < self.from_ms or (extent.level is Level.L0 and extent.inline and self._skips):
                continue
            key = (
                ""
                if extent.object_id is None
                else ObjectName(cluster_id, ObjectLevel(int(extent.level)), extent.object_id).key
            )
            source = _source(wanted, topic, row.partition, extent.base_offset, extent.size_bytes, key, start, end)
            is_l0 = extent.level is Level.L0
            yield CloudSource(
                source=source,
                store=store,
                key=key,
                position=extent.position,
                inline=extent.inline,
                aborted=aborted if is_l0 else (),
                decided_below=stable if is_l0 else 0,
            )

    @property
    def _skips(self) -> bool:
        """Inline extents have markers alone."""
        return not self.wanted.includes_control

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for one in cast("list[CloudSource]", partition.value):
            data = np.frombuffer(_bytes_of(one), dtype=np.uint8)
            source = one.source
            if one.decided_below and (self.wanted.needs_transactions or not source.includes_aborted):
                source = replace(source, markers=_outcomes(data, one))
            for run in read_runs(data, source, worker_unpacker(MAX_UNCOMPRESSED_BATCH_BYTES)):
                yield to_arrow(run, self.arrow_schema)


def _bytes_of(one: CloudSource) -> Any:
    return one.inline if one.inline is not None else one.store.read(one.key, one.position, one.source.size_bytes)


def _outcomes(data: Bytes, one: CloudSource) -> npt.NDArray[np.void]:
    """As if each transactional batch were followed by its own marker: the real one may lie anywhere."""
    source = one.source
    table = scan_whole(data, 0, len(data), source.path, check_crc=True, previous_offset=source.previous_offset)
    attributes = table["attributes"]
    decided = ((attributes & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL) & (table["last_offset"] < one.decided_below)
    gone = is_aborted(table, aborted_index(one.aborted))
    markers = np.zeros(int(decided.sum()), dtype=MARKER)
    markers["producer_id"] = table["producer_id"][decided]
    markers["offset"] = table["last_offset"][decided]
    markers["first_data_offset"] = table["base_offset"][decided]
    markers["control_type"] = np.where(gone[decided], ControlType.ABORT, ControlType.COMMIT)
    return markers


def _source(
    wanted: Wanted, topic: str, partition: int, base_offset: int, size_bytes: int, key: str, start: int, end: int
) -> Source:
    return Source(
        path=key or "inline",
        segment=key.rpartition("/")[2],
        topic=topic,
        partition=partition,
        start=0,
        end=size_bytes,
        previous_offset=base_offset - 1,
        from_offset=start,
        to_offset=end,
        includes_control=wanted.includes_control,
        includes_aborted=not wanted.read_committed,
        markers=NO_MARKERS,
    )


# One moment of a partition


@dataclass(frozen=True, slots=True)
class Snapshot:
    row: CloudPartitionRow
    extents: Sequence[Extent]
    aborted: Sequence[AbortedRow]


async def read_snapshot(metastore: Metastore, row: CloudPartitionRow) -> Snapshot:
    """All extents as of one moment. What moved between two pages is read again from the start."""
    key = row.topic_id, row.partition
    for _ in range(ATTEMPTS_MAX):
        first = await metastore.read_extents(key, 0, PAGE)
        if first is None:
            return Snapshot(row, [], [])
        extents, aborted = list(first.extents), {one.marker_offset: one for one in first.aborted}
        page = first
        while len(page.extents) == PAGE and _stands(first.row, page.row):
            following = await metastore.read_extents(key, extents[-1].end_offset, PAGE)
            if following is None:
                return Snapshot(row, [], [])
            page = following
            extents += page.extents
            aborted |= {one.marker_offset: one for one in page.aborted}
        if _stands(first.row, page.row):
            return Snapshot(first.row, extents, list(aborted.values()))
    raise BadOptionError("the partition is compacted again and again", f"partition {row.partition}", "Try again")


def _stands(before: CloudPartitionRow, now: CloudPartitionRow) -> bool:
    names = ("leveled_offset", "compaction_epoch", "start_offset")
    return all(getattr(before, name) == getattr(now, name) for name in names)


# Objects by themselves


def plan_objects(url: str, wanted: Wanted) -> Iterator[CloudSource]:
    """The runs of an object, or of all objects below a prefix, by their footers."""
    for store, key in find_objects(url):
        footer = read_footer(store, key)
        if wanted.read_committed and footer.level is ObjectLevel.L0:
            raise BadOptionError(
                "an object of L0 does not say what was aborted", f"{store.place}/{key}", "Load cloud:TOPIC instead"
            )
        for run in footer.runs:
            if wanted.partition not in (None, run.partition) or wanted.topic not in (None, str(run.topic_id)):
                continue
            if run.end_offset <= wanted.from_offset or run.base_offset >= wanted.to_offset:
                continue
            source = _source(
                wanted,
                str(run.topic_id),
                run.partition,
                run.base_offset,
                run.size_bytes,
                key,
                wanted.from_offset,
                min(wanted.to_offset, OFFSET_MAX),
            )
            yield CloudSource(
                source=source, store=store, key=key, position=run.position, inline=None, aborted=(), decided_below=0
            )
