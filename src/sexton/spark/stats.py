"""Statistics of partitions: what is in them, how clean they are, and what keeps them from being cleaner.

    survey    one task per segment        batch headers: transactions, sizes, timestamps
    index     one task per chunk          each key's last offset in the chunk (compaction's own pass)
    reduce    one task per bucket group   each key's newest record
    measure   one task per chunk          counts, tombstones and their ages
    dry run   the compaction itself       what it would save

Nothing is locked and nothing is changed, so a broker may be running; what it writes meanwhile may be missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from pyspark import SparkContext

from sexton.compaction import chunking
from sexton.compaction.chunking import Chunk, PartitionWork
from sexton.compaction.columns import Tally
from sexton.compaction.eligibility import Eligibility, cleanable_bound, eligibility_of, first_dirty_offset
from sexton.compaction.fates import Fate
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.compaction.transactions import for_tasks
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.errors import SextonError
from sexton.log.stopped.partition import PartitionLog, open_partition
from sexton.log.stopped.surroundings import Surroundings, is_sextons
from sexton.records.batch import ControlType
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.records.keyhash import random_hash_key
from sexton.settings.topic import TopicConfig
from sexton.spark import index_pass
from sexton.spark.compact import Report, Request, compact
from sexton.spark.offline import summaries
from sexton.spark.passes import Progress
from sexton.spark.stats_pass import Measured, measure_chunk
from sexton.spark.storage import Folder
from sexton.spark.surveyed import SurveyedPartition, survey_partitions
from sexton.spark.whole_log import chunks_below
from sexton.types import NO_OFFSET


@dataclass(frozen=True, slots=True)
class Options:
    now_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)
    """Topic configs that override the cluster's metadata."""
    metadata_dir: Path | None = None
    server_properties: Mapping[str, str] | None = None
    max_batch_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    producer_id: int
    first_offset: int
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Transactions:
    """Markers in the log, how many of them still have records there, and open transactions."""

    committed_count: int
    committed_with_data_count: int
    aborted_count: int
    aborted_with_data_count: int
    aborted_record_count: int
    open: tuple[OpenTransaction, ...]


@dataclass(frozen=True, slots=True)
class LastCleaned:
    """How far the log was cleaned, and the earliest possible time: no file records the time itself."""

    up_to_offset: int
    not_before_ms: int | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Savings:
    """What one run of `sexton compact` would do now."""

    record_count: int
    size_bytes: int
    tally: Tally


@dataclass(slots=True)
class PartitionStats:
    """All statistics of a partition, or the reason why there are none (``failure``)."""

    name: str
    directory: str
    failure: SextonError | None = None
    assumptions: list[str] = field(default_factory=list)
    record_count: int = 0
    """Number of records, without control records."""
    batch_count: int = 0
    segment_count: int = 0
    size_bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int | None = None
    last_stable_offset: int = 0
    watermarks: ReplicaWatermarks | None = None
    """Watermarks of a Sexton broker's replica; None for a Kafka broker's."""
    measured: Measured = field(default_factory=Measured)
    transactions: Transactions | None = None
    eligibility: Eligibility | None = None
    last_cleaned: LastCleaned | None = None
    savings: Savings | None = None
    config: TopicConfig = field(default_factory=TopicConfig)

    @property
    def distinct_key_count(self) -> int:
        """Number of keys of records that are not aborted, including deleted keys whose tombstones are still there."""
        return self.measured.newest_count

    @property
    def tombstone_count(self) -> int:
        """Number of tombstones that are their key's newest record."""
        return sum(span.count for span in self.measured.tombstones.values())


def collect(
    context: SparkContext,
    directories: Sequence[Path],
    options: Options,
    progress: Progress = lambda step, tasks: None,
) -> list[PartitionStats]:
    """Collects statistics of partition directories, in one set of jobs. One that cannot be read does not stop the
    others."""
    log_dirs = frozenset(directory.parent for directory in directories)
    around = Surroundings(log_dirs, options.metadata_dir, options.server_properties)
    partitions = [_Partition(directory, around, options) for directory in directories]
    survey_partitions(context, partitions, progress)
    _measure(context, [p for p in partitions if p.is_live], options, progress)
    _dry_run(context, [p for p in partitions if p.is_live], options, progress)
    return [partition.stats for partition in partitions]


