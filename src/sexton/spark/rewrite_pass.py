"""The second pass: writes the survivors of a chunk into a part file, then joins parts and unchanged ranges into new
segments.

A part file is in the partition's directory and has a name that a broker deletes when it starts after a crash
(``….cleaned``). Ranges of batches that do not change are not copied into it; the new segment takes them straight from
the old one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from sexton.compaction import columns
from sexton.compaction.chunking import Chunk, Extent, Output, PartitionWork, Slice
from sexton.compaction.columns import Tally
from sexton.compaction.fates import Fate
from sexton.compaction.kernels.rewrite import (
    MAX_VARINT_GROWTH_BYTES,
    copy_kept_records,
    write_batches,
    write_header,
)
from sexton.compaction.rules import Action
from sexton.compaction.transactions import TransactionIndex
from sexton.errors import SextonError
from sexton.records import codecs, names, segment_indexes
from sexton.records.header import CODEC_MASK, HEADER_BYTES
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table, scan_whole
from sexton.spark import scratch
from sexton.spark.index_pass import Note
from sexton.spark.storage import Folder, PartFile, Storage, failure_of
from sexton.spark.unpacking import place_of, unparsable, worker_unpacker

BUFFER_BYTES = 4 * 1024 * 1024
LINKED_RUN_BYTES_MIN = 256 * 1024
"""A range of unchanged batches shorter than this is copied: a reference to it would cost more."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """The result of a slice: the extents that replace it."""

    segment: int
    is_unchanged: bool
    extents: tuple[Extent, ...]
    size_bytes: int
    last_offset: int
    """Last offset of the last batch that is left; -1 if none is."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    chunk: int
    partition: int
    slices: tuple[SliceResult, ...] = ()
    tally: Tally = field(default_factory=Tally)
    failure: SextonError | None = None


def rewrite_chunk(
    chunk: Chunk, work: PartitionWork, storage: Storage, payloads: Iterable[bytes | Note], dry_run: bool
) -> ChunkResult:
    """Applies the verdicts to a chunk. A failure is returned as a result, so that other partitions go on."""
    try:
        codes, keyless_count = verdicts_of(payloads)
    except SextonError as failure:
        return ChunkResult(chunk.number, chunk.partition, failure=failure)
    tally = Tally()
    results = []
    first = chunk.slices[0]
    source = Extent(first.path, first.start, first.end) if len(chunk.slices) == 1 else None
    part = None
    try:
        transactions = TransactionIndex(work.markers, is_sorted=True)
        part = Part(storage.new_part(names.parse_base_offset(Path(first.path).name), source))
        for piece in chunk.slices:
            result, slice_tally = _rewrite_slice(
                piece, chunk.is_dirty, work, storage, transactions, codes, None if dry_run else part
            )
            results.append(result)
            tally.merge(slice_tally)
        part.close()
    except Exception as error:
        if part is not None:
            with suppress(OSError):
                part.discard()
        return ChunkResult(chunk.number, chunk.partition, failure=failure_of(error, work.directory))
    count_keyless(tally, keyless_count, work)
    return ChunkResult(chunk.number, chunk.partition, tuple(results), tally)


def verdicts_of(payloads: Iterable[bytes | Note]) -> tuple[npt.NDArray[np.int64], int]:
    """The codes of a chunk, sorted, and how many of its records have no key. Raises the failure of its index task."""
    lists, keyless_count = [], 0
    for payload in payloads:
        if isinstance(payload, Note):
            if payload.failure is not None:
                raise payload.failure
            keyless_count += payload.keyless_count
        else:
            lists.append(np.frombuffer(payload, dtype=np.int64))
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *lists])), keyless_count


