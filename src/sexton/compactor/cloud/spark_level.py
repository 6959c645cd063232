"""Leveling, and merging of runs, as a Spark job over whole objects.

    read     one task for some objects   each is read once; the wanted runs are cut out, checked, settled
    write    one task per output         runs in order of partition and offset, streamed into an object

Rows between the two are few and large: what a task has of one partition, as long as it is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyspark import SparkContext

from sexton.adapters.objects.blocking import BlockingStore
from sexton.compaction.leveling import Aborted, aborted_index, level_run
from sexton.compaction.transactions import TransactionIndex
from sexton.compactor.cloud.object_files import ObjectsWriter, ids_of_attempt, key_of
from sexton.compactor.cloud.plans import Output, PartitionPlan, Writer, WrittenL1
from sexton.errors import DamagedObjectError, SextonError
from sexton.ports.cloud import Extent, Level, ObjectId
from sexton.records.objects import Level as ObjectLevel
from sexton.records.objects import read_batches
from sexton.spark.storage import failure_of
from sexton.types import PartitionId

TASK_BYTES: Final = 32 << 20
"""Read by one task: about what it holds in memory."""

ROW_BYTES: Final = 4 << 20
"""A row of the shuffle is not made longer than this by joining."""

FAILED: Final = -1
"""The piece of a row that carries a failure: it comes before all others of its output."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that some output needs."""

    output: int
    piece: int
    plan: int
    extent: Extent
    ends_piece: bool


@dataclass(frozen=True, slots=True)
class Source:
    """An object, or the runs of it that are wanted; without a key they are inline."""

    key: str
    runs: tuple[Wanted, ...]

    @property
    def size_bytes(self) -> int:
        return sum(run.extent.size_bytes for run in self.runs)


@dataclass(frozen=True, slots=True)
class Target:
    """What the writer of an output must know of each of its pieces."""

    pieces: tuple[tuple[PartitionId, int, int, int], ...]
    """Partition, base and end offset, compaction epoch."""
    ids: tuple[tuple[ObjectId, ...], ...]
    """Of each attempt."""


Row = tuple[tuple[int, int, int], "tuple[int, bytes] | SextonError"]
"""Output, piece and base offset; end offset and batches."""