class _Partition(SurveyedPartition):
    def __init__(self, directory: Path, around: Surroundings, options: Options) -> None:
        self.stats = PartitionStats(directory.name, str(directory))
        super().__init__(self.stats)
        try:
            self.log = open_partition(directory)
            known = around.config(directory, options.settings, policy_if_unknown="compact")
            self.stats.config = known.config
            self.stats.assumptions += known.assumptions
            self.stats.watermarks = self.log.watermarks
            if is_sextons(directory) and self.log.watermarks is None:
                self.stats.assumptions.append("its watermarks are missing or damaged: nothing counts as compacted")
        except SextonError as error:
            self.stats.failure = error

    def terms(self, now_ms: int) -> Terms:
        """Returns the terms of the next compaction: a Sexton broker's replica knows how far the others are, a Kafka
        broker's does not."""
        assert self.log is not None, "opened first"
        assert self.stats.eligibility is not None, "described first"
        bound, known = self.stats.eligibility.bound.offset, self.log.watermarks
        terms = Terms(now_ms, bound, self.stats.config.delete_retention_ms)
        if known is None:
            return terms
        return replace(terms, mtro=known.removable.keys, mxro=known.removable.transactions, settle_below=bound)

    def describe(self, now_ms: int) -> None:
        """Fills in what the survey and the checkpoints show, before any record is read."""
        log, survey = self.loaded()
        stats = self.stats
        stats.record_count = sum(segment.record_count for segment in survey.segments)
        stats.batch_count = sum(segment.batch_count for segment in survey.segments)
        stats.segment_count = len(survey.segments)
        stats.size_bytes = sum(segment.size_bytes for segment in survey.segments)
        stats.log_start_offset, stats.log_end_offset = log.log_start_offset, survey.log_end_offset
        stats.high_watermark = log.high_watermark
        if log.high_watermark is None:
            stats.assumptions.append("no checkpoint knows the high watermark: the log's end")
        known = survey.log_end_offset if log.high_watermark is None else min(log.high_watermark, survey.log_end_offset)
        stats.last_stable_offset = survey.last_stable_offset(known)
        first_dirty = first_dirty_offset(log.cleaner_offset, log.log_start_offset, survey.log_end_offset)
        segments = summaries(log, survey)
        bound = cleanable_bound(segments, first_dirty, stats.last_stable_offset, known, now_ms, stats.config)
        stats.eligibility = eligibility_of(segments, first_dirty, bound, now_ms, stats.config)

    def conclude(self, measured: Measured) -> None:
        """Fills in what follows from the records."""
        log, survey = self.loaded()
        self.stats.measured = measured
        self.stats.record_count -= measured.control_count
        self.stats.failure = self.stats.failure or measured.failure
        if measured.failure is None:
            self.stats.transactions = _transactions(survey, measured)
            self.stats.last_cleaned = _last_cleaned(log, survey, measured, self.stats.config)


def _measure(context: SparkContext, live: Sequence[_Partition], options: Options, progress: Progress) -> None:
    for partition in live:
        partition.describe(options.now_ms)
    works = [_work(index, partition, options) for index, partition in enumerate(live)]
    chunks = _chunks(live, context.defaultParallelism)
    merged = [Measured(partition=index) for index in range(len(live))]
    for result in _run(context, live, works, chunks, progress) if chunks else ():
        merged[result.partition].merge(result)
    for partition, measured in zip(live, merged, strict=True):
        partition.conclude(measured)


def _work(index: int, partition: _Partition, options: Options) -> PartitionWork:
    log, survey = partition.loaded()
    terms = partition.terms(options.now_ms)
    return PartitionWork(
        partition=index,
        name=log.name,
        directory=str(log.directory),
        terms=terms if log.watermarks is not None else terms.independent(),
        segment_ends=np.zeros(0, dtype=np.int64),
        producers=survey.producers[:0],
        markers=for_tasks(survey.events.markers),
        bucket_count=chunking.bucket_count(partition.stats.record_count),
        max_batch_bytes=options.max_batch_bytes,
        segment_sizes=np.zeros(0, dtype=np.int64),
    )


def _chunks(live: Sequence[_Partition], parallelism: int) -> list[Chunk]:
    sizes = [segment.size_bytes for partition in live for segment in partition.loaded()[1].segments]
    target_bytes = chunking.chunk_bytes(sizes, parallelism)
    chunks: list[Chunk] = []
    for index, partition in enumerate(live):
        log, survey = partition.loaded()
        chunks += chunks_below(
            log, survey, survey.log_end_offset, target_bytes, partition=index, first_number=len(chunks)
        )
    return chunks


