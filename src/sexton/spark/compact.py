"""Compaction of many partitions in one Spark job.

    survey    one task per segment        batch headers only: transactions, producers, where to cut
    index     one task per chunk          each key's last offset in the chunk, packed by bucket
    (filter   one task per bucket group   only if there is a clean section: which keys the dirty section has)
    (index    the clean chunks            only keys that pass the filter, so that little of them is shuffled)
    reduce    one task per bucket group   which records survive
    rewrite   one task per chunk          writes survivors into part files
    assemble  one task per new segment    joins parts and unchanged ranges into segments with indexes
    commit    the driver                  one atomic swap per new segment, lowest first; then the cleaner's checkpoint

Nothing is written in place. A failure before a partition's commit leaves that partition as it was, and the others go
on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from sexton.compaction import chunking
from sexton.compaction.chunking import Chunk, Output, PartitionWork, Rewritten
from sexton.compaction.columns import Tally
from sexton.compaction.fates import Fate
from sexton.compaction.kernels.newest import FALSE_POSITIVES_PER
from sexton.compaction.survey import LogSurvey, SegmentSurvey, join_surveys, live_producers, survey_segment
from sexton.compaction.terms import Terms
from sexton.compaction.transactions import for_tasks
from sexton.errors import SextonError
from sexton.log.stopped import swap
from sexton.log.stopped.partition import PartitionLog, write_cleaner_offset
from sexton.records import names
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.settings.topic import TopicConfig
from sexton.spark import passes, rewrite_pass, transaction_index
from sexton.spark.passes import Progress
from sexton.spark.rewrite_pass import ChunkResult, Indexes, SliceResult
from sexton.spark.storage import Folder, Storage, disk_failure, failure_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One partition to compact, and the terms of its compaction."""

    log: PartitionLog
    survey: LogSurvey
    config: TopicConfig
    terms: Terms
    first_dirty_offset: int
    storage: Storage | None = None
    """Access to its bytes, and to the place for new segments, if a broker owns the log: it makes the indexes itself.
    None means the log's own directory, where the indexes are made, too."""
    producers: npt.NDArray[np.void] | None = None
    """The live producers, if the broker supplied them; otherwise they are derived from the log."""

    @property
    def files(self) -> Storage:
        return self.storage or self.folder

    @property
    def folder(self) -> Folder:
        return Folder(str(self.log.directory), like=str(self.log.segments[0].path))


@dataclass(frozen=True, slots=True)
class Staged:
    """New segments that wait for a commit by the log's owner. Empty if the report has a failure."""

    report: Report
    outputs: tuple[Output, ...]


@dataclass(slots=True)
class Report:
    """What a compaction did to a partition, or would do."""

    name: str
    directory: str
    first_dirty_offset: int = 0
    bound: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    is_changed: bool = False
    mtro: int = 0
    mxro: int = 0
    tally: Tally = field(default_factory=Tally)
    failure: SextonError | None = None
    nothing_to_do: str = ""
    assumptions: tuple[str, ...] = ()
    """What had to be assumed because the topic's configs are unknown."""

    def after(self, earlier: Report) -> Report:
        """Returns this report as the continuation of an earlier round: it starts where that one started."""
        if earlier.bytes_before == 0:
            return self
        tally = Tally({fate: count for fate, count in earlier.tally.counts.items() if not Fate(fate).stays})
        tally.merge(self.tally)
        return replace(
            self,
            first_dirty_offset=earlier.first_dirty_offset,
            bytes_before=earlier.bytes_before,
            segments_before=earlier.segments_before,
            is_changed=self.is_changed or earlier.is_changed,
            tally=tally,
        )


