"""The segments of one log: the list, of which the last is the *active* one that is appended to; how one is closed and
the next begun; which of the closed ones stay open for readers.

Nothing here waits for the disk. What must be durable in a certain order is in `Log`, what replaces segments by
compacted ones in `swapping`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.log.batches import SCAN_BYTES
from sexton.log.segment import Segment
from sexton.ports.disk import Disk, FileSlice
from sexton.settings.topic import TopicConfig
from sexton.types import INT32_MAX

OPEN_SEGMENTS_MAX: Final = 4
"""Closed segments of one log that stay open, for readers that are behind."""

UNKNOWN_TIME_MS: Final = 2**62
"""Creation time of a segment that a follower rolled, which does not know it. Far in the future, so that no segment is
too old because of it."""


class Sealed(NamedTuple):
    """A closed segment that is not flushed yet, and the producer state at the base offset of the next one."""

    segment: Segment
    next_base_offset: int
    snapshot: bytes


@dataclass(frozen=True, slots=True)
class ClosedSegments:
    """The exact closed segments that a compaction was planned on."""

    reopened_count: int
    segments: tuple[Segment, ...]
    sizes_bytes: tuple[int, ...]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(segment.base_offset for segment in self.segments)


class Segments:
    def __init__(self, disk: Disk, directory: str, place: str, config: TopicConfig, found: list[Segment]) -> None:
        self._disk = disk
        self._directory = directory
        self._place = place
        self._config = config
        self.all = found
        self.active = found[-1]
        self.sealed: list[Sealed] = []
        self._read_lately: dict[int, Segment] = {}
        self.reopened_count = 0
        """How often a closed segment became active again or the log was emptied: compactions planned before are
        void."""

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.all)

    def reconfigure(self, config: TopicConfig) -> None:
        self._config = config
        self.active.reconfigure(config)

    # Rolling

    def must_roll(self, size: int, last_offset: int, max_timestamp_ms: int, now_ms: int) -> bool:
        """Whether a batch of this size must begin a new segment."""
        segment = self.active
        if last_offset - segment.base_offset > INT32_MAX:
            return True
        filled = segment.size_bytes
        if filled == 0:
            return False
        if filled + size > self._config.segment_bytes or segment.is_index_full:
            return True
        first_ms = segment.first_timestamp_ms
        waited_ms = max_timestamp_ms - first_ms if first_ms >= 0 else now_ms - segment.created_ms
        if waited_ms <= 0:
            return False
        return waited_ms > self._config.segment_ms - self._jitter_ms(segment)

    def _jitter_ms(self, segment: Segment) -> int:
        """Deterministic, and different for each segment."""
        jitter_max_ms = min(self._config.segment_jitter_ms, self._config.segment_ms)
        if jitter_max_ms == 0:
            return 0
        return zlib.crc32(f"{self._place} {segment.base_offset}".encode()) % jitter_max_ms

    def roll(self, base_offset: int, now_ms: int, snapshot: bytes) -> Segment:
        """Closes the active segment and begins the next. `snapshot` is the producer state in between."""
        segment = Segment(self._disk, self._directory, base_offset, self._config, now_ms)
        segment.create()
        self.active.seal()
        self.sealed.append(Sealed(self.active, base_offset, snapshot))
        self.all.append(segment)
        self.active = segment
        return segment

    # Which stay open

    def keep_open(self, segment: Segment) -> None:
        """The most recently used closed segments keep a file descriptor and an index in memory."""
        if segment is self.active:
            return
        lately = self._read_lately
        lately.pop(segment.base_offset, None)
        lately[segment.base_offset] = segment
        if len(lately) > OPEN_SEGMENTS_MAX:
            oldest = lately.pop(next(iter(lately)))
            if all(sealed.segment is not oldest for sealed in self.sealed):
                oldest.release()

    def keep_loaded_open(self) -> None:
        """Called after a search that may have opened any of them."""
        for segment in self.all:
            if segment.is_loaded:
                self.keep_open(segment)

    # Removing and replacing

    def cut(self, offset: int) -> None:
        """Removes what is at or above `offset`, from the end backwards. A segment that begins there stays, empty: it
        shows that nothing lies just below."""
        for segment in reversed(self.all[1:]):
            if segment.base_offset <= offset:
                break
            self.all.pop()
            self._forget(segment)
            segment.remove()
        if self.active is not self.all[-1]:
            self.reopened_count += 1
        active = self.active = self.all[-1]
        self._forget(active)
        active.cut(offset)
        active.reconfigure(self._config)

    def drop_below(self, offset: int) -> None:
        """Removes the segments that lie below `offset` as a whole, from the start forwards."""
        while len(self.all) > 1 and self.all[1].base_offset <= offset:
            segment = self.all.pop(0)
            self._forget(segment)
            segment.remove()

    def restart_at(self, offset: int) -> None:
        """Removes all, and begins an empty one."""
        for segment in reversed(self.all):
            self._forget(segment)
            segment.remove()
        segment = Segment(self._disk, self._directory, offset, self._config, UNKNOWN_TIME_MS)
        segment.create()
        self.all, self.sealed, self.active = [segment], [], segment
        self.reopened_count += 1

    def exchange(self, old: Sequence[Segment], new: Segment) -> None:
        first = self.all.index(old[0])
        assert self.all[first : first + len(old)] == list(old), "rule 10: only what was planned on is replaced"
        self.all[first : first + len(old)] = [new]
        for one in old:
            self._read_lately.pop(one.base_offset, None)
            one.is_gone = True

    def _forget(self, segment: Segment) -> None:
        self._read_lately.pop(segment.base_offset, None)
        self.sealed = [sealed for sealed in self.sealed if sealed.segment is not segment]

    def close_files(self) -> None:
        for segment in self.all:
            segment.close_file()

    # For compactions

    def closed(self, bound: int) -> ClosedSegments:
        """The closed segments that begin below `bound`."""
        below = tuple(segment for segment in self.all[:-1] if segment.base_offset < bound)
        return ClosedSegments(self.reopened_count, below, tuple(segment.size_bytes for segment in below))

    def are_current(self, closed: ClosedSegments) -> bool:
        """Whether these are still exactly the segments of this log, so that a compaction of them may be committed."""
        now = self.all[: len(closed.segments)]
        return (
            closed.reopened_count == self.reopened_count
            and len(now) == len(closed.segments) < len(self.all)
            and all(one is other for one, other in zip(now, closed.segments, strict=True))
            and all(one.size_bytes == size for one, size in zip(now, closed.sizes_bytes, strict=True))
        )

    def sizes_below(self, high_watermark: int) -> tuple[tuple[int, int], ...]:
        """Base offset and size of each segment, cut at the high watermark: what lies above it may be truncated while a
        compactor has it mapped, and touching such a page kills the process. A compaction needs no more, because every
        transaction that began below the last stable offset has ended below the high watermark."""
        sizes = []
        for segment in self.all:
            end = segment.size_bytes if segment.end_offset <= high_watermark else segment.position_of(high_watermark)
            sizes.append((segment.base_offset, end))
            if segment.is_loaded:
                self.keep_open(segment)
            if segment.end_offset > high_watermark:
                break
        return tuple(sizes)

    def begin_at(self, offset: int) -> bool:
        """Whether one of them begins at this offset."""
        return any(segment.base_offset == offset for segment in self.all)

    def closed_slice(self, base_offset: int, size_bytes: int, position: int, count_bytes: int) -> FileSlice:
        """A slice of a closed segment's file, which the caller identifies by base offset and size. Raises KeyError if
        there is no such segment."""
        for segment in self.all[:-1]:
            if (segment.base_offset, segment.size_bytes) == (base_offset, size_bytes) and 0 <= position < size_bytes:
                found = segment.slice(position, min(count_bytes, size_bytes - position))
                self.keep_open(segment)
                return found
        raise KeyError(f"{self._place} has no byte {position} of a closed segment at {base_offset}")

    async def checksum(self, segment: Segment) -> int:
        """CRC-32C of a closed segment's file. The file does not change, so it is computed once."""
        if segment.checksum is None:
            checksum = 0
            for position in range(0, segment.size_bytes, SCAN_BYTES):
                checksum = crc32c(segment.file.read(position, SCAN_BYTES), checksum)
                await asyncio.sleep(0)
            segment.checksum = checksum
            self.keep_open(segment)
        return segment.checksum
