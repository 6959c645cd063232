"""What tasks do to copy a topic into one with other partitions: choose, pack, write.

    choose   a task per bucket of keys    each key's newest record, of all partitions that have the key
    pack     a task per stretch           chosen records without their batches, by target partition
    write    a task per few targets       batches of an idempotent producer, one partition after the other

Records are never objects: they travel in rows of about a megabyte (`Row`), and kernels take them out of one batch and
put them into another. Rows of a target arrive sorted by their stretch, so records of one source partition stay in
order, and partitions take turns as the log went on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sexton.audit.live import worker
from sexton.audit.live.connecting import Connecting
from sexton.client.client import Client
from sexton.client.consumer import LATEST, list_offsets
from sexton.client.packed import PackedBatch
from sexton.client.producer import Producer
from sexton.compaction.kernels.contents import CONTENT
from sexton.compaction.transactions import TransactionIndex
from sexton.errors import SextonError
from sexton.records.batch import ControlType
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES, Codec, compress
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.records.kernels.columns import Records, gather
from sexton.records.kernels.copying import PACKED, RECORD_OVERHEAD_BYTES_MAX, Packed, partitions_of, write_records
from sexton.records.kernels.keys import FLAG_BITS
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table, scan_whole
from sexton.spark.arrow_columns import walk
from sexton.spark.fold_compare import View, fold_bucket
from sexton.spark.fold_pass import Rows
from sexton.spark.storage import failure_of
from sexton.spark.stretches import Piece, Stretch
from sexton.spark.unpacking import unpacked_runs, worker_unpacker

ROW_BYTES: Final = 1 << 20
"""What a row should have: large enough to cost nothing by itself."""
PACKED_BYTES_MAX: Final = 64 << 20
"""What a task keeps of all targets together, before it sends what it has of each."""
BATCH_RECORDS_MAX: Final = 50_000

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]


class Order(NamedTuple):
    """A row's key: where it goes, and when."""

    target: int
    place: int
    """Of its stretch among its partition's: neighbours in time, about."""
    source: int
    number: int


