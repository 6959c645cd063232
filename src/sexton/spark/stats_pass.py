"""Measures records for the statistics: one task per chunk, after the index pass has found the newest records.

The task gets the chunk's surviving codes (see ``records.kernels.keys``). Counting them needs no records; only batches
that have a surviving tombstone are decompressed, for the tombstone's timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sexton.compaction import rules
from sexton.compaction.chunking import Chunk, PartitionWork, Slice
from sexton.compaction.fates import Fate
from sexton.compaction.terms import NO_HORIZON
from sexton.compaction.transactions import TransactionIndex
from sexton.errors import SextonError
from sexton.log.stopped.partition import mapped
from sexton.records.batch import ControlType
from sexton.records.header import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from sexton.records.kernels.keys import FLAG_BITS, TOMBSTONE
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table, scan_whole
from sexton.spark.arrow_columns import walk
from sexton.spark.index_pass import Note
from sexton.spark.traces import Traces
from sexton.spark.unpacking import unpacked_runs, worker_unpacker
from sexton.types import NO_TIMESTAMP

Longs = npt.NDArray[np.int64]

ABOVE_BOUND = -1
"""Used instead of a fate: the tombstone is above the bound, so cleaning may not examine it yet."""


@dataclass(slots=True)
class Span:
    """A number of tombstones, with the oldest and newest timestamp among them."""

    count: int = 0
    oldest_ms: int = 2**63 - 1
    newest_ms: int = NO_TIMESTAMP

    def add(self, count: int, oldest_ms: int, newest_ms: int) -> None:
        self.count += count
        self.oldest_ms = min(self.oldest_ms, oldest_ms)
        self.newest_ms = max(self.newest_ms, newest_ms)


@dataclass(slots=True)
class Measured:
    """Counts of a chunk or, merged in order, of a log."""

    chunk: int = 0
    partition: int = 0
    newest_count: int = 0
    keyless_count: int = 0
    aborted_count: int = 0
    control_count: int = 0
    tombstones: dict[int, Span] = field(default_factory=dict)
    """Tombstones by what the next cleaning would do with them (a Fate), or ABOVE_BOUND."""
    horizon_next_ms: int = 2**63 - 1
    """When the next tombstone's delete horizon passes."""
    traces: Traces = field(default_factory=Traces)
    opened_ms: dict[int, int] = field(default_factory=dict)
    """When an open transaction began, by its first offset."""
    failure: SextonError | None = None

    def merge(self, later: Measured) -> None:
        """Adds the counts of the chunk that follows."""
        self.failure = self.failure or later.failure
        self.newest_count += later.newest_count
        self.keyless_count += later.keyless_count
        self.aborted_count += later.aborted_count
        self.control_count += later.control_count
        for fate, span in later.tombstones.items():
            self.tombstones.setdefault(fate, Span()).add(span.count, span.oldest_ms, span.newest_ms)
        self.horizon_next_ms = min(self.horizon_next_ms, later.horizon_next_ms)
        self.traces.join(later.traces)
        self.opened_ms.update(later.opened_ms)


def measure_chunk(
    chunk: Chunk, work: PartitionWork, payloads: Iterable[bytes | Note], open_first_offsets: Longs
) -> Measured:
    """``work.terms`` are Kafka's own (independent) if the other replicas are unknown: fates then show what time alone
    would do."""
    measured = Measured(chunk.number, chunk.partition)
    lists = []
    for payload in payloads:
        if not isinstance(payload, Note):
            lists.append(np.frombuffer(payload, dtype=np.int64))
            continue
        measured.keyless_count += payload.keyless_count
        measured.failure = measured.failure or payload.failure
    codes = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *lists]))
    measured.newest_count = len(codes)
    if measured.failure is not None:
        return measured
    tombstones = codes[(codes & TOMBSTONE) != 0] >> FLAG_BITS
    try:
        for piece in chunk.slices:
            _measure_slice(piece, work, tombstones, open_first_offsets, measured)
    except SextonError as failure:
        measured.failure = failure
    return measured


def _measure_slice(
    piece: Slice, work: PartitionWork, tombstones: Longs, open_first_offsets: Longs, measured: Measured
) -> None:
    with mapped(piece.path, piece.start, piece.end) as data:
        table = scan_whole(
            data, piece.start, piece.end, piece.path, check_crc=False, previous_offset=piece.previous_offset
        )
        attributes = table["attributes"]
        is_data = (attributes & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL
        outcome = TransactionIndex(work.markers).outcome(table)
        measured.aborted_count += int(table["record_count"][is_data & (outcome == ControlType.ABORT)].sum())
        measured.control_count += int(table["record_count"][(attributes & CONTROL) != 0].sum())
        opened = np.isin(table["base_offset"], open_first_offsets) & is_data
        for row in table[opened]:
            measured.opened_ms[int(row["base_offset"])] = int(row["max_timestamp"])
        measured.traces.look(table, piece.previous_offset)
        _measure_tombstones(data, table, piece.path, work, tombstones, measured)


def _measure_tombstones(
    data: Bytes, table: Table, path: str, work: PartitionWork, tombstones: Longs, measured: Measured
) -> None:
    start = np.searchsorted(tombstones, table["base_offset"], side="left")
    end = np.searchsorted(tombstones, table["last_offset"], side="right")
    holding = table[end > start]
    unpacker = worker_unpacker(work.max_batch_bytes)
    for rows, body, starts, ends in unpacked_runs(data, holding, unpacker, path):
        run = holding[rows]
        records = walk(body, starts, ends, run, path)
        records = records[np.isin(records["offset"], tombstones)]
        batches = run[records["batch"]]
        horizon_ms = np.where((batches["attributes"] & DELETE_HORIZON) != 0, batches["base_timestamp"], NO_HORIZON)
        fates = rules.tombstone_fate(work.terms, batches["last_offset"], horizon_ms)
        fates = np.where(batches["base_offset"] >= work.terms.bound, ABOVE_BOUND, fates)
        for fate in np.unique(fates):
            times = records["timestamp"][fates == fate]
            measured.tombstones.setdefault(int(fate), Span()).add(len(times), int(times.min()), int(times.max()))
        waiting = horizon_ms[fates == Fate.TOMBSTONE_WAITS_FOR_HORIZON]
        measured.horizon_next_ms = int(waiting.min(initial=measured.horizon_next_ms))
