"""Encodes transaction markers as batches, and appends them to partitions that this broker leads."""

from __future__ import annotations

import asyncio

from sexton.coordinators.log import EndMarker
from sexton.records.batch import ControlType, Record, encode, make_batch, marker_key, marker_value
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.replication.replica import Replica


def marker_batch(marker: EndMarker, now_ms: int) -> bytes:
    kind = ControlType.COMMIT if marker.is_commit else ControlType.ABORT
    record = Record(0, now_ms, marker_key(kind), marker_value(marker.coordinator_epoch))
    return encode(
        make_batch(
            [record],
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=marker.owner.producer_id,
            producer_epoch=marker.owner.epoch,
        )
    )


def append_marker(replica: Replica, marker: EndMarker, now_ms: int) -> asyncio.Future[None] | None:
    """Returns a future that completes when the marker is committed, or None if it is committed already."""
    replica.check_serving_as_leader()
    producers = replica.log.producers
    if marker.raises_epoch and producers.is_marked(*marker.owner):
        return replica.committed(replica.log.end_offset)  # written before, but perhaps not committed
    committed = replica.append(marker_batch(marker, now_ms), -1, now_ms, from_client=False)[1]
    producers.void_verifications(marker.owner.producer_id, marker.last_epoch)
    return committed
