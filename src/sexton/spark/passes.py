"""The passes of a compaction job on Spark: index, filter, reduce, rewrite (see `spark.compact` for what they do).

What a job keeps in Spark (broadcasts, persisted rows) is released with the job, however it ends: a compactor's session
lives for days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

from pyspark import RDD, Broadcast, SparkContext, StorageLevel

from sexton.compaction import chunking
from sexton.compaction.chunking import Chunk, PartitionWork
from sexton.compaction.kernels.newest import FALSE_POSITIVES_PER
from sexton.records.keyhash import HashKey, random_hash_key
from sexton.spark import index_pass, rewrite_pass
from sexton.spark.index_pass import BucketRow, Filter
from sexton.spark.rewrite_pass import ChunkResult
from sexton.spark.storage import Storage

REDUCE_BYTES = 64 * 1024 * 1024
"""Bytes of entries that a reduce task should get: they are in memory at once."""

ENTRY_BYTES = 24
CODE_BYTES = 8

Progress = Callable[[str, int], None]
"""Called with a step's name and its number of tasks, before the step runs."""

Shared = tuple[dict[int, PartitionWork], list[Storage], list[Chunk]]
"""What all tasks of a job share."""


class HasChunk(Protocol):
    @property
    def chunk(self) -> int:
        """Its number."""
        ...


R = TypeVar("R", bound=HasChunk)

Decided = tuple[Chunk, PartitionWork, Storage, Sequence["bytes | index_pass.Note"]]
"""A chunk, and which of its records survive."""

Rewriting = Callable[[int, Iterator[Decided]], Iterator[R]]
"""What a task of the last step does with its chunks. The first argument is the task's number."""


def run(
    context: SparkContext,
    works: Mapping[int, PartitionWork],
    storages: Sequence[Storage],
    chunks: Sequence[Chunk],
    dry_run: bool,
    progress: Progress,
) -> list[ChunkResult]:
    """Returns the result of each chunk, in order."""

    def rewriting(task: int, decided: Iterator[Decided]) -> Iterator[ChunkResult]:
        for chunk, work, storage, payloads in decided:
            yield rewrite_pass.rewrite_chunk(chunk, work, storage, payloads, dry_run)

    return run_with(context, works, storages, chunks, rewriting, progress)


def run_with(
    context: SparkContext,
    works: Mapping[int, PartitionWork],
    storages: Sequence[Storage],
    chunks: Sequence[Chunk],
    rewriting: Rewriting[R],
    progress: Progress,
) -> list[R]:
    with ExitStack() as held:
        return _run(context, works, storages, chunks, rewriting, progress, held)