class Part:
    """A chunk's rewritten batches, on their way to a file through one large buffer."""

    def __init__(self, file: PartFile) -> None:
        self.path = file.path
        self.buffer = cast(Bytes, scratch.take("part", np.uint8, BUFFER_BYTES))
        self.filled = 0
        self._file = file
        self._written = 0

    @property
    def position(self) -> int:
        return self._written + self.filled

    def reserve(self, size_bytes: int) -> None:
        """Makes room for ``size_bytes`` more."""
        if self.filled + size_bytes <= len(self.buffer):
            return
        self.flush()
        if size_bytes > len(self.buffer):
            self.buffer = cast(Bytes, scratch.take("part", np.uint8, 2 * size_bytes))

    def flush(self) -> None:
        if self.filled == 0:
            return
        self._file.append(self._written, memoryview(self.buffer)[: self.filled])  # type: ignore[arg-type]
        self._written += self.filled
        self.filled = 0

    def close(self) -> None:
        self.flush()
        self._file.close()

    def discard(self) -> None:
        self._file.discard()


def _rewrite_slice(
    piece: Slice,
    is_dirty: bool,
    work: PartitionWork,
    storage: Storage,
    transactions: TransactionIndex,
    codes: npt.NDArray[np.int64],
    part: Part | None,
) -> tuple[SliceResult, Tally]:
    """The index pass has checked every CRC; bytes that are read again over a network are checked again."""
    with storage.reading(piece.path, piece.start, piece.end) as data:
        table = scan_whole(
            data,
            piece.start,
            piece.end,
            piece.path,
            check_crc=storage.reads_anew,
            previous_offset=piece.previous_offset,
        )
        facts = columns.facts_of(table, work, transactions)
        outcomes, tally = columns.decide(table, work, facts, codes, is_dirty, piece.segment)
        written = outcomes["action"] != Action.DROP
        last_offset = int(table["last_offset"][written].max(initial=-1))
        if bool((outcomes["action"] == Action.COPY).all()):
            extent = Extent(piece.path, piece.start, piece.end)
            return SliceResult(piece.segment, True, (extent,), piece.size_bytes, last_offset), tally
        if part is None:
            return SliceResult(piece.segment, False, (), _estimate(table, outcomes), last_offset), tally
        extents = _write(piece, data, table, outcomes, codes, is_dirty, part, work.max_batch_bytes)
        size = sum(extent.end - extent.start for extent in extents)
        return SliceResult(piece.segment, False, tuple(extents), size, last_offset), tally


def _write(
    piece: Slice,
    data: Bytes,
    table: Table,
    outcomes: Table,
    codes: npt.NDArray[np.int64],
    is_dirty: bool,
    part: Part,
    max_batch_bytes: int,
) -> list[Extent]:
    """Returns the slice's new contents: long unchanged runs by reference, everything else through the part file."""
    extents: list[Extent] = []
    done = 0
    for first, last in [*_long_runs(table, outcomes), (len(table), len(table))]:
        start = part.position
        write_rows(piece, data, table, outcomes, done, first, codes, is_dirty, part, max_batch_bytes)
        if part.position > start:
            extents.append(Extent(part.path, start, part.position))
        if first < last:
            begin = int(table["position"][first])
            end = int(table["position"][last - 1] + table["size"][last - 1])
            extents.append(Extent(piece.path, begin, end))
        done = last
    return extents


def write_rows(
    piece: Slice,
    data: Bytes,
    table: Table,
    outcomes: Table,
    first: int,
    last: int,
    codes: npt.NDArray[np.int64],
    is_dirty: bool,
    part: Part,
    max_batch_bytes: int,
) -> None:
    row = first
    while row < last:
        row, part.filled, status = write_batches(
            data, table[:last], outcomes[:last], row, codes, is_dirty, part.buffer, part.filled
        )
        if row == last:
            return
        batch = table[row]
        if status == 1:
            part.reserve(int(batch["size"]) + MAX_VARINT_GROWTH_BYTES * int(batch["record_count"]))
            if part.filled:
                part.flush()
        elif status == 2:
            _write_packed(piece, data, batch, outcomes[row], codes, is_dirty, part, max_batch_bytes)
            row += 1
        else:
            raise unparsable(piece.path, int(batch["position"]))


