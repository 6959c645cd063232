"""Compaction of cloud partitions by the passes of `spark.compact`, over extents as if they were segments.

What differs: nothing is surveyed, for the metastore's rows say all that a survey would; an extent is never divided, so
that what a task writes is the new extent; and a task writes objects, which partitions share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from pyspark import SparkContext

from sexton.adapters.objects.blocking import BlockingStore
from sexton.compaction import chunking, columns
from sexton.compaction.chunking import CHUNK_BYTES_MIN, CHUNK_RECORDS_MAX, Chunk, PartitionWork, Slice
from sexton.compaction.cloud_due import MERGE_BYTES
from sexton.compaction.columns import Tally
from sexton.compaction.fates import Fate
from sexton.compaction.kernels.newest import FALSE_POSITIVES_PER
from sexton.compaction.rules import Action
from sexton.compaction.survey import PRODUCER
from sexton.compaction.transactions import MARKER, TransactionIndex
from sexton.compactor.cloud.object_files import ObjectFiles, ObjectsWriter, ids_of_attempt
from sexton.compactor.cloud.plans import ATTEMPTS_MAX, Compacted, PartitionPlan, Writer, WrittenL1
from sexton.errors import SextonError
from sexton.ports.cloud import ObjectId
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.records.kernels.scan import scan_whole
from sexton.spark import passes, rewrite_pass
from sexton.spark.passes import Decided
from sexton.spark.rewrite_pass import Part
from sexton.spark.storage import Storage, failure_of
from sexton.types import PartitionId

NO_PRODUCERS: Final = np.zeros(0, dtype=PRODUCER)
"""Their state is in the metastore: no batch is kept for it."""

NO_MARKERS: Final = np.zeros(0, dtype=MARKER)
"""L1 is settled (C7)."""


@dataclass(frozen=True, slots=True)
class Prepared:
    works: dict[int, PartitionWork]
    chunks: list[Chunk]
    objects_max: list[int]
    """How many objects each rewriting task may write."""


def prepare(context: SparkContext, plans: Sequence[PartitionPlan], l1_bytes: int, writer: Writer) -> Prepared:
    works: dict[int, PartitionWork] = {}
    chunks: list[Chunk] = []
    total_bytes = sum(plan.size_bytes for plan in plans)
    target_bytes = min(l1_bytes, max(CHUNK_BYTES_MIN, total_bytes // (4 * context.defaultParallelism)))
    for index, plan in enumerate(plans):
        works[index] = _work(index, plan)
        chunks += _chunks(index, plan, target_bytes, len(chunks), writer)
    rewriter_of = passes.rewriters_of(context, chunks)
    sizes = [0] * (rewriter_of[-1] + 1)
    for chunk, rewriter in zip(chunks, rewriter_of, strict=True):
        sizes[rewriter] += chunk.size_bytes
    return Prepared(works, chunks, [size // l1_bytes + 2 for size in sizes])


def _work(index: int, plan: PartitionPlan) -> PartitionWork:
    assert plan.terms is not None
    plan.terms.check_invariants()
    dirty_count = sum(one.records_count for one in plan.extents if one.end_offset > plan.row.cleaned_offset)
    clean_count = sum(one.records_count for one in plan.extents) - dirty_count
    return PartitionWork(
        partition=index,
        name=plan.name,
        directory=plan.name,
        terms=plan.terms,
        segment_ends=np.array([one.end_offset - 1 for one in plan.extents], dtype=np.int64),
        producers=NO_PRODUCERS,
        markers=NO_MARKERS,
        bucket_count=chunking.bucket_count(dirty_count + clean_count // FALSE_POSITIVES_PER),
        max_batch_bytes=MAX_UNCOMPRESSED_BATCH_BYTES,
        segment_sizes=np.array([one.size_bytes for one in plan.extents], dtype=np.int64),
    )


def _chunks(index: int, plan: PartitionPlan, target_bytes: int, first: int, writer: Writer) -> list[Chunk]:
    groups: list[tuple[bool, list[Slice]]] = []
    for number, extent in enumerate(plan.extents):
        piece = Slice(
            path=ObjectFiles.path(extent, writer),
            segment=number,
            start=0,
            end=extent.size_bytes,
            previous_offset=extent.base_offset - 1,
            record_count=extent.records_count,
        )
        is_dirty = extent.end_offset > plan.row.cleaned_offset
        if groups and groups[-1][0] == is_dirty and _has_room(groups[-1][1], piece, target_bytes):
            groups[-1][1].append(piece)
        else:
            groups.append((is_dirty, [piece]))
    return [Chunk(first + number, index, is_dirty, tuple(pieces)) for number, (is_dirty, pieces) in enumerate(groups)]


def _has_room(pieces: Sequence[Slice], piece: Slice, target_bytes: int) -> bool:
    size_bytes = sum(one.size_bytes for one in pieces) + piece.size_bytes
    return size_bytes <= target_bytes and sum(one.record_count for one in pieces) < CHUNK_RECORDS_MAX


def run(
    context: SparkContext,
    plans: Sequence[PartitionPlan],
    prepared: Prepared,
    ids: Sequence[ObjectId],
    store: BlockingStore,
    writer: Writer,
    l1_bytes: int,
) -> list[Compacted]:
    """`ids`: as many as all attempts of all tasks may need (`ids_needed`)."""
    dealt = _deal(prepared, ids)
    ends = [[extent.end_offset for extent in plan.extents] for plan in plans]
    bases = [[extent.base_offset for extent in plan.extents] for plan in plans]
    rewriting = Rewriting(
        store=store,
        writer=writer,
        ids=dealt,
        l1_bytes=l1_bytes,
        keys=[plan.key for plan in plans],
        bases=bases,
        ends=ends,
        epochs=[int(plan.row.compaction_epoch) for plan in plans],
    )
    storages: list[Storage] = [ObjectFiles(store) for _ in plans]
    results = passes.run_with(context, prepared.works, storages, prepared.chunks, rewriting, lambda step, tasks: None)
    made = [Compacted() for _ in plans]
    tallies = [Tally() for _ in plans]
    for result in results:
        one = made[result.partition]
        one.failure = one.failure or result.failure
        tallies[result.partition].merge(result.tally)
    for result in results:
        for written in result.objects:
            for index in {plans_index for plans_index, plan in enumerate(plans) if _is_in(plan.key, written)}:
                made[index].objects.append(written)
    for one, tally in zip(made, tallies, strict=True):
        one.fates = {Fate(fate).label: count for fate, count in tally.counts.items() if count}
    return made


def _is_in(key: PartitionId, written: WrittenL1) -> bool:
    return any((one.topic_id, one.partition) == key for one in written.runs)


def ids_needed(prepared: Prepared) -> int:
    return ATTEMPTS_MAX * sum(prepared.objects_max)


def _deal(prepared: Prepared, ids: Sequence[ObjectId]) -> list[list[list[ObjectId]]]:
    """By task and attempt."""
    left = list(ids)
    dealt: list[list[list[ObjectId]]] = []
    for count in prepared.objects_max:
        dealt.append([[left.pop() for _ in range(count)] for _ in range(ATTEMPTS_MAX)])
    return dealt


@dataclass(frozen=True, slots=True)
class Rewrote:
    """The result of one chunk. The objects of a task come with its first chunk."""

    chunk: int
    partition: int
    tally: Tally = field(default_factory=Tally)
    failure: SextonError | None = None
    objects: tuple[WrittenL1, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What a task does with its chunks: unchanged extents stay, all others go into its objects. Small neighbours become
    one run; so do those that are next to one that changes."""

    store: BlockingStore
    writer: Writer
    ids: list[list[list[ObjectId]]]
    l1_bytes: int
    keys: list[PartitionId]
    bases: list[list[int]]
    ends: list[list[int]]
    epochs: list[int]

    def __call__(self, task: int, decided: Iterator[Decided]) -> Iterator[Rewrote]:
        results: list[Rewrote] = []
        failure: SextonError | None = None
        out: ObjectsWriter | None = None
        try:
            out = ObjectsWriter(self.store, self.writer, ids_of_attempt(self.ids[task]), self.l1_bytes)
            for chunk in decided:
                results.append(self._rewrite(chunk, out))
                out.end()
            objects = tuple(out.finish())
        except Exception as error:
            failure = failure_of(error, self.store.place)
            results += [Rewrote(rest.number, rest.partition) for rest, _, _, _ in decided]
        finally:
            if out is not None:
                out.abort()
        if failure is not None:  # what was written so far is in objects that nobody will refer to
            yield from (replace(one, failure=one.failure or failure) for one in results)
            return
        for number, one in enumerate(results):
            yield replace(one, objects=objects) if number == 0 else one

    def _rewrite(self, decided: Decided, out: ObjectsWriter) -> Rewrote:
        chunk, work, storage, payloads = decided
        try:
            codes, keyless_count = rewrite_pass.verdicts_of(payloads)
        except SextonError as failure:
            return Rewrote(chunk.number, chunk.partition, failure=failure)
        tally = Tally()
        if not chunk.is_dirty and not len(codes):  # nothing in it is dead, nor a tombstone
            tally.add(Fate.NEWEST, chunk.record_count)
        else:
            for index in range(len(chunk.slices)):
                tally.merge(self._rewrite_slice(chunk, index, work, storage, codes, out))
        rewrite_pass.count_keyless(tally, keyless_count, work)
        return Rewrote(chunk.number, chunk.partition, tally)

    def _rewrite_slice(
        self,
        chunk: Chunk,
        index: int,
        work: PartitionWork,
        storage: Storage,
        codes: columns.Longs,
        out: ObjectsWriter,
    ) -> Tally:
        piece, key = chunk.slices[index], self.keys[chunk.partition]
        base = self.bases[chunk.partition][piece.segment]
        end = self.ends[chunk.partition][piece.segment]
        with storage.reading(piece.path, piece.start, piece.end) as data:
            table = scan_whole(
                data, piece.start, piece.end, piece.path, check_crc=True, previous_offset=piece.previous_offset
            )
            facts = columns.facts_of(table, work, TransactionIndex(work.markers, is_sorted=True))
            outcomes, tally = columns.decide(table, work, facts, codes, chunk.is_dirty, piece.segment)
            is_unchanged = bool((outcomes["action"] == Action.COPY).all())
            if is_unchanged and not self._joins(chunk, index, key, base, out):
                out.end()
                return tally
            if not out.continues(key, base):
                out.end()
                out.begin(key, base, epoch=self.epochs[chunk.partition], cleaned_offset=work.terms.bound)
            part = Part(_Sink(out))
            rewrite_pass.write_rows(
                piece, data, table, outcomes, 0, len(table), codes, chunk.is_dirty, part, work.max_batch_bytes
            )
            part.close()
            out.reached(end)
        return tally

    def _joins(self, chunk: Chunk, index: int, key: PartitionId, base: int, out: ObjectsWriter) -> bool:
        """Whether an unchanged extent is written all the same, into one run with its neighbours."""
        if chunk.slices[index].size_bytes >= MERGE_BYTES:
            return False
        following = chunk.slices[index + 1 : index + 2]
        return out.continues(key, base) or any(one.size_bytes < MERGE_BYTES for one in following)


class _Sink:
    """A part file that is the run that is open."""

    path = ""

    def __init__(self, out: ObjectsWriter) -> None:
        self._out = out

    def append(self, position: int, data: memoryview) -> None:
        self._out.add(data)

    def close(self) -> None:
        """Does nothing: the run goes on with the next extent."""

    def discard(self) -> None:
        """Does nothing: the task's object is given up as a whole."""
