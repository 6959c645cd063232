"""A batch whose records were encoded elsewhere, many at once: a copy needs no object a record."""

from __future__ import annotations

from dataclasses import dataclass

from sexton.records.header import HEADER_BYTES, MAGIC, Head, encode
from sexton.types import NO_EPOCH, ProducerEpoch, ProducerId


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Its records' offsets count from 0."""

    body: bytes
    """Compressed, if the attributes name a codec."""
    record_count: int
    codec: int
    base_timestamp_ms: int
    max_timestamp_ms: int

    def __len__(self) -> int:
        return self.record_count

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + len(self.body)

    def encoded(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        head = Head(
            position=0,
            size_bytes=self.size_bytes,
            base_offset=0,
            last_offset=self.record_count - 1,
            leader_epoch=NO_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=self.codec,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            producer_id=ProducerId(producer_id),
            producer_epoch=ProducerEpoch(epoch),
            base_sequence=sequence,
            record_count=self.record_count,
        )
        return encode(head, self.body)