def survey_logs(
    context: SparkContext, logs: Sequence[PartitionLog], storages: Sequence[Storage] | None = None
) -> list[LogSurvey | SextonError]:
    """Returns each log's survey, or the error."""
    places = storages or [Folder(str(log.directory)) for log in logs]
    tasks = [
        (index, places[index], str(segment.path), segment.base_offset, segment.size_bytes)
        for index, log in enumerate(logs)
        for segment in log.segments
    ]

    def run(task: tuple[int, Storage, str, int, int]) -> tuple[int, SegmentSurvey | SextonError]:
        """Reads no further than the segment's end when the log was opened: a broker may append to it."""
        index, storage, path, base_offset, size_bytes = task
        try:
            with storage.reading(path, 0, size_bytes) as data:
                return index, survey_segment(data[:size_bytes], base_offset, path)
        except Exception as error:
            return index, failure_of(error, path)

    slices = min(len(tasks), 4 * context.defaultParallelism) or 1
    found: list[list[SegmentSurvey]] = [[] for _ in logs]
    failures: dict[int, SextonError] = {}
    for index, result in context.parallelize(tasks, slices).map(run).collect():
        if isinstance(result, SextonError):
            failures.setdefault(index, result)
        else:
            found[index].append(result)
    return [
        failures[index] if index in failures else _joined(segments, str(log.directory))
        for index, (log, segments) in enumerate(zip(logs, found, strict=True))
    ]


def compact(
    context: SparkContext,
    requests: Sequence[Request],
    *,
    dry_run: bool = False,
    max_batch_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES,
    progress: Progress = lambda step, tasks: None,
) -> list[Report]:
    """Runs one pass over all requested partitions, in one job. Returns the reports in the order of the requests."""
    reports = [_empty_report(request) for request in requests]
    works, chunks = _plan(requests, reports, context.defaultParallelism, max_batch_bytes)
    if not chunks:
        return reports
    try:
        outputs = _stage(context, requests, works, chunks, reports, dry_run, progress)
        if not dry_run:
            for request, new, report in zip(requests, outputs, reports, strict=True):
                _commit(request, new, report)
    finally:
        if not dry_run:
            for request, report in zip(requests, reports, strict=True):
                clear_staging(request, report)
    return reports


def stage(
    context: SparkContext,
    requests: Sequence[Request],
    *,
    max_batch_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES,
    progress: Progress = lambda step, tasks: None,
) -> list[Staged]:
    """Does the same without the commit: a running broker owns these logs, and each request has a directory of its
    own."""
    reports = [_empty_report(request) for request in requests]
    works, chunks = _plan(requests, reports, context.defaultParallelism, max_batch_bytes)
    if not chunks:
        return [Staged(report, ()) for report in reports]
    outputs = _stage(context, requests, works, chunks, reports, False, progress)
    return [
        Staged(report, () if report.failure is not None else tuple(one for one in new if not one.is_unchanged))
        for new, report in zip(outputs, reports, strict=True)
    ]


def _stage(
    context: SparkContext,
    requests: Sequence[Request],
    works: Mapping[int, PartitionWork],
    chunks: Sequence[Chunk],
    reports: Sequence[Report],
    dry_run: bool,
    progress: Progress,
) -> list[list[Output]]:
    """Does everything that changes no log."""
    results = passes.run(context, works, [request.files for request in requests], chunks, dry_run, progress)
    outputs = _gather(requests, reports, chunks, results)
    if not dry_run:
        assemble(context, requests, works, outputs, reports, progress)
        for request in requests:
            request.files.remove_parts()
    return outputs


def clear_staging(request: Request, report: Report) -> None:
    """Removes staged files, however the job ended; a commit that failed half way is completed or undone."""
    try:
        swap.recover(request.log.directory)
    except SextonError as error:
        report.failure = report.failure or error