def _run(
    context: SparkContext,
    live: Sequence[_Partition],
    works: Sequence[PartitionWork],
    chunks: Sequence[Chunk],
    progress: Progress,
) -> list[Measured]:
    opened = [partition.loaded()[1].events.open_first_offsets for partition in live]
    shared = context.broadcast((list(works), list(chunks), opened))
    key = random_hash_key()
    bucket_count = sum(work.bucket_count for work in works)

    def index(number: int) -> Iterator[index_pass.BucketRow]:
        all_works, all_chunks, _ = shared.value
        chunk = all_chunks[number]
        work = all_works[chunk.partition]
        return index_pass.index_chunk(chunk, work, Folder(work.directory), key, None)

    def measure(number: int, rows: Iterable[index_pass.ChunkRow]) -> Iterator[Measured]:
        all_works, all_chunks, all_opened = shared.value
        chunk = all_chunks[number]
        payloads = (payload for _, payload in rows)
        yield measure_chunk(chunk, all_works[chunk.partition], payloads, all_opened[chunk.partition])

    progress("index", len(chunks))
    numbers = [chunk.number for chunk in chunks]
    reducers = max(1, min(bucket_count, 4 * context.defaultParallelism))
    indexed = context.parallelize(numbers, len(numbers)).flatMap(index)
    newest = indexed.partitionBy(reducers, _spread_buckets).mapPartitions(index_pass.reduce_buckets)
    progress("measure", len(chunks))
    results = newest.partitionBy(len(chunks), _identity).mapPartitionsWithIndex(measure).collect()
    shared.destroy()
    return sorted(results, key=lambda result: result.chunk)


def _spread_buckets(key: index_pass.BucketKey) -> int:
    return key[0] * 31 + key[1]


def _identity(number: int) -> int:
    return number


def _dry_run(context: SparkContext, live: Sequence[_Partition], options: Options, progress: Progress) -> None:
    asked: list[_Partition] = []
    requests: list[Request] = []
    for partition in live:
        log, survey = partition.loaded()
        found = partition.stats.eligibility
        assert found is not None, "described first"
        partition.stats.savings = Savings(0, 0, Tally())
        terms = partition.terms(options.now_ms)
        first_worth = log.segments[0].base_offset if terms.mtro or terms.mxro else found.first_dirty_offset
        if max(first_worth, log.segments[0].base_offset) < found.bound.offset:
            requests.append(
                Request(
                    log=log,
                    survey=survey,
                    config=partition.stats.config,
                    terms=terms,
                    first_dirty_offset=found.first_dirty_offset,
                )
            )
            asked.append(partition)
    if not requests:
        return
    reports = compact(context, requests, dry_run=True, max_batch_bytes=options.max_batch_bytes, progress=progress)
    for partition, report in zip(asked, reports, strict=True):
        partition.stats.failure = partition.stats.failure or report.failure
        partition.stats.savings = _savings(report)


def _savings(report: Report) -> Savings:
    gone = {fate: count for fate, count in report.tally.counts.items() if not Fate(fate).stays}
    return Savings(sum(gone.values()), max(0, report.bytes_before - report.bytes_after), report.tally)


def _transactions(survey: LogSurvey, measured: Measured) -> Transactions:
    markers = survey.events.markers
    has_data = markers["first_data_offset"] != NO_OFFSET
    committed = markers["control_type"] == ControlType.COMMIT
    opened = sorted(
        zip(survey.events.open_first_offsets.tolist(), survey.events.open_producer_ids.tolist(), strict=True)
    )
    return Transactions(
        committed_count=int(committed.sum()),
        committed_with_data_count=int((committed & has_data).sum()),
        aborted_count=int((~committed).sum()),
        aborted_with_data_count=int((~committed & has_data).sum()),
        aborted_record_count=measured.aborted_count,
        open=tuple(OpenTransaction(producer_id, first, measured.opened_ms.get(first)) for first, producer_id in opened),
    )


def _last_cleaned(log: PartitionLog, survey: LogSurvey, measured: Measured, config: TopicConfig) -> LastCleaned | None:
    """Derived from the traces of a cleaning. None if there are none.

    The checkpoint says how far it went; the newest record below that was written before it. A delete horizon was set
    ``delete.retention.ms`` after a cleaning, if that config is still the same. Without a checkpoint (a copy), the last
    gap in the offsets says how far it went at least.
    """
    traces = measured.traces
    horizon = " and delete horizons" if traces.horizon_max_ms >= 0 else ""
    checkpoint = log.cleaner_offset
    if checkpoint is not None and log.log_start_offset < checkpoint <= survey.log_end_offset:
        below = [segment.max_timestamp_ms for segment in survey.segments if segment.base_offset < checkpoint]
        source = "the cleaner's checkpoint" if log.watermarks is None else "its watermarks"
        not_before_ms = traces.cleaned_not_before_ms(config.delete_retention_ms, *below)
        return LastCleaned(checkpoint, not_before_ms, source + horizon)
    gaps = [
        (after.base_offset, max(s.max_timestamp_ms for s in survey.segments if s.base_offset <= before.base_offset))
        for before, after in pairwise(survey.segments)
        if max(before.last_offset + 1, before.base_offset) < after.base_offset
    ]
    if traces.gapless_from >= 0:
        gaps.append((traces.gapless_from, traces.max_timestamp_before_gap_ms))
    if not gaps:
        return None
    up_to, newest_ms = max(gaps)
    not_before_ms = traces.cleaned_not_before_ms(config.delete_retention_ms, newest_ms)
    return LastCleaned(up_to, not_before_ms, "gaps in the offsets" + horizon)
