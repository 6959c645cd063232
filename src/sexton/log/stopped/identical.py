"""Whether two replicas hold the same bytes below an offset. Compared batch by batch, because they may roll their
segments at different offsets.

Replicas that have adopted the same compaction do (docs/rules.md); replicas that compacted by themselves need not: the
same records may be left in batches with different delete horizons.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from sexton.errors import CorruptLogError
from sexton.log.stopped.partition import PartitionLog, mapped
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH
from sexton.records.header import head_at, unpack


@dataclass(frozen=True, slots=True)
class Compared:
    below_offset: int
    sha256_a: str
    sha256_b: str
    size_a_bytes: int
    size_b_bytes: int
    first_difference: int | None
    """The base offset of the first batch that differs."""

    @property
    def is_same(self) -> bool:
        return self.first_difference is None


def compare(a: PartitionLog, b: PartitionLog, below_offset: int) -> Compared:
    """Compares from the higher log start on: what lies below no longer counts."""
    start = max(a.log_start_offset, b.log_start_offset)
    digests = hashlib.sha256(), hashlib.sha256()
    sizes_bytes = [0, 0]
    first_difference: int | None = None
    for pair in zip_longest(_batches(a, start, below_offset), _batches(b, start, below_offset)):
        for side, batch in enumerate(pair):
            if batch is not None:
                digests[side].update(batch)
                sizes_bytes[side] += len(batch)
        if first_difference is None and pair[0] != pair[1]:
            first_difference = min(unpack(batch).base_offset for batch in pair if batch is not None)
    return Compared(
        below_offset=below_offset,
        sha256_a=digests[0].hexdigest(),
        sha256_b=digests[1].hexdigest(),
        size_a_bytes=sizes_bytes[0],
        size_b_bytes=sizes_bytes[1],
        first_difference=first_difference,
    )


def _batches(log: PartitionLog, start: int, below_offset: int) -> Iterator[bytes]:
    for segment in log.segments:
        if segment.base_offset >= below_offset:
            return
        with mapped(segment.path) as array:
            data, position = memoryview(array), 0  # type: ignore[arg-type]
            while position < len(data):
                head = head_at(data, position, position)
                if isinstance(head, str) or position + head.size_bytes > len(data):
                    what = head if isinstance(head, str) else "the batch is cut off"
                    raise CorruptLogError(what, f"{segment.path} at {position}", WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
                if head.base_offset >= below_offset:
                    return
                if head.last_offset >= start:
                    yield bytes(data[position : position + head.size_bytes])
                position += head.size_bytes
