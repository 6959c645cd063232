"""Reads a replica's offsets from one to another, Fetch answer by Fetch answer. Pure: says what to ask next, takes what
came, and is told the time.

Below the replica's last stable offset the records are asked for as a read_committed consumer asks. A broker sends it
the same bytes, aborted data, markers and all, and says which transactions were aborted: that claim comes with the data
of the same moment, and nothing is read twice.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sexton.audit.live.errors import ReplicaUnreadableError
from sexton.client.consumer import WHAT_TO_DO_WITH_CORRUPT_RECORDS
from sexton.client.errors import CorruptRecordsError
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.records.header import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, MAGIC_POSITION, OLDEST_LENGTH_MIN

PATIENCE_MS: Final = 30_000
"""How long the same offset is asked for again, when a broker has no answer or fewer records than it had."""
PAUSE_MS: Final = 100
EMPTY_MAX: Final = 3
"""So many answers without a record below the high watermark mean that there is none: compaction took it."""

ANSWER_BYTES: Final = 8 << 20
ANSWER_BYTES_MAX: Final = 1 << 30

STRETCH_BYTES: Final = 64 << 20
STRETCHES_MAX: Final = 256
"""Of one replica."""

_BASE_AND_LENGTH: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_POSITION: Final = 23


def cut(from_offset: int, to_offset: int, size_bytes: int) -> list[tuple[int, int]]:
    """Offsets [from, to) in parts that tasks can read, about as many bytes in each."""
    count = min(STRETCHES_MAX, to_offset - from_offset, max(1, math.ceil(size_bytes / STRETCH_BYTES)))
    edges = [from_offset + (to_offset - from_offset) * index // count for index in range(count + 1)]
    return list(itertools.pairwise(edges))


class Answer(NamedTuple):
    """One partition's part of a Fetch answer."""

    data: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] = ()


class Asked(NamedTuple):
    offset: int
    isolation: int
    max_bytes: int
    wait_ms: int = 0
    """How long a broker may wait until it has something to send."""


class Taken(NamedTuple):
    """Where in the answer's data the batches are that belong to the range, and how long to wait before the next
    question."""

    start: int
    end: int
    pause_ms: int = 0
    note: str = ""


@dataclass(slots=True)
class Range:
    """Reads all whole batches that begin in [from, to), and the one that `from_offset` lies in if it
    `takes_straddling`."""

    place: str
    from_offset: int
    to_offset: int
    takes_straddling: bool = True
    answer_bytes: int = ANSWER_BYTES
    wait_ms: int = 0
    empty_max: int = EMPTY_MAX
    offset: int = -1
    _isolation: int = READ_COMMITTED
    _empty_count: int = 0
    _waiting_since_ms: int = -1

    def __post_init__(self) -> None:
        self.offset = self.from_offset

    @property
    def is_done(self) -> bool:
        return self.offset >= self.to_offset

    def next(self) -> Asked:
        return Asked(self.offset, self._isolation, self.answer_bytes, self.wait_ms)

    def take(self, answer: Answer, now_ms: int) -> Taken:
        """Raises ReplicaUnreadableError if the replica has had fewer records than it should for too long."""
        if not answer.data:
            return self._empty(answer, now_ms)
        start, end, next_offset = self._batches(answer.data)
        if next_offset < 0:  # not one whole batch: a broker that cuts off even the first one
            self.answer_bytes = min(2 * self.answer_bytes, ANSWER_BYTES_MAX)
            return self._wait("a batch is larger than any answer", now_ms)
        self._waiting_since_ms, self._empty_count = -1, 0
        self.offset = max(self.offset, next_offset)
        return Taken(start, end)

    def failed(self, why: str, now_ms: int) -> int:
        """A question without an answer. Returns how long to wait before it is asked again."""
        return self._wait(why, now_ms).pause_ms

    def out_of_range(self, log_start_offset: int) -> str:
        """The broker has no such offset; its log begins here now. Returns a note for people. Raises
        ReplicaUnreadableError if the log ends sooner than it did."""
        if log_start_offset <= self.offset:
            raise ReplicaUnreadableError(
                f"the log ends below offset {self.offset:,}, up to which it could be read before",
                self.place,
                "It was truncated, or its leader changed meanwhile: run the audit again",
            )
        before, self.offset = self.offset, log_start_offset
        return f"offsets {before:,} to {log_start_offset:,} were deleted while they were read"

    def _batches(self, data: bytes) -> tuple[int, int, int]:
        """(where the first wanted batch begins, where the last one ends, offset after it); -1 if there is no whole
        one."""
        position, start, next_offset, size = 0, -1, -1, len(data)
        while position + LOG_OVERHEAD_BYTES <= size:
            base_offset, length = _BASE_AND_LENGTH.unpack_from(data, position)
            if length < OLDEST_LENGTH_MIN:
                what = f"what it sends from offset {self.offset:,} on is no batch at byte {position:,}"
                raise CorruptRecordsError(what, self.place, WHAT_TO_DO_WITH_CORRUPT_RECORDS)
            end = position + LOG_OVERHEAD_BYTES + length
            if end > size:
                break
            if base_offset >= self.to_offset:
                next_offset = max(next_offset, self.to_offset)
                break
            is_before = base_offset < self.from_offset and not self.takes_straddling
            if start < 0 and not is_before:
                start = position
            next_offset = 1 + _last_offset(data, position, base_offset, end)
            position = end
        return (start, position, next_offset) if start >= 0 else (position, position, next_offset)

    def _empty(self, answer: Answer, now_ms: int) -> Taken:
        if self._isolation == READ_COMMITTED and answer.last_stable_offset <= self.offset:
            self._isolation, self._empty_count = READ_UNCOMMITTED, 0
            return Taken(0, 0)
        if answer.high_watermark <= self.offset:
            return self._wait(f"its high watermark went back to {answer.high_watermark:,}", now_ms)
        self._empty_count += 1
        if self._empty_count <= self.empty_max:
            return Taken(0, 0, PAUSE_MS)
        self._empty_count = 0
        if self._isolation == READ_COMMITTED:
            self.offset = min(self.to_offset, answer.last_stable_offset)
        else:
            self.offset = self.to_offset
        return Taken(0, 0)

    def _wait(self, why: str, now_ms: int) -> Taken:
        if self._waiting_since_ms < 0:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms > PATIENCE_MS:
            what = f"offset {self.offset:,} could not be read within {PATIENCE_MS // 1000} s: {why}"
            raise ReplicaUnreadableError(what, self.place, "Is the broker overloaded, or does leadership move?")
        return Taken(0, 0, PAUSE_MS)


def _last_offset(data: bytes, position: int, base_offset: int, end: int) -> int:
    """In formats before v2 the offset of a set of messages is its last one's."""
    if end - position < HEADER_BYTES or data[position + MAGIC_POSITION] < MAGIC:
        return base_offset
    (delta,) = _LAST_DELTA.unpack_from(data, position + _LAST_DELTA_POSITION)
    return base_offset + int(delta)
