"""A stretch of a local log as a run of L0.

L0 has every offset, and compaction has left gaps: they are filled with batches without records, as compaction itself
leaves them where it must. So is what retention has removed since the last stretch: the log's start is taken over in the
end. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sexton.errors import CorruptLogError, SextonError
from sexton.log.epochs import EpochHistory
from sexton.log.segment import AbortedEntry
from sexton.ports.cloud import AbortedRow, Run
from sexton.ports.disk import Buffer
from sexton.records.header import HEADER_BYTES, MAGIC, Head, encode, has_valid_crc, head_at
from sexton.types import INT32_MAX, LeaderEpoch, PartitionId, ProducerEpoch, ProducerId


class UnalignedError(SextonError):
    """A batch begins below where the copy ends: it was cut otherwise where the copy was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    base_offset: int
    end_offset: int
    data: bytes
    first_timestamp_ms: int
    max_timestamp_ms: int
    records_count: int

    def run(self, key: PartitionId, writer_epoch: LeaderEpoch, position: int, aborted: Sequence[AbortedEntry]) -> Run:
        """Nothing is stable before the whole log is there: nobody levels it until then."""
        return Run(
            topic_id=key[0],
            partition=key[1],
            writer_epoch=writer_epoch,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            position=position,
            size_bytes=len(self.data),
            first_timestamp_ms=self.first_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            records_count=self.records_count,
            stable_offset=0,
            aborted=[AbortedRow(ProducerId(one.producer_id), *one[1:]) for one in aborted],
        )


def stretch_of(batches: Buffer, base_offset: int, end_offset: int, epochs: EpochHistory, place: str) -> Stretch:
    """Whole batches, all that a log has between the two offsets. Raises UnalignedError if the first begins below, and
    CorruptLogError if one of them is not what was written: the copy outlives the replicas that have it right."""
    view = memoryview(batches)
    parts: list[Buffer] = []
    next_offset, position = base_offset, 0
    first_ms, max_ms, records_count = -1, -1, 0
    while position < len(view):
        head = _intact(view, position, epochs, place)
        if head.base_offset < next_offset:
            raise UnalignedError(f"a batch at {head.base_offset}, and the copy ends at {next_offset}", place)
        if head.base_offset > next_offset:
            parts += fillers(next_offset, head.base_offset, epochs)
        if not records_count:
            first_ms = head.base_timestamp_ms
        parts.append(view[position : position + head.size_bytes])
        max_ms = max(max_ms, head.max_timestamp_ms)
        records_count += head.record_count
        next_offset = head.last_offset + 1
        position += head.size_bytes
    parts += fillers(next_offset, end_offset, epochs)
    return Stretch(
        base_offset=base_offset,
        end_offset=end_offset,
        data=b"".join(parts),
        first_timestamp_ms=first_ms,
        max_timestamp_ms=max_ms,
        records_count=records_count,
    )


def last_head(run: Buffer, place: str) -> Head:
    """Of a run that was copied: what the whole copy is recognised by. Raises CorruptLogError."""
    view = memoryview(run)
    head, position = None, 0
    while position < len(view):
        head = _intact(view, position, EpochHistory(), place)
        position += head.size_bytes
    if head is None:
        raise CorruptLogError("the run is empty", place)
    return head


def _intact(view: memoryview, position: int, epochs: EpochHistory, place: str) -> Head:
    head = head_at(view, position, position)
    if isinstance(head, str):
        raise CorruptLogError(head, place)
    if not has_valid_crc(view[position : position + head.size_bytes], head):
        raise CorruptLogError(f"the CRC of the batch at offset {head.base_offset} does not match", place)
    if contradiction := epochs.contradiction(head):
        raise CorruptLogError(contradiction, place)
    return head


def fillers(base_offset: int, end_offset: int, epochs: EpochHistory) -> Iterator[bytes]:
    """Batches without records, each of one leader epoch."""
    while base_offset < end_offset:
        next_epoch = (entry.start_offset for entry in epochs.entries if entry.start_offset > base_offset)
        stop = min(end_offset, next(next_epoch, end_offset), base_offset + INT32_MAX)
        yield encode(
            Head(
                position=0,
                size_bytes=HEADER_BYTES,
                base_offset=base_offset,
                last_offset=stop - 1,
                leader_epoch=epochs.epoch_of(base_offset),
                magic=MAGIC,
                crc=0,
                attributes=0,
                base_timestamp_ms=-1,
                max_timestamp_ms=-1,
                producer_id=ProducerId(-1),
                producer_epoch=ProducerEpoch(-1),
                base_sequence=-1,
                record_count=0,
            ),
            b"",
        )
        base_offset = stop
