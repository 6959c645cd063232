"""Producers for tests, from plain numbers."""

from __future__ import annotations

from sexton.records.header import TRANSACTIONAL, Head
from sexton.types import LeaderEpoch, ProducerEpoch, ProducerId, ProducerIdAndEpoch


def producer_at(producer_id: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def head_of(
    producer: ProducerIdAndEpoch,
    sequence: int,
    first_offset: int,
    *,
    last_offset: int | None = None,
    is_transactional: bool = False,
) -> Head:
    """The header of a producer's batch, as far as producer state depends on it."""
    last = first_offset if last_offset is None else last_offset
    return Head(
        position=0,
        size_bytes=0,
        base_offset=first_offset,
        last_offset=last,
        leader_epoch=LeaderEpoch(0),
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL if is_transactional else 0,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        record_count=last - first_offset + 1,
    )
