"""What the log hands out."""

from __future__ import annotations

from typing import NamedTuple

from sexton.ports.network import Part


class Appended(NamedTuple):
    """What became of a batch. A duplicate was there already: the offsets are those of the first attempt."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 where records keep their producer's time."""
    log_start_offset: int
    is_duplicate: bool = False


class Read(NamedTuple):
    """Whole batches. Everything the log holds from `first_offset`, the one that was asked for, up to `next_offset` is
    in them, and reading goes on there. The first batch may begin below `first_offset`, if it holds it."""

    parts: list[Part]
    size_bytes: int
    first_offset: int
    next_offset: int


class TimedOffset(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
