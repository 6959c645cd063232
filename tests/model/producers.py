"""What a replica knows of the transactional producer, in memory and in snapshots."""

from __future__ import annotations

from tests.model.logs import (
    MARKERS,
    SETTLED,
    TRANSACTIONAL,
    Records,
    below,
    from_on,
    kind_of,
    offset_of,
    transactions,
)
from tests.model.state import Broker, Snapshot

BATCHES_KNOWN = 2
"""Kafka's brokers know the last five batches of a producer. Two show the same."""


def known_batches(before: tuple[int, ...], new: Records) -> tuple[int, ...]:
    """Of the transactional producer."""
    return (*before, *(offset_of(one) for one in new if kind_of(one) in TRANSACTIONAL | SETTLED))[-BATCHES_KNOWN:]


def snapshot_at(broker: Broker, offset: int) -> Snapshot:
    first_open = transactions(below(broker.log.records, offset)).first_open
    return Snapshot(offset, first_open, tuple(one for one in broker.batches if one < offset))


def phantom_of(recovered: Snapshot, records: Records) -> int:
    return -1 if recovered.first_open == transactions(records).first_open else recovered.first_open


def recover(records: Records, snapshots: tuple[Snapshot, ...]) -> Snapshot:
    """A replica that starts takes its newest producer snapshot and replays the log from there."""
    offset, first_open, batches = max(snapshots, default=Snapshot(0, -1, ()))
    rest = from_on(records, offset)
    for one in rest:
        kind = kind_of(one)
        if kind in TRANSACTIONAL and first_open < 0:
            first_open = offset_of(one)
        elif kind in MARKERS:
            first_open = -1
    return Snapshot(offset, first_open, known_batches(batches, rest))
