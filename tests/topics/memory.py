"""Topics in memory, read as tasks read them from brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from sexton.records.batch import Batch, Record, encode
from sexton.spark.stretches import Piece
from sexton.topics.finding import PartitionLog, Reading, TopicLog
from tests import logs

TOPIC = "orders"
PIECE_BATCHES = 3


@dataclass(frozen=True, slots=True)
class MemoryStretch:
    replica: int
    from_offset: int
    to_offset: int
    size_bytes: int
    batches: tuple[tuple[int, int, bytes], ...]
    aborted: tuple[tuple[int, int, int], ...]
    is_first: bool
    high_watermark: int

    def pieces(self) -> Iterator[Piece]:
        start = self.from_offset
        mine = [
            (base, last, data)
            for base, last, data in self.batches
            if base < self.to_offset and (base >= start or (self.is_first and last >= start))
        ]
        for index in range(0, len(mine), PIECE_BATCHES):
            some = mine[index : index + PIECE_BATCHES]
            listed = tuple((pid, first) for pid, first, last in self.aborted if last >= start and first <= some[-1][1])
            data = np.frombuffer(b"".join(data for _, _, data in some), dtype=np.uint8)
            yield Piece(data, "memory", aborted=listed, high_watermark=self.high_watermark)


@dataclass
class Memory:
    """Stands in for `Reading`."""

    batches: Mapping[int, Sequence[Batch]]
    parts: int = 3
    read: list[tuple[int, int]] = field(default_factory=list)
    _encoded: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    _aborted: dict[int, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, some in self.batches.items():
            self._encoded[number] = [(each.base_offset, each.last_offset, encode(each)) for each in some]
            self._aborted[number] = tuple((pid, first, last) for pid, first, last, _ in logs.aborted_entries(some))

    @property
    def as_reading(self) -> Reading:
        return cast(Reading, self)

    def stretch(
        self, log: PartitionLog, number: int, part: tuple[int, int], *, is_first: bool, is_small: bool = False
    ) -> MemoryStretch:
        self.read.append(part)
        start, end = part
        return MemoryStretch(
            number,
            start,
            end,
            size_bytes=1,
            batches=tuple(each for each in self._encoded[log.partition] if each[1] >= start and each[0] < end),
            aborted=tuple(each for each in self._aborted[log.partition] if each[2] >= start and each[1] < end),
            is_first=is_first,
            high_watermark=log.high_watermark,
        )

    def stretches(self, log: PartitionLog, number: int, from_offset: int, to_offset: int) -> tuple[MemoryStretch, ...]:
        count = min(self.parts, to_offset - from_offset)
        edges = [from_offset + (to_offset - from_offset) * index // max(1, count) for index in range(count + 1)]
        return tuple(
            self.stretch(log, number, (edges[index], edges[index + 1]), is_first=index == 0) for index in range(count)
        )

    def topic(self, partitions: Sequence[int] | None = None, size_bytes: int | None = None) -> TopicLog:
        chosen = list(self.batches) if partitions is None else partitions
        found = tuple(self.log(number, size_bytes) for number in chosen)
        return TopicLog(TOPIC, len(self.batches), 1, found, None)

    def log(self, partition: int, size_bytes: int | None = None) -> PartitionLog:
        batches = self.batches[partition]
        end = batches[-1].next_offset if batches else 0
        start = batches[0].base_offset if batches else 0
        return PartitionLog(
            topic=TOPIC,
            partition=partition,
            log_start_offset=start,
            last_stable_offset=logs.last_stable_offset(batches, end),
            high_watermark=end,
            size_bytes=size_bytes,
        )


def visible(batches: Sequence[Batch]) -> list[Record]:
    """What a read_committed consumer sees, record by record."""
    end = batches[-1].next_offset if batches else 0
    stable = logs.last_stable_offset(batches, end)
    aborted = {(pid, first, last) for pid, first, last, _ in logs.aborted_entries(batches)}

    def is_aborted(batch: Batch) -> bool:
        return batch.is_transactional and any(
            pid == batch.producer_id and first <= batch.base_offset < last for pid, first, last in aborted
        )

    return [
        record
        for batch in batches
        if not batch.is_control and batch.base_offset < stable and not is_aborted(batch)
        for record in batch.records
    ]