def run(
    context: SparkContext,
    plans: Sequence[PartitionPlan],
    outputs: Sequence[Output],
    ids: Sequence[Sequence[Sequence[ObjectId]]],
    store: BlockingStore,
    writer: Writer,
) -> list[WrittenL1 | SextonError]:
    sources = sources_of(outputs, writer)
    targets = [_target(plans, output, some) for output, some in zip(outputs, ids, strict=True)]
    aborted: list[list[Aborted]] = [
        [(int(row.producer_id), row.first_offset, row.marker_offset) for row in plan.aborted] for plan in plans
    ]
    shared = context.broadcast((aborted, targets))
    try:

        def read(some: Iterable[Source]) -> Iterator[Row]:
            known, _ = shared.value
            return read_sources(some, store, known)

        def write(number: int, rows: Iterable[Row]) -> Iterator[tuple[int, WrittenL1 | SextonError]]:
            _, wanted = shared.value
            if number < len(wanted):
                yield number, write_output(wanted[number], rows, store, writer)

        tasks = max(1, min(len(sources), -(-sum(one.size_bytes for one in sources) // TASK_BYTES)))
        rows = context.parallelize(sources, max(tasks, min(len(sources), context.defaultParallelism)))
        by_output = rows.mapPartitions(read).repartitionAndSortWithinPartitions(len(outputs), _output)
        found = dict(by_output.mapPartitionsWithIndex(write).collect())
    finally:
        shared.destroy()
    return [found[number] for number in range(len(outputs))]


def _output(key: tuple[int, int, int]) -> int:
    return key[0]


def _target(plans: Sequence[PartitionPlan], output: Output, ids: Sequence[Sequence[ObjectId]]) -> Target:
    pieces = tuple(
        (plans[piece.plan].key, piece.base_offset, piece.end_offset, int(plans[piece.plan].row.compaction_epoch))
        for piece in output
    )
    return Target(pieces, tuple(tuple(some) for some in ids))


def sources_of(outputs: Sequence[Output], writer: Writer) -> list[Source]:
    """Each object once, oldest first: what a task reads of a partition then tends to be contiguous."""
    runs: dict[str, list[Wanted]] = {}
    for number, output in enumerate(outputs):
        for index, piece in enumerate(output):
            for extent in piece.extents:
                key = "" if extent.inline is not None else key_of(extent, writer)
                ends_piece = extent is piece.extents[-1]
                runs.setdefault(key, []).append(Wanted(number, index, piece.plan, extent, ends_piece))
    return [
        Source(key, tuple(sorted(some, key=lambda one: one.extent.position)))
        for key, some in sorted(runs.items(), key=lambda item: item[0].rpartition("/")[2])
    ]


def read_sources(
    sources: Iterable[Source], store: BlockingStore, aborted: Sequence[Sequence[Aborted]]
) -> Iterator[Row]:
    """A failure is of the outputs that needed what could not be read."""
    indexes: dict[int, TransactionIndex] = {}
    pending: dict[tuple[int, int], list[tuple[int, int, bytes]]] = {}
    for source in sources:
        try:
            for wanted, data in _cut(source, store):
                if wanted.plan not in indexes:
                    indexes[wanted.plan] = aborted_index(aborted[wanted.plan])
                extent = wanted.extent
                left = _settled(data, wanted, indexes[wanted.plan], f"{store.place}/{source.key}")
                runs = pending.setdefault((wanted.output, wanted.piece), [])
                runs.append((extent.base_offset, extent.end_offset, left))
        except Exception as error:
            failure = failure_of(error, f"{store.place}/{source.key}")
            yield from (((output, FAILED, 0), failure) for output in {one.output for one in source.runs})
    for (output, piece), runs in pending.items():
        for base_offset, end_offset, left in _joined(runs):
            yield (output, piece, base_offset), (end_offset, left)


def _joined(runs: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, bytes]]:
    """Contiguous ones become one, up to a size."""
    parts: list[bytes] = []
    base = end = size_bytes = 0
    for base_offset, end_offset, data in sorted(runs, key=lambda one: one[0]):
        if parts and (base_offset != end or size_bytes >= ROW_BYTES):
            yield base, end, b"".join(parts)
            parts, size_bytes = [], 0
        if not parts:
            base = base_offset
        parts.append(data)
        size_bytes += len(data)
        end = end_offset
    if parts:
        yield base, end, b"".join(parts)


def _cut(source: Source, store: BlockingStore) -> Iterator[tuple[Wanted, bytes | memoryview]]:
    """The runs of one object: read with one request, if most of what lies between them is wanted."""
    if not source.key:
        for run in source.runs:
            assert run.extent.inline is not None
            yield run, run.extent.inline
        return
    first, last = source.runs[0].extent, source.runs[-1].extent
    start, end = first.position, last.position + last.size_bytes
    if source.size_bytes * 2 >= end - start:
        data = memoryview(store.read(source.key, start, end - start))
        for run in source.runs:
            at = run.extent.position - start
            yield run, data[at : at + run.extent.size_bytes]
        return
    for run in source.runs:
        yield run, memoryview(store.read(source.key, run.extent.position, run.extent.size_bytes))


def _settled(data: bytes | memoryview, wanted: Wanted, aborted: TransactionIndex, place: str) -> bytes:
    extent = wanted.extent
    if extent.level is Level.L1:  # a merge: it is settled already, and is checked as a broker checks it
        read_batches(data, ObjectLevel.L1, extent.base_offset, extent.end_offset, place)
        return bytes(data)
    table = np.frombuffer(data, dtype=np.uint8)
    left = level_run(table, extent.base_offset, extent.end_offset, aborted, place, keeps_end=wanted.ends_piece)
    return left.tobytes()


def write_output(target: Target, rows: Iterable[Row], store: BlockingStore, writer: Writer) -> WrittenL1 | SextonError:
    """Rows come sorted. They must tile each piece: what is missing is a failure, not an empty log (T9)."""
    out: ObjectsWriter | None = None
    try:
        out = ObjectsWriter(store, writer, ids_of_attempt(target.ids)[:1], 1 << 62)
        at = (-1, 0)
        for (_, piece, base_offset), content in rows:
            if isinstance(content, SextonError):
                return content
            end_offset, data = content
            if piece != at[0]:
                _check_ended(target, at)
                out.end()
                key, base, _, epoch = target.pieces[piece]
                _check(piece == at[0] + 1 and base_offset == base, target, piece, base_offset)
                out.begin(key, base, epoch=epoch)
            else:
                _check(base_offset == at[1], target, piece, base_offset)
            if data:
                out.add(data)
            out.reached(end_offset)
            at = piece, end_offset
        _check_ended(target, at)
        _check(at[0] == len(target.pieces) - 1, target, at[0], at[1])
        (written,) = out.finish()
        return written
    except Exception as error:
        return failure_of(error, store.place)
    finally:
        if out is not None:
            out.abort()


def _check_ended(target: Target, at: tuple[int, int]) -> None:
    if at[0] >= 0:
        _check(at[1] == target.pieces[at[0]][2], target, *at)


def _check(is_right: bool, target: Target, piece: int, offset: int) -> None:
    if not is_right:
        key, base, end, _ = target.pieces[max(piece, 0)]
        raise DamagedObjectError(
            f"offsets of {key[0]}-{key[1]} are missing at {offset}, of [{base}, {end})",
            "",
            "Nothing was changed. This is a bug: please report it with this line",
        )