def rewriters_of(context: SparkContext, chunks: Sequence[Chunk]) -> list[int]:
    """The number of the rewriting task of each chunk, in order."""
    count = chunking.task_count([chunk.size_bytes for chunk in chunks], context.defaultParallelism)
    return [number * count // len(chunks) for number in range(len(chunks))]


def _run(
    context: SparkContext,
    works: Mapping[int, PartitionWork],
    storages: Sequence[Storage],
    chunks: Sequence[Chunk],
    rewriting: Rewriting[R],
    progress: Progress,
    held: ExitStack,
) -> list[R]:
    shared = context.broadcast((dict(works), list(storages), list(chunks)))
    held.callback(shared.destroy)
    key = random_hash_key()
    dirty = [chunk.number for chunk in chunks if chunk.is_dirty]
    clean = [chunk.number for chunk in chunks if not chunk.is_dirty]
    reducers = _reducer_count(context, works, chunks)

    def index(number: int) -> Iterator[BucketRow]:
        chunk, work, storage = _share(shared.value, number)
        return index_pass.index_chunk(chunk, work, storage, key, None)

    rewriter_of = rewriters_of(context, chunks)
    rewriters = rewriter_of[-1] + 1

    def rewrite(task: int, rows: Iterable[tuple[int, bytes | index_pass.Note]]) -> Iterator[R]:
        payloads: dict[int, list[bytes | index_pass.Note]] = {}
        for number, payload in rows:
            payloads.setdefault(number, []).append(payload)
        mine = (each for each, rewriter in enumerate(rewriter_of) if rewriter == task)
        return rewriting(task, ((*_share(shared.value, each), payloads.pop(each, [])) for each in mine))

    indexers = _task_count(context, chunks, dirty)
    progress("index", indexers)
    indexed = context.parallelize(dirty, indexers).flatMap(index)
    if clean:
        indexed.persist(StorageLevel.MEMORY_AND_DISK)
        held.callback(indexed.unpersist)
        sieve = context.broadcast(_filters(indexed, works, reducers))
        held.callback(sieve.destroy)
        indexers = _task_count(context, chunks, clean)
        progress("index the clean section", indexers)
        indexed = indexed.union(_index_clean(context, shared, key, clean, indexers, sieve))
    progress("rewrite", rewriters)
    survivors = indexed.partitionBy(reducers, _spread_buckets).mapPartitions(index_pass.reduce_buckets)
    placed = survivors.partitionBy(rewriters, rewriter_of.__getitem__)
    results = placed.mapPartitionsWithIndex(rewrite).collect()
    return sorted(results, key=lambda result: result.chunk)


def _reducer_count(context: SparkContext, works: Mapping[int, PartitionWork], chunks: Sequence[Chunk]) -> int:
    """Chosen by the most that reducers may get: the dirty section's entries, those of the clean one that pass the
    filter by chance, and the lists of its tombstones, which may be all of its records."""
    dirty_count = sum(chunk.record_count for chunk in chunks if chunk.is_dirty)
    clean_count = sum(chunk.record_count for chunk in chunks if not chunk.is_dirty)
    size_bytes = ENTRY_BYTES * (dirty_count + clean_count // FALSE_POSITIVES_PER) + CODE_BYTES * clean_count
    groups = sum(work.bucket_count for work in works.values()) + sum(not chunk.is_dirty for chunk in chunks)
    return max(1, min(groups, max(context.defaultParallelism, -(-size_bytes // REDUCE_BYTES))))


def _filters(indexed: RDD[BucketRow], works: Mapping[int, PartitionWork], reducers: int) -> dict[int, Filter]:
    sections = indexed.partitionBy(reducers, _spread_buckets).mapPartitions(index_pass.build_filters).collect()
    by_partition: dict[int, dict[int, bytes]] = {partition: {} for partition in works}
    for (partition, bucket), words in sections:
        by_partition[partition][bucket] = words
    return {partition: index_pass.join_filters(by_partition[partition], work) for partition, work in works.items()}


def _index_clean(
    context: SparkContext,
    shared: Broadcast[Shared],
    key: HashKey,
    clean: Sequence[int],
    tasks: int,
    sieve: Broadcast[dict[int, Filter]],
) -> RDD[BucketRow]:
    def index(number: int) -> Iterator[BucketRow]:
        chunk, work, storage = _share(shared.value, number)
        return index_pass.index_chunk(chunk, work, storage, key, sieve.value[chunk.partition])

    return context.parallelize(clean, tasks).flatMap(index)


def _task_count(context: SparkContext, chunks: Sequence[Chunk], numbers: Sequence[int]) -> int:
    return chunking.task_count([chunks[number].size_bytes for number in numbers], context.defaultParallelism)


def _share(shared: Shared, number: int) -> tuple[Chunk, PartitionWork, Storage]:
    """Returns what a chunk's task needs."""
    works, storages, chunks = shared
    chunk = chunks[number]
    return chunk, works[chunk.partition], storages[chunk.partition]


def _spread_buckets(key: tuple[int, int]) -> int:
    """Neighbouring buckets go to different reducers; partitions start at different ones."""
    return key[0] * 31 + key[1]
