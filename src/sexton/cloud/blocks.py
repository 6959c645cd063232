"""Batches of a run in memory: where each of them begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sexton.log.epochs import EpochHistory
from sexton.ports.cloud import Extent
from sexton.ports.disk import Buffer
from sexton.ports.objects import DamagedObjectError
from sexton.records.header import Head, size_at, unpack
from sexton.records.objects import Level, Run, check_block, read_batches


class Cut(NamedTuple):
    data: memoryview
    next_offset: int


class Block:
    """The run of an extent, or some of its blocks."""

    __slots__ = ("_ends", "_positions", "data", "end_offset")

    def __init__(self, data: memoryview, positions: Sequence[int], ends: Sequence[int]) -> None:
        self.data = data
        self._positions = positions
        """Position of each batch in `data`."""
        self._ends = ends
        """Offset after each batch."""
        self.end_offset = ends[-1]

    @classmethod
    def checked(cls, data: Buffer, extent: Extent, epochs: EpochHistory, place: str) -> Block:
        """What a store has sent. Raises DamagedObjectError unless it is what was put there: each batch by its CRC, the
        offsets by the extent, and the leader epochs, which Kafka's CRC leaves out, by the partition's history."""
        view = memoryview(data).toreadonly()
        if len(view) != extent.size_bytes:
            raise DamagedObjectError(f"{len(view)} bytes, and the run has {extent.size_bytes}", place)
        heads = read_batches(view, Level(int(extent.level)), extent.base_offset, extent.end_offset, place)
        for head in heads:
            if contradiction := epochs.contradiction(head):
                raise DamagedObjectError(contradiction, place)
        return cls(view, [head.position for head in heads], [head.last_offset + 1 for head in heads])

    @classmethod
    def part_of(cls, data: Buffer, run: Run, numbers: range, epochs: EpochHistory, place: str) -> Block:
        """Some blocks of a run of L1, by the index in the footer, whose checksums cover offsets and epochs, too."""
        view = memoryview(data).toreadonly()
        start = run.blocks[numbers[0]].position
        if len(view) != run.block_end(numbers[-1]) - start:
            raise DamagedObjectError(f"{len(view)} bytes of blocks {numbers[0]} to {numbers[-1]}", place)
        positions: list[int] = []
        ends: list[int] = []
        for number in numbers:
            at = run.blocks[number].position - start
            for head in check_block(run, Level.L1, number, view[at : run.block_end(number) - start], place):
                if contradiction := epochs.contradiction(head):
                    raise DamagedObjectError(contradiction, place)
                positions.append(at + head.position)
                ends.append(head.last_offset + 1)
        return cls(view, positions, ends)

    @classmethod
    def own(cls, data: memoryview) -> Block:
        """What this broker has just written itself."""
        positions, ends, at = [], [], 0
        while at < len(data):
            positions.append(at)
            ends.append(unpack(data, at).last_offset + 1)
            at += size_at(data, at)
        return cls(data, positions, ends)

    def cut(self, offset: int, end_offset: int, max_bytes: int, *, min_one: bool) -> Cut | None:
        """Whole batches from the one that has `offset` on, all below `end_offset` and no more than `max_bytes`. With
        `min_one` the first of them is returned whatever its size."""
        first = bisect_right(self._ends, offset)
        stop = bisect_right(self._ends, end_offset)
        if first >= stop:
            return None
        start = self._positions[first]
        last = stop - 1
        if self._stop(last) - start > max_bytes:
            last = bisect_right(self._positions, start + max_bytes) - 2
            if last < first:
                if not min_one:
                    return None
                last = first
        return Cut(self.data[start : self._stop(last)], self._ends[last])

    def heads(self, offset: int) -> Iterator[Head]:
        """Of the batch that has the offset, and those after it."""
        for at in self._positions[bisect_right(self._ends, offset) :]:
            yield unpack(self.data, at, at)

    def batch(self, head: Head) -> memoryview:
        return self.data[head.position : head.position + head.size_bytes]

    def _stop(self, index: int) -> int:
        return self._positions[index + 1] if index + 1 < len(self._positions) else len(self.data)