class Row(NamedTuple):
    packed: bytes
    """An array of `PACKED`, whose records lie one after the other."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """Instead of rows or a result: a task does not fail, for Spark would repeat it, and what it wrote would be there
    twice."""

    error: SextonError


# ---- Choose ----


def choose(partition: int, rows: Mapping[int, Sequence[Rows]], shown: Sequence[View | None]) -> dict[int, Longs]:
    """The offsets of the newest records of a bucket's keys, by side. Entries carry timestamps: of a key that is in
    several partitions, whose offsets say nothing of each other, the newest record by time counts; of equally new ones,
    the one in the last partition."""
    folds = {number: fold_bucket(rows[number], view).visible for number in sorted(rows) if (view := shown[number])}
    entries = np.concatenate([np.zeros(0, dtype=CONTENT), *folds.values()])
    side = np.repeat(np.array(list(folds), dtype=np.int64), [len(fold) for fold in folds.values()])
    if len(folds) > 1:
        order = np.lexsort((side, entries["content"].view(np.int64), entries["second"], entries["first"]))
        entries, side = entries[order], side[order]
        is_last = np.ones(len(entries), dtype=np.bool_)
        is_last[:-1] = (entries["first"][1:] != entries["first"][:-1]) | (
            entries["second"][1:] != entries["second"][:-1]
        )
        entries, side = entries[is_last], side[is_last]
    return {number: np.sort(entries["code"][side == number] >> FLAG_BITS) for number in folds}


# ---- Pack ----


@dataclass(frozen=True, slots=True)
class Packing:
    """What a packing task must know about a source partition."""

    source: int
    from_offset: int
    to_offset: int
    markers: npt.NDArray[np.void]
    """All that its transactions end with."""
    target_count: int
    keeps_keyless: bool


def pack_stretch(
    stretch: Stretch, place: int, packing: Packing, chosen: Longs | None
) -> Iterator[tuple[Order, Row | Failed]]:
    """`chosen` are the offsets that are wanted, ascending; None for all that consumers see."""
    packer = _Packer(place, packing, chosen)
    try:
        for piece in stretch.pieces():
            yield from packer.take(piece)
        yield from packer.rest()
    except Exception as error:
        yield Order(-1, place, packing.source, -1), Failed(failure_of(error, f"partition {packing.source}"))


@dataclass(slots=True)
class _Packer:
    place: int
    packing: Packing
    chosen: Longs | None
    _parts: dict[int, list[tuple[Packed, Bytes]]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _number: int = 0
    _end: int = -1

    def take(self, piece: Piece) -> Iterator[tuple[Order, Row]]:
        if len(piece.data) == 0:
            return
        table = scan_whole(piece.data, 0, len(piece.data), piece.place, check_crc=True, previous_offset=self._end)
        if len(table):
            self._end = int(table["last_offset"][-1])
        wanted = table[self._is_wanted(table)]
        unpacker = worker_unpacker(MAX_UNCOMPRESSED_BATCH_BYTES)
        for rows, body, starts, ends in unpacked_runs(piece.data, wanted, unpacker, piece.place):
            span = self.packing.from_offset, self.packing.to_offset
            self._pack(body, walk(body, starts, ends, wanted[rows], piece.place, *span))
            yield from self._full()

    def _is_wanted(self, table: Table) -> npt.NDArray[np.bool_]:
        """Committed data; of batches that have nothing chosen nothing is unpacked."""
        attributes = table["attributes"]
        is_open = (attributes & TRANSACTIONAL) != 0
        outcome = TransactionIndex(self.packing.markers).outcome(table)
        result: npt.NDArray[np.bool_] = ((attributes & CONTROL) == 0) & (~is_open | (outcome == ControlType.COMMIT))
        if self.chosen is not None:
            first = np.searchsorted(self.chosen, table["base_offset"], side="left")
            result &= np.searchsorted(self.chosen, table["last_offset"], side="right") > first
        return result

    def _pack(self, body: Bytes, records: Records) -> None:
        if self.chosen is not None:
            places = np.minimum(np.searchsorted(self.chosen, records["offset"]), max(0, len(self.chosen) - 1))
            records = records[self.chosen[places] == records["offset"]] if len(self.chosen) else records[:0]
        targets = np.empty(len(records), dtype=np.int32)
        partitions_of(body, records, self.packing.target_count, targets)
        if self.packing.keeps_keyless:
            targets[targets < 0] = self.packing.source % self.packing.target_count
        order = np.argsort(targets, kind="stable")[int((targets < 0).sum()) :]
        records, targets = records[order], targets[order]
        packed = np.zeros(len(records), dtype=PACKED)
        packed["offset"], packed["timestamp"] = records["offset"], records["timestamp"]
        packed["size"], packed["key_size"] = records["end"] - records["key_start"], records["key_size"]
        ends = np.cumsum(packed["size"], dtype=np.int64)
        packed["start"] = ends - packed["size"]
        data = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
        gather(body, records["key_start"].copy(), packed["size"].copy(), packed["start"].copy(), data)
        for start, end in _runs_of(targets):
            part = data[packed["start"][start] : ends[end - 1]]
            target = int(targets[start])
            self._parts.setdefault(target, []).append((packed[start:end], part))
            self._sizes[target] = self._sizes.get(target, 0) + len(part) + packed[start:end].nbytes

    def _full(self) -> Iterator[tuple[Order, Row]]:
        if sum(self._sizes.values()) > PACKED_BYTES_MAX:
            yield from self.rest()
        for target in [target for target, size in self._sizes.items() if size >= ROW_BYTES]:
            yield self._row(target)

    def rest(self) -> Iterator[tuple[Order, Row]]:
        for target in sorted(self._parts):
            yield self._row(target)

    def _row(self, target: int) -> tuple[Order, Row]:
        parts = self._parts.pop(target)
        del self._sizes[target]
        self._number += 1
        packed = np.concatenate([part for part, _ in parts])
        data = np.concatenate([part for _, part in parts])
        return Order(target, self.place, self.packing.source, self._number), Row(packed.tobytes(), data.tobytes())


def _runs_of(targets: Ints) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(targets, prepend=-1, append=-1)).tolist()
    yield from pairwise(edges)


# ---- Write ----


@dataclass(frozen=True, slots=True)
class Writing:
    """What a writing task must know about the target."""

    connecting: Connecting
    topic: str
    end_offsets: Mapping[int, int]
    """Where each partition ends: nobody else writes there."""
    batch_bytes: int
    codec: int


@dataclass(frozen=True, slots=True)
class Written:
    target: int
    record_count: int
    end_offset: int


def batches_of(row: Row, batch_bytes: int, codec: int) -> Iterator[PackedBatch]:
    """A record that is larger is alone in its batch."""
    packed = np.frombuffer(row.packed, dtype=PACKED).copy()
    data = np.frombuffer(row.data, dtype=np.uint8)
    sizes = packed["size"].astype(np.int64)
    ends = np.cumsum(sizes)
    packed["start"] = ends - sizes
    room = np.cumsum(sizes + RECORD_OVERHEAD_BYTES_MAX)
    start = 0
    while start < len(packed):
        before = int(room[start - 1]) if start else 0
        end = int(np.searchsorted(room, before + batch_bytes, side="right"))
        end = min(max(end, start + 1), start + BATCH_RECORDS_MAX)
        some = packed[start:end]
        out = np.empty(int(room[end - 1]) - before, dtype=np.uint8)
        base_ms = int(some["timestamp"][0])
        body = memoryview(out)[: write_records(data, some, base_ms, out)]  # type: ignore[arg-type]
        plain_or_packed = compress(codec, body) if codec != Codec.NONE else body.tobytes()
        yield PackedBatch(plain_or_packed, len(some), codec, base_ms, int(some["timestamp"].max()))
        start = end


def write_rows(rows: Iterable[tuple[Order, Row | Failed]], writing: Writing) -> Iterator[Written | Failed]:
    """Rows of some targets, sorted. Nothing more is written after the first failure."""
    thread = worker.of_this_process()
    writer: _Writer | None = None
    try:
        for order, row in rows:
            if isinstance(row, Failed):
                yield row
                return
            if writer is None or writer.target != order.target:
                if writer is not None:
                    yield thread.run(writer.finish())
                writer = thread.run(_Writer.begin(thread, writing, order.target))
            for batch in batches_of(row, writing.batch_bytes, writing.codec):
                thread.run(writer.add(batch))
        if writer is not None:
            yield thread.run(writer.finish())
    except Exception as error:
        yield Failed(failure_of(error, writing.topic))


class SomebodyElseWritesError(SextonError):
    """Two copies at once, or a producer that has moved to the target already."""


@dataclass(slots=True)
class _Writer:
    """Of one partition."""

    client: Client
    writing: Writing
    target: int
    producer: Producer
    record_count: int = 0
    _outcomes: list[asyncio.Future[int]] = field(default_factory=list)

    @classmethod
    async def begin(cls, thread: worker.LoopThread, writing: Writing, target: int) -> _Writer:
        client = await thread.client(writing.connecting)
        made = cls(client, writing, target, Producer(client))
        await made._check_end(writing.end_offsets[target])
        return made

    async def add(self, batch: PackedBatch) -> None:
        """Waits while too much is on its way. Raises what has gone wrong."""
        for outcome in [each for each in self._outcomes if each.done()]:
            self._outcomes.remove(outcome)
            outcome.result()
        self._outcomes.append(await self.producer.queue(self.writing.topic, self.target, batch))
        self.record_count += len(batch)

    async def finish(self) -> Written:
        for outcome in self._outcomes:
            await outcome
        end = self.writing.end_offsets[self.target] + self.record_count
        await self._check_end(end)
        return Written(self.target, self.record_count, end)

    async def _check_end(self, wanted: int) -> None:
        place = (self.writing.topic, self.target)
        found = (await list_offsets(self.client, {place: LATEST}))[place]
        if found != wanted:
            what = f"it ends at offset {found:,}, not at {wanted:,}: somebody else writes to it"
            remedy = "Let nobody write to it while it is copied, then run this again"
            raise SomebodyElseWritesError(what, f"{place[0]}-{place[1]}", remedy)
