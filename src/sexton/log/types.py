"""Return types of the log."""

from __future__ import annotations

from typing import NamedTuple

from sexton.ports.network import Part
from sexton.types import LeaderEpoch


class Appended(NamedTuple):
    """Result of an append. For a duplicate, the offsets are those of the first attempt."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """The timestamp of the append; -1 where records keep the producer's timestamps."""
    log_start_offset: int
    is_duplicate: bool = False


class Read(NamedTuple):
    """Whole batches, with every record that the log holds from `first_offset` (the requested offset) up to
    `next_offset`, where the next read starts. The first batch may begin below `first_offset` if it contains it."""

    parts: list[Part]
    size_bytes: int
    first_offset: int
    next_offset: int


class TimedOffset(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: LeaderEpoch


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