def _work(index: int, request: Request, max_batch_bytes: int) -> PartitionWork:
    terms, survey = request.terms, request.survey
    terms.check_invariants()
    below = [s for s in survey.segments if s.base_offset < terms.bound]
    dirty_count = sum(
        segment.record_count
        for segment, following in zip(survey.segments, survey.segments[1:], strict=False)
        if segment.base_offset < terms.bound and following.base_offset > request.first_dirty_offset
    )
    clean_count = sum(segment.record_count for segment in below) - dirty_count
    return PartitionWork(
        partition=index,
        name=request.log.name,
        directory=str(request.log.directory),
        terms=terms,
        segment_ends=np.array([s.last_offset for s in below if s.batch_count], dtype=np.int64),
        producers=_live_producers(request),
        markers=for_tasks(survey.events.markers),
        bucket_count=chunking.bucket_count(dirty_count + clean_count // FALSE_POSITIVES_PER),
        max_batch_bytes=max_batch_bytes,
        segment_sizes=np.array([s.size_bytes for s in below], dtype=np.int64),
    )


def _live_producers(request: Request) -> npt.NDArray[np.void]:
    if request.producers is not None:
        return request.producers
    expiration_ms = request.config.producer_id_expiration_ms
    return live_producers(request.survey.producers, request.terms.now_ms, expiration_ms)


def _plan(
    requests: Sequence[Request], reports: Sequence[Report], parallelism: int, max_batch_bytes: int
) -> tuple[dict[int, PartitionWork], list[Chunk]]:
    """Returns what tasks must know of each partition, and its chunks. A partition for which that fails has no chunk:
    its report has the failure."""
    sizes = [
        segment.size_bytes
        for request in requests
        for segment in request.survey.segments
        if segment.base_offset < request.terms.bound
    ]
    target_bytes = chunking.chunk_bytes(sizes, parallelism)
    works: dict[int, PartitionWork] = {}
    chunks: list[Chunk] = []
    for index, (request, report) in enumerate(zip(requests, reports, strict=True)):
        paths = [str(segment.path) for segment in request.log.segments]
        try:
            work = _work(index, request, max_batch_bytes)
            pieces = chunking.cut(request.survey, paths, request.terms.bound, request.first_dirty_offset, target_bytes)
        except Exception as error:
            report.failure = failure_of(error, str(request.log.directory))
            continue
        works[index] = work
        chunks += [
            Chunk(len(chunks) + position, index, is_dirty, slices) for position, (is_dirty, slices) in enumerate(pieces)
        ]
    return works, chunks


def _gather(
    requests: Sequence[Request],
    reports: Sequence[Report],
    chunks: Sequence[Chunk],
    results: Sequence[ChunkResult],
) -> list[list[Output]]:
    """Returns each partition's new segments, from its chunks' results."""
    outputs: list[list[Output]] = [[] for _ in requests]
    by_partition: dict[int, list[ChunkResult]] = {}
    for result in results:
        by_partition.setdefault(result.partition, []).append(result)
    for index, (request, report) in enumerate(zip(requests, reports, strict=True)):
        mine = by_partition.get(index, [])
        for result in mine:
            report.tally.merge(result.tally)
            report.failure = report.failure or result.failure
        if report.failure is not None or not mine:
            continue
        try:
            outputs[index] = chunking.group_outputs(rewritten(request, mine), request.config.segment_bytes)
        except Exception as error:
            report.failure = failure_of(error, str(request.log.directory))
            continue
        report.is_changed = any(not output.is_unchanged for output in outputs[index])
        report.bytes_after = sum(output.size_bytes for output in outputs[index])
        report.segments_after -= sum(len(output.new.old_base_offsets) - 1 for output in outputs[index])
    return outputs


def rewritten(request: Request, results: Sequence[ChunkResult]) -> list[Rewritten]:
    """Returns what is left of each old segment."""
    by_segment: dict[int, list[SliceResult]] = {}
    for result in results:
        for piece in result.slices:
            by_segment.setdefault(piece.segment, []).append(piece)
    left = []
    for number, segment in enumerate(request.survey.segments):
        if segment.base_offset >= request.terms.bound:
            break
        slices = by_segment.get(number, [])
        left.append(
            Rewritten(
                base_offset=segment.base_offset,
                last_offset=max((piece.last_offset for piece in slices), default=-1),
                is_unchanged=all(piece.is_unchanged for piece in slices),
                extents=tuple(extent for piece in slices for extent in piece.extents),
                size_bytes=sum(piece.size_bytes for piece in slices),
                old_size_bytes=segment.size_bytes,
            )
        )
    return left


def assemble(
    context: SparkContext,
    requests: Sequence[Request],
    works: Mapping[int, PartitionWork],
    outputs: Sequence[Sequence[Output]],
    reports: Sequence[Report],
    progress: Progress,
) -> None:
    tasks = []
    for index, request in enumerate(requests):
        changed = [output for output in outputs[index] if not output.is_unchanged]
        if reports[index].failure is not None or not changed:
            continue
        try:
            indexes = _indexes(request, works[index], outputs[index])
        except Exception as error:
            reports[index].failure = failure_of(error, str(request.log.directory))
            continue
        tasks += [(index, output, request.files, indexes.get(output.new.base_offset)) for output in changed]
    if not tasks:
        return
    directories = [str(request.log.directory) for request in requests]

    def run(task: tuple[int, Output, Storage, Indexes | None]) -> tuple[int, SextonError | None]:
        index, output, storage, indexes = task
        try:
            rewrite_pass.assemble(output, storage, indexes)
        except Exception as error:
            return index, failure_of(error, directories[index])
        return index, None

    count = chunking.task_count([output.size_bytes for _, output, _, _ in tasks], context.defaultParallelism)
    progress("assemble", count)
    tasks.sort(key=lambda task: -task[1].size_bytes)
    dealt = [task for first in range(count) for task in tasks[first::count]]  # each task gets large and small ones
    for index, failure in context.parallelize(dealt, count).map(run).collect():
        reports[index].failure = reports[index].failure or failure


def _indexes(request: Request, work: PartitionWork, outputs: Sequence[Output]) -> dict[int, Indexes]:
    """By base offset of the new segment. None for a broker's log."""
    if request.storage is not None:
        return {}
    folder, interval_bytes = request.folder, request.config.index_interval_bytes
    transactions = transaction_index.of_outputs(request.log, work, request.survey.events, outputs)
    return {base_offset: Indexes(folder, interval_bytes, content) for base_offset, content in transactions.items()}


def _commit(request: Request, outputs: Sequence[Output], report: Report) -> None:
    """Swaps the new segments in, each in one step, lowest first; then moves the checkpoint (rule 7).

    Whenever the process dies, the log is whole: a value is removed before its tombstone, a transaction's records before
    its marker, so every state between two swaps folds to the same. Why not one swap for all: docs/decisions/0004.
    """
    if report.failure is not None:
        report.is_changed = False
        return
    directory = request.log.directory
    try:
        for output in outputs:
            if not output.is_unchanged:
                _keep_modification_time(request, output)
                swap.commit(directory, [output.new])
        write_cleaner_offset(request.log, max(request.terms.bound, request.first_dirty_offset))
    except SextonError as error:
        report.failure = error
    except OSError as error:
        report.failure = disk_failure(error, str(directory))


def _keep_modification_time(request: Request, output: Output) -> None:
    """As in Kafka: where records have no timestamps, the file's modification time counts as their age."""
    last = output.new.old_base_offsets[-1]
    modified_ns = next(s.modified_ns for s in request.log.segments if s.base_offset == last)
    path = request.log.directory / names.log_file_name(output.new.base_offset, names.CLEANED_SUFFIX)
    os.utime(path, ns=(time.time_ns(), modified_ns))


def _empty_report(request: Request) -> Report:
    below = [s for s in request.survey.segments if s.base_offset < request.terms.bound]
    size = sum(s.size_bytes for s in below)
    return Report(
        name=request.log.name,
        directory=str(request.log.directory),
        first_dirty_offset=request.first_dirty_offset,
        bound=request.terms.bound,
        bytes_before=size,
        bytes_after=size,
        segments_before=len(below),
        segments_after=len(below),
        mtro=request.terms.mtro,
        mxro=request.terms.mxro,
    )


def _joined(segments: list[SegmentSurvey], place: str) -> LogSurvey | SextonError:
    try:
        return join_surveys(sorted(segments, key=lambda segment: segment.base_offset), place)
    except SextonError as error:
        return error
