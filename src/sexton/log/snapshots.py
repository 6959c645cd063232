"""The producer snapshots of one log: files that say what was known of its producers at an offset.

They are written in a certain order with everything else, because their names certify what is on disk: see `recovery`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.ports.disk import Disk
from sexton.records import names
from sexton.records.producer_snapshot import ProducerEntry, decode_producer_snapshot


class Snapshots:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def path(self, offset: int) -> str:
        return f"{self._directory}/{names.producer_snapshot_file_name(offset)}"

    def offsets(self) -> list[int]:
        """Offsets of the snapshots that there are, rising."""
        parsed = map(names.parse_segment_file, self._disk.list(self._directory))
        return [
            one.base_offset
            for one in parsed
            if one is not None and one.kind == names.PRODUCER_SNAPSHOT_SUFFIX and not one.state
        ]

    def exists(self, offset: int) -> bool:
        return self._disk.exists(self.path(offset))

    def read(self, offset: int) -> tuple[ProducerEntry, ...]:
        """Raises CorruptLogError or UnsupportedFormatError if it cannot be read."""
        path = self.path(offset)
        return decode_producer_snapshot(self._disk.read_file(path) or b"", path)

    def newest(self, first: int, limit: int) -> tuple[int, tuple[ProducerEntry, ...]]:
        """Offset and contents of the newest readable snapshot from `first`, the log's first offset, up to `limit`;
        `first` and nothing if there is none. One from before `first` does not count: the records after it are gone."""
        for offset in self._descending(first, limit):
            try:
                return offset, self.read(offset)
            except (CorruptLogError, UnsupportedFormatError):
                continue
        return first, ()

    def _descending(self, first: int, limit: int) -> Iterator[int]:
        return (offset for offset in reversed(self.offsets()) if first <= offset <= limit)

    async def write(self, offset: int, content: bytes) -> None:
        """Durable on return."""
        await self._disk.replace_file(self.path(offset), content)

    def remove(self, offset: int) -> None:
        self._disk.remove(self.path(offset))

    async def remove_durably(self, doomed: list[int]) -> None:
        for offset in doomed:
            self.remove(offset)
        if doomed:
            await self._disk.flush_directory(self._directory)
