"""Batches of a leader's log, as small as can be."""

from __future__ import annotations

from sexton.records.batch import Batch, ControlType, Record, marker_key
from sexton.records.header import CONTROL, TRANSACTIONAL


def value(offset: int, key: str, *, is_tombstone: bool = False, producer_id: int = -1) -> Batch:
    """In a transaction, if it has a producer."""
    record = Record(offset, 0, key.encode(), None if is_tombstone else b"value")
    attributes = TRANSACTIONAL if producer_id >= 0 else 0
    return Batch(offset, offset, attributes=attributes, producer_id=producer_id, records=(record,))


def marker(offset: int, producer_id: int, at_ms: int = 0) -> Batch:
    record = Record(offset, 0, marker_key(ControlType.ABORT), b"")
    attributes = CONTROL | TRANSACTIONAL
    return Batch(
        offset, offset, attributes=attributes, max_timestamp_ms=at_ms, producer_id=producer_id, records=(record,)
    )
