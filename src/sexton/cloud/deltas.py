"""What a leader's producers have sent, as the metastore keeps it: a snapshot, and packed batches since.

A claim rebuilds the leader's `ProducerStates` from these alone, without a byte of an object. Kafka's snapshot has only
the last batch of each producer, and a client may retry any of its last five. So a delta that comes with a snapshot
begins with the earlier ones: batches that lie below the snapshot's offset are recalled, not noted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from sexton.errors import CorruptLogError
from sexton.log.producers import Marker, ProducerStates
from sexton.ports.cloud import Claimed
from sexton.records.header import CONTROL, MAGIC, Head
from sexton.records.producer_snapshot import decode_producer_snapshot
from sexton.types import NO_EPOCH

_BATCH: Final = struct.Struct(">qiqhihqi")
"""Base offset, last offset delta, producer id, producer epoch, first sequence, attributes, timestamp, and for markers
the coordinator's epoch."""

BATCH_BYTES: Final = _BATCH.size
NO_COORDINATOR: Final = -1


def pack_batch(
    head: Head, base_offset: int, last_offset: int, timestamp_ms: int, coordinator_epoch: int = NO_COORDINATOR
) -> bytes:
    """Packs a batch with this header, which was appended at these offsets."""
    return _BATCH.pack(
        base_offset,
        last_offset - base_offset,
        head.producer_id,
        head.producer_epoch,
        head.base_sequence,
        head.attributes,
        timestamp_ms,
        coordinator_epoch,
    )


def pack_earlier(producers: ProducerStates) -> bytes:
    """Packs what a snapshot of these producers leaves out: all batches but the last of each, in log order."""
    earlier = [(past, producer) for producer in producers for past in producer.batches[:-1]]
    earlier.sort(key=lambda one: one[0].first_offset)
    return b"".join(
        _BATCH.pack(
            past.first_offset,
            past.last_offset - past.first_offset,
            producer.producer_id,
            producer.epoch,
            past.first_sequence,
            0,
            past.timestamp_ms,
            NO_COORDINATOR,
        )
        for past, producer in earlier
    )


def load(producers: ProducerStates, claimed: Claimed, place: str, now_ms: int) -> None:
    """Sets the producers' state at the end of what is committed. Raises CorruptLogError if the rows make no sense."""
    entries = decode_producer_snapshot(claimed.producers, place) if claimed.producers else ()
    producers.load(entries, now_ms)
    for delta in claimed.deltas:
        for head, coordinator_epoch in _unpack(delta.batches, place):
            if head.base_offset < claimed.row.producers_offset:
                producers.recall(head)
            elif head.attributes & CONTROL:
                # Whether it aborted is in the list of aborted transactions; the state does not depend on it.
                marker = Marker(is_abort=False, coordinator_epoch=coordinator_epoch)
                producers.note_marker(
                    head.producer_id, head.producer_epoch, head.base_offset, head.max_timestamp_ms, marker
                )
            else:
                producers.note_data(head, head.base_offset, head.last_offset, head.max_timestamp_ms)
    producers.first_unstable_offset(claimed.row.end_offset)  # every marker is committed: none is waited for


def _unpack(batches: bytes, place: str) -> Iterator[tuple[Head, int]]:
    if len(batches) % BATCH_BYTES:
        raise CorruptLogError(
            f"{len(batches)} bytes of producers' batches in the metastore, where each has {BATCH_BYTES}", place
        )
    for base, delta, producer_id, epoch, sequence, attributes, timestamp_ms, coordinator in _BATCH.iter_unpack(batches):
        head = Head(
            position=0,
            size_bytes=0,
            base_offset=base,
            last_offset=base + delta,
            leader_epoch=NO_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            base_timestamp_ms=timestamp_ms,
            max_timestamp_ms=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            record_count=delta + 1,
        )
        yield head, coordinator
