"""What a replica's files really hold, read from its disk with the plain reference parser.

The judge does not ask the log package what is in a log. It reads `.log` files batch by batch, and remembers how far it
has come, because a file that was only appended to need not be read again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import crc32c

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.records import batch as batches
from sexton.records.batch import Batch
from sexton.records.header import ATTRIBUTES_POSITION
from sexton.simulate.disk import VirtualDisk
from sexton.simulate.inode import Inode

SEGMENT_SUFFIX = ".log"
SWAP_SUFFIX = ".log.swap"
"""Of a segment that takes the place of others: once it is named so, a restart would go on with it."""


class Entry(NamedTuple):
    """One batch: where it stands and what it is. Equal entries are the same batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int

    def __str__(self) -> str:
        return f"{self.base_offset}..{self.last_offset} (epoch {self.leader_epoch}, crc {self.crc:08x})"


@dataclass(slots=True)
class _Segment:
    inode: Inode
    cuts_count: int
    parsed: bytearray = field(default_factory=bytearray)
    """The bytes of `entries`."""
    entries: list[Entry] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    """The same ones: headers, and records once somebody has asked for them."""

    def with_records(self, index: int) -> Batch:
        batch = self.batches[index]
        if batch.record_count and not batch.records:
            start = self.positions[index]
            data = bytes(memoryview(self.inode.content)[start : start + batch.size_bytes])
            batch = self.batches[index] = batches.decode(data, 0)
        return batch

    def left_by_a_cut(self) -> _Segment:
        """What was parsed before something but an append happened to the file, as far as the same bytes are there."""
        cut = _Segment(self.inode, self.inode.cuts_count)
        content = memoryview(self.inode.content)
        end_bytes = len(self.parsed)
        count = len(self.entries)
        while end_bytes > len(content):
            count -= 1
            end_bytes = self.positions[count]
        if content[:end_bytes] == memoryview(self.parsed)[:end_bytes]:
            cut.parsed = self.parsed[:end_bytes]
            cut.entries, cut.positions = self.entries[:count], self.positions[:count]
            cut.batches = self.batches[:count]
        return cut


class Copy:
    """One replica on one disk. `entries` is what its files hold, in order, up to the first byte that is no batch."""

    def __init__(self, volume: VirtualDisk, directory: str) -> None:
        self.volume = volume
        self._directory = directory
        self._segments: dict[str, _Segment] = {}
        self.version = 0
        """Grows whenever something that was read may have changed. Appending does not count."""

    @property
    def exists(self) -> bool:
        return self.volume.find(self._directory) is not None

    def refresh(self) -> None:
        found: dict[str, _Segment] = {}
        for file_name, inode in self.volume.files(self._directory):
            if not file_name.endswith((SEGMENT_SUFFIX, SWAP_SUFFIX)):
                continue
            name = file_name.partition(".")[0]
            segment = self._segments.get(name)
            if segment is None or segment.inode is not inode:
                self.version += segment is not None or file_name.endswith(SWAP_SUFFIX)
                segment = _Segment(inode, inode.cuts_count)
            elif segment.cuts_count != inode.cuts_count:
                self.version += 1
                segment = segment.left_by_a_cut()
            _parse_on(segment)
            found[name] = segment
        self.version += any(name not in found for name in self._segments)
        self._segments = found

    def names(self, suffix: str) -> list[str]:
        """Names of the files beside the segments that end so."""
        return [name for name, _ in self.volume.files(self._directory) if name.endswith(suffix)]

    def content(self, name: str) -> bytes | None:
        """Content of such a file; None if there is none."""
        inode = self.volume.find(f"{self._directory}/{name}")
        return bytes(inode.content) if isinstance(inode, Inode) else None

    def entries_from(self, offset: int) -> Iterator[Entry]:
        """Batches whose last offset is not below `offset`."""
        for segment in self._segments.values():
            entries = segment.entries
            if entries and entries[-1].last_offset >= offset:
                yield from entries[bisect_left(entries, offset, key=lambda entry: entry.last_offset) :]

    def batches_from(self, offset: int) -> Iterator[Batch]:
        """The same with their records, in the order of their offsets. While segments are being swapped, old ones may
        still lie beside the new one that covers them: what is covered does not count."""
        for segment in self._segments.values():
            entries = segment.entries
            if entries and entries[-1].last_offset >= offset:
                first = bisect_left(entries, offset, key=lambda entry: entry.last_offset)
                for index in range(first, len(entries)):
                    yield segment.with_records(index)
                offset = entries[-1].last_offset + 1

    @property
    def intact_end(self) -> int:
        """Where the first segment ends that goes on with what is no batch, or whose end a power loss took: what follows
        a torn write, or a gap, does not count."""
        end = 0
        for segment in self._segments.values():
            end = segment.entries[-1].last_offset + 1 if segment.entries else end
            if len(segment.parsed) < len(segment.inode.content) or segment.inode.is_short:
                break
        return end

    @property
    def end_offset(self) -> int:
        return max(
            (segment.entries[-1].last_offset + 1 for segment in self._segments.values() if segment.entries), default=0
        )


def _parse_on(segment: _Segment) -> None:
    content, start = segment.inode.content, len(segment.parsed)
    if start == len(content):
        return
    data = bytes(memoryview(content)[start:])
    position = 0
    while position < len(data):
        try:
            batch = batches.decode_header(data, position)
        except (CorruptLogError, UnsupportedFormatError):  # noise after a torn write may look like any format
            break
        crc = int.from_bytes(data[position + 17 : position + 21], "big")
        covered = memoryview(data)[position + ATTRIBUTES_POSITION : position + batch.size_bytes]
        if crc32c.crc32c(covered) != crc:
            break
        segment.entries.append(Entry(batch.base_offset, batch.last_offset, batch.leader_epoch, crc))
        segment.positions.append(start + position)
        segment.batches.append(batch)
        position += batch.size_bytes
    segment.parsed += data[:position]