def _write_packed(
    piece: Slice,
    data: Bytes,
    batch: np.void,
    outcome: np.void,
    codes: npt.NDArray[np.int64],
    is_dirty: bool,
    part: Part,
    max_batch_bytes: int,
) -> None:
    """Rewrites one compressed batch: decompresses it, keeps the survivors, compresses them with its own codec, as
    Kafka's cleaner does."""
    codec = int(batch["attributes"]) & CODEC_MASK
    position = int(batch["position"])
    view = memoryview(data)[position + HEADER_BYTES : position + int(batch["size"])]  # type: ignore[arg-type]
    unpacker = worker_unpacker(max_batch_bytes)
    end = unpacker.unpack(codec, view, 0, place_of(piece.path, position))
    growth = MAX_VARINT_GROWTH_BYTES * int(batch["record_count"])
    plain = cast(Bytes, scratch.take("plain", np.uint8, end + growth))
    plain_end, newest_ms, kept = copy_kept_records(unpacker.buffer, 0, end, batch, outcome, codes, is_dirty, plain, 0)
    if plain_end < 0 or kept != outcome["kept_count"]:
        raise unparsable(piece.path, position)
    packed = codecs.compress(codec, memoryview(plain)[:plain_end])  # type: ignore[arg-type]
    part.reserve(HEADER_BYTES + len(packed))
    start = part.filled
    part.filled = start + HEADER_BYTES + len(packed)
    part.buffer[start + HEADER_BYTES : part.filled] = np.frombuffer(packed, dtype=np.uint8)
    max_timestamp = int(batch["max_timestamp"]) if batch["attributes"] & 8 else newest_ms
    write_header(part.buffer, start, part.filled, batch, outcome, max_timestamp)


def _long_runs(table: Table, outcomes: Table) -> list[tuple[int, int]]:
    """Returns the ranges of rows that are copied as they are and are long enough to be worth a reference."""
    is_copied = np.concatenate([[False], outcomes["action"] == Action.COPY, [False]])
    edges = np.flatnonzero(np.diff(is_copied.astype(np.int8)))
    runs = edges.reshape(-1, 2)
    ends = table["position"] + table["size"]
    return [
        (int(first), int(last))
        for first, last in runs
        if ends[last - 1] - table["position"][first] >= LINKED_RUN_BYTES_MIN
    ]


def _estimate(table: Table, outcomes: Table) -> int:
    """A dry run's estimate of a slice's new size: batches in proportion to the records they keep."""
    share = outcomes["kept_count"] / np.maximum(table["record_count"], 1)
    body = (table["size"] - HEADER_BYTES) * share
    written = outcomes["action"] != Action.DROP
    return int((body[written] + HEADER_BYTES).sum())


def count_keyless(tally: Tally, keyless_count: int, work: PartitionWork) -> None:
    """Key-less records were counted as superseded or newest; they have fates of their own."""
    dropped = work.terms.drop_keyless
    tally.add(Fate.SUPERSEDED if dropped else Fate.NEWEST, -keyless_count)
    tally.add(Fate.KEYLESS_DROPPED if dropped else Fate.KEYLESS_KEPT, keyless_count)


class Indexes(NamedTuple):
    """The indexes to be made of a new segment."""

    folder: Folder
    interval_bytes: int
    transactions: bytes
    """Content of the transaction index: it cannot be made from the new segment alone."""


def assemble(output: Output, storage: Storage, indexes: Indexes | None) -> None:
    """Writes a new segment under ``.cleaned`` names and flushes it; with its indexes unless the broker that commits it
    makes them."""
    path = storage.write_segment(output)
    if indexes is None:
        return
    base_offset = output.new.base_offset
    with storage.reading(path, 0, output.size_bytes) as data:
        table = scan_whole(data, 0, output.size_bytes, path, check_crc=False, previous_offset=base_offset - 1)
        offset_index, time_index = segment_indexes.build(table, base_offset, indexes.interval_bytes)
    for kind, content in (
        (names.OFFSET_INDEX_SUFFIX, offset_index),
        (names.TIME_INDEX_SUFFIX, time_index),
        (names.TRANSACTION_INDEX_SUFFIX, indexes.transactions),
    ):
        if content or kind != names.TRANSACTION_INDEX_SUFFIX:
            indexes.folder.write_index(names.segment_file_name(base_offset, kind, names.CLEANED_SUFFIX), content)
