"""One segment: a file of batches, its offset and time indexes, and the transactions aborted in it.

The last segment of a log is its *active* one. Its index is in memory, and so are the positions of the last few hundred
batches: nearly all reads are of what has just been written, and find their position without reading a file.
"""

from __future__ import annotations

import errno
import itertools
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sexton.errors import CorruptLogError
from sexton.log.batches import LOOKUP_BYTES, SCAN_BYTES, Walk
from sexton.log.producers import EndedTransaction
from sexton.log.sparse import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, SparseIndex
from sexton.ports.disk import Buffer, Disk, File, FileSlice
from sexton.records import names
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH
from sexton.records.header import Head
from sexton.settings.topic import TopicConfig
from sexton.types import INT32_MAX, NO_TIMESTAMP

TIME_ENTRY: Final = struct.Struct(">qi")

RECENT_MAX: Final = 1024
"""Number of recent batches whose positions are kept: 16 bytes each, so 16 KB for a busy partition."""

HINTS_MAX: Final = 64
"""Number of sequential readers of a segment whose next positions are kept."""

NOWHERE: Final = 2**63 - 1
"""No offset is at or above it: no batch's position is kept."""


class AbortedEntry(NamedTuple):
    """An entry of the transaction index, in the order of the file's fields."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Segment:
    __slots__ = (
        "_aborted",
        "_directory",
        "_disk",
        "_file",
        "_hints",
        "_index",
        "_is_index_written",
        "_recent_ends",
        "_recent_floor",
        "_recent_positions",
        "_since_index_bytes",
        "base_offset",
        "checksum",
        "created_ms",
        "end_offset",
        "first_timestamp_ms",
        "index_bytes_max",
        "interval_bytes",
        "is_gone",
        "is_index_full",
        "is_pinned",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "size_bytes",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: TopicConfig, now_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.reconfigure(config)
        self._file: File | None = None
        self.size_bytes = 0
        self.end_offset = base_offset
        """Offset after the last batch; of a closed segment it may be the next segment's base offset."""
        self._index: SparseIndex | None = None
        self._is_index_written = False
        self._aborted: list[AbortedEntry] | None = None
        self._hints: dict[int, int] = {}
        self.is_gone = False
        """Removed or replaced: its file names may belong to another segment by now, so nothing is opened by name any
        more."""
        self.is_pinned = False
        """What is loaded must stay loaded: for a while its files do not have the names that they would be opened by."""
        self.checksum: int | None = None
        """CRC-32C of a closed segment's file, once computed."""
        self.forget_batches()

    def reconfigure(self, config: TopicConfig) -> None:
        self.interval_bytes = config.index_interval_bytes
        self.index_bytes_max = config.segment_index_bytes

    def forget_batches(self) -> None:
        """Resets to an empty index, for a file that is empty or about to be scanned from its start."""
        self._index = SparseIndex(self.base_offset)
        self._aborted = []
        self._is_index_written = False
        self._since_index_bytes = 0
        self.is_index_full = False
        self.size_bytes = 0
        self.end_offset = self.base_offset
        self.first_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = -1
        self._forget_places(self.base_offset)

    def _forget_places(self, floor: int) -> None:
        self._recent_ends = array("q")
        self._recent_positions = array("q")
        self._recent_floor = floor
        """End offset of the last batch that is not among the recent ones."""
        self._hints.clear()

    def path(self, kind: str) -> str:
        return f"{self._directory}/{names.segment_file_name(self.base_offset, kind)}"

    @property
    def is_loaded(self) -> bool:
        """Whether it holds anything that `release` would drop."""
        return self._file is not None or self._index is not None

    @property
    def file(self) -> File:
        if self._file is None:
            self._check_there()
            self._file = self._disk.open(self.path(names.LOG_SUFFIX))
        return self._file

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """Raises OSError if such a slice could not be read when it was to be sent."""
        file = self._file or self.file
        if file.unreadable is not None:
            raise file.unreadable
        return FileSlice(file, position, size_bytes)

    def _check_there(self) -> None:
        if self.is_gone:
            raise FileNotFoundError(errno.ENOENT, "the segment is gone", self.path(names.LOG_SUFFIX))

    def create(self) -> None:
        self._file = self._disk.open(self.path(names.LOG_SUFFIX), create=True)
        if self._file.size_bytes:
            self._file.truncate(0)

    # Appending

    def append(
        self,
        parts: Sequence[Buffer],
        size_bytes: int,
        last_offset: int,
        max_timestamp_ms: int,
    ) -> None:
        (self._file or self.file).append(parts)
        self.note(self.size_bytes, size_bytes, last_offset, max_timestamp_ms)

    def note(self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> None:
        """Records a batch that was just written at the end of the file."""
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._since_index_bytes > self.interval_bytes:
            index = self._index
            assert index is not None
            index.add(last_offset, position)
            index.add_time(self.max_timestamp_ms, self.max_timestamp_offset)
            self._since_index_bytes = 0
            self._is_index_written = False
            self._note_fullness(index)
        self._since_index_bytes += size_bytes
        self.size_bytes = position + size_bytes
        self.end_offset = last_offset + 1
        ends = self._recent_ends
        ends.append(last_offset + 1)
        self._recent_positions.append(position)
        if len(ends) > RECENT_MAX:
            kept = RECENT_MAX // 2
            self._recent_floor = ends[-kept - 1]
            del ends[:-kept], self._recent_positions[:-kept]

    def _note_fullness(self, index: SparseIndex) -> None:
        """As in Kafka, whose index files have a fixed size and reserve one time entry for the end."""
        offsets_max, times_max = (
            self.index_bytes_max // OFFSET_ENTRY_BYTES,
            self.index_bytes_max // TIME_ENTRY_BYTES - 1,
        )
        self.is_index_full = len(index.offsets) >= offsets_max or len(index.times) >= times_max

    def seal(self) -> None:
        """No more batches will be appended. A closed segment's last time entry is its largest timestamp."""
        index = self.index
        count = len(index.times)
        index.add_time(self.max_timestamp_ms, self.max_timestamp_offset)
        if len(index.times) > count:
            self._is_index_written = False

    # The index

    @property
    def index(self) -> SparseIndex:
        if self._index is None:
            self._load()
        assert self._index is not None
        return self._index

    def _load(self) -> None:
        """Loads a closed segment's index from its files, or from its batches where the files are missing or wrong."""
        self._check_there()
        index = SparseIndex(self.base_offset)
        offset_data = self._disk.read_file(self.path(names.OFFSET_INDEX_SUFFIX))
        time_data = self._disk.read_file(self.path(names.TIME_INDEX_SUFFIX))
        is_true = offset_data is not None and time_data is not None
        if is_true and index.load(offset_data or b"", time_data or b"", self.end_offset, self.size_bytes):
            is_true = bool(index.times) or not self._has_time()
        else:
            is_true = False
        if is_true:
            self._index, self._is_index_written = index, True
            if index.times:
                self.max_timestamp_ms, self.max_timestamp_offset = index.times[-1], index.time_offsets[-1]
            return
        self.rebuild_index()

    def _has_time(self) -> bool:
        """Whether the first batch has a timestamp; then an empty time index is one that was lost."""
        return any(head.max_timestamp_ms >= 0 for head in itertools.islice(self.heads(0), 1))

    def rebuild_index(self) -> None:
        """Scans the whole file. Headers are trusted: CRCs are checked by recovery and by readers of records."""
        end_offset, aborted = self.end_offset, self._aborted
        size_bytes = self.file.size_bytes
        self.forget_batches()
        walk = Walk(self.file, 0, size_bytes, check_crc=False, chunk_bytes=SCAN_BYTES)
        for head in walk:
            self.note(head.position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
        self.size_bytes, self.end_offset = size_bytes, end_offset
        if walk.fault is not None:
            self._index = None
            raise self.corrupt(walk.fault, walk.position)
        self._aborted = aborted
        self.seal()

    def load_end(self) -> str | None:
        """Finds the end of a segment whose files are trusted, from its last index entry on, so that it can be appended
        to. Returns what is wrong if its batches do not end where the file does."""
        size_bytes = self.file.size_bytes
        index = SparseIndex(self.base_offset)
        self._aborted = None
        offset_data = self._disk.read_file(self.path(names.OFFSET_INDEX_SUFFIX)) or b""
        time_data = self._disk.read_file(self.path(names.TIME_INDEX_SUFFIX)) or b""
        if index.load(offset_data, time_data, self.base_offset + INT32_MAX, size_bytes):
            position = index.positions[-1] if index.positions else 0
            count = len(index.offsets)
            if self._resume(index, position, size_bytes) is None:
                self._is_index_written = count == len(index.offsets)
                return None
        return self._resume(SparseIndex(self.base_offset), 0, size_bytes)

    def _resume(self, index: SparseIndex, position: int, size_bytes: int) -> str | None:
        aborted = self._aborted
        self.forget_batches()
        self._aborted = aborted
        self._index = index
        if index.positions:
            # The scan starts at this batch and adds its entry again.
            del index.offsets[-1], index.positions[-1]
            self._since_index_bytes = self.interval_bytes + 1
        if index.times:
            self.max_timestamp_ms, self.max_timestamp_offset = index.times[-1], index.time_offsets[-1]
        walk = Walk(self.file, position, size_bytes, check_crc=False, chunk_bytes=SCAN_BYTES)
        self._forget_places(NOWHERE if position else self.base_offset)
        for head in walk:
            if position and not self._recent_ends:
                self._recent_floor = head.base_offset
            if head.base_offset < self.end_offset:
                return f"offset {head.base_offset} comes again"
            self.note(head.position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
        for head in itertools.islice(self.heads(0), 1):
            self.first_timestamp_ms = head.max_timestamp_ms
        if walk.fault is None and index.time_offsets and index.time_offsets[-1] >= self.end_offset:
            return "the time index speaks of offsets past the end"
        return walk.fault

    def believe(self, size_bytes: int, end_offset: int) -> None:
        """A closed segment whose files are trusted: nothing is read before it is needed."""
        self.size_bytes, self.end_offset = size_bytes, end_offset
        self._is_index_written = True
        self.release()

    def pin(self) -> None:
        """Loads everything, and keeps it until `unpin`."""
        self.is_pinned = bool(self.file and self.index is not None and self.aborted is not None)

    def unpin(self) -> None:
        self.is_pinned = False

    def take_staged(self, file: File, index: SparseIndex, aborted: Sequence[AbortedEntry], end_offset: int) -> None:
        """Becomes a closed segment whose files are about to be renamed. It is pinned."""
        self._file, self._index, self._aborted = file, index, list(aborted)
        self._is_index_written = self.is_pinned = True
        self.size_bytes, self.end_offset = file.size_bytes, end_offset
        if index.times:
            self.max_timestamp_ms, self.max_timestamp_offset = index.times[-1], index.time_offsets[-1]
        self._forget_places(NOWHERE)

    def release(self) -> None:
        """Drops what can be read again: the file descriptor and the index. Not for the active segment."""
        if self.is_pinned:
            return
        self.close_file()
        if self._is_index_written:
            self._index = None
            self._aborted = None
            self._forget_places(NOWHERE)

    def close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def write_index(self) -> None:
        """Durable on return; called once the segment is sealed. Not atomic: recovery does not trust these files until a
        snapshot certifies the segment."""
        if self._is_index_written or self._index is None:
            return
        self._check_there()
        if self.size_bytes == 0 and not self._disk.exists(self.path(names.OFFSET_INDEX_SUFFIX)):
            return
        index = self._index
        await self._write(names.OFFSET_INDEX_SUFFIX, index.encode_offsets())
        await self._write(names.TIME_INDEX_SUFFIX, index.encode_times())
        aborted = self.aborted
        path = self.path(names.TRANSACTION_INDEX_SUFFIX)
        if aborted or self._disk.exists(path):
            await self._write(names.TRANSACTION_INDEX_SUFFIX, encode_aborted(aborted))
        self._is_index_written = self._index is index

    async def _write(self, kind: str, content: bytes) -> None:
        file = self._disk.open(self.path(kind), create=True)
        try:
            file.truncate(0)
            file.append([content])
            await file.flush()
        finally:
            file.close()

    # Aborted transactions

    @property
    def aborted(self) -> list[AbortedEntry]:
        if self._aborted is None:
            self._check_there()
            data = self._disk.read_file(self.path(names.TRANSACTION_INDEX_SUFFIX))
            self._aborted = _decode_aborted(data) if data else []
        return self._aborted

    def note_end(self, ended: EndedTransaction) -> None:
        """Adds a transaction whose marker was just written here to the transaction index, if it was aborted."""
        if ended.is_abort:
            self.aborted.append(
                AbortedEntry(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
            )
            self._is_index_written = False

    # Finding positions

    def position_of(self, offset: int) -> int:
        """Position of the first batch that ends above `offset`: the one that contains it, or the first after it; the
        end of the file if there is none. So it is also where the data below `offset` ends, in whole batches."""
        if offset >= self._recent_floor:
            at = bisect_right(self._recent_ends, offset)
            return self._recent_positions[at] if at < len(self._recent_ends) else self.size_bytes
        hint = self._hints.get(offset)
        if hint is not None:
            return hint
        for head in self.heads(self.index.position_before(offset)):
            if head.last_offset >= offset:
                return head.position
        return self.size_bytes

    def boundary(self, start: int, limit: int) -> tuple[int, int]:
        """The last position between `start`, where a batch begins, and `limit` at which a batch ends; and the offset at
        which reading continues from there."""
        positions = self._recent_positions
        if limit >= self.size_bytes:
            return self.size_bytes, self.end_offset
        if positions and start >= positions[0]:
            at = bisect_right(positions, limit) - 1
            return positions[at], self._recent_ends[at - 1] if at else self._recent_floor
        for head in self.heads(max(start, self.index.boundary_before(limit))):
            if head.position + head.size_bytes > limit:
                return head.position, head.base_offset
        return self.size_bytes, self.end_offset

    def batch_bytes(self, position: int) -> int:
        """Size of the batch at `position`."""
        positions = self._recent_positions
        if positions and position >= positions[0]:
            at = bisect_right(positions, position)
            return (positions[at] if at < len(positions) else self.size_bytes) - position
        return sum(head.size_bytes for head in itertools.islice(self.heads(position), 1))

    def remember(self, offset: int, position: int) -> None:
        """Keeps the position of `offset`, where a reader will continue."""
        if offset < self._recent_floor:
            hints = self._hints
            if len(hints) >= HINTS_MAX:
                del hints[next(iter(hints))]
            hints[offset] = position

    def heads(self, position: int, chunk_bytes: int = LOOKUP_BYTES) -> Iterator[Head]:
        """Raises CorruptLogError where there is no batch, or one out of place: going on would skip what is there."""
        walk = Walk(self.file, position, self.size_bytes, check_crc=False, chunk_bytes=chunk_bytes)
        due, end_offset = self.base_offset, self.end_offset
        for head in walk:
            if not due <= head.base_offset <= head.last_offset < end_offset:
                raise self.out_of_place(head.base_offset, head.last_offset, due, end_offset, head.position)
            due = head.last_offset + 1
            yield head
        if walk.fault is not None:
            raise self.corrupt(walk.fault, walk.position)

    def out_of_place(
        self, base_offset: int, last_offset: int, due: int, end_offset: int, position: int
    ) -> CorruptLogError:
        what = f"a batch of offsets {base_offset} to {last_offset} stands where {due} to {end_offset - 1} are due"
        return self.corrupt(what, position)

    def corrupt(self, what: str, position: int) -> CorruptLogError:
        place = f"{self.path(names.LOG_SUFFIX)} at byte {position}"
        return CorruptLogError(what, place, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)

    def newest_below(self, offset: int) -> tuple[int, int]:
        """The largest batch timestamp below `offset`, and the last offset of the first batch that has it."""
        index = self.index
        if offset >= self.end_offset:
            return self.max_timestamp_ms, self.max_timestamp_offset
        newest, newest_offset = index.newest_time_below(offset)
        for head in self.heads(index.position_before(max(newest_offset, self.base_offset))):
            if head.last_offset >= offset:
                break
            if head.max_timestamp_ms > newest:
                newest, newest_offset = head.max_timestamp_ms, head.last_offset
        return newest, newest_offset

    def newest_ms(self) -> int:
        """The timestamp that retention uses. If no batch has one, the creation time of the segment, as far as known."""
        if self.max_timestamp_ms < 0 and self._index is None:
            self._read_newest()
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.created_ms

    def first_ms(self) -> int:
        """The first batch's max timestamp, by which compaction measures how long records have waited."""
        if self.first_timestamp_ms < 0 and self.size_bytes:
            self.first_timestamp_ms = next(self.heads(0)).max_timestamp_ms
        return self.first_timestamp_ms

    def _read_newest(self) -> None:
        """Reads only the last entry of the time index."""
        path = self.path(names.TIME_INDEX_SUFFIX)
        if self._disk.exists(path):
            file = self._disk.open(path)
            data = file.read(max(0, file.size_bytes - TIME_ENTRY_BYTES), TIME_ENTRY_BYTES)
            file.close()
            timestamp_ms, relative = TIME_ENTRY.unpack(data) if len(data) == TIME_ENTRY_BYTES else (0, 0)
            if timestamp_ms > 0 and 0 <= relative < self.end_offset - self.base_offset:
                self.max_timestamp_ms, self.max_timestamp_offset = timestamp_ms, relative + self.base_offset
                return
        self._load()

    # Truncating

    def cut(self, offset: int) -> None:
        """Keeps whole batches below `offset`, and is ready to be appended to."""
        position = self.position_of(offset)
        index = self.index
        aborted = [entry for entry in self.aborted if entry.last_offset < offset]
        index.cut(offset, position)
        self.checksum = None
        self.file.truncate(position)
        self._aborted = aborted
        resumed = index.positions[-1] if index.positions else 0
        fault = self._resume(index, resumed, position)
        assert fault is None, fault

    def remove(self) -> None:
        self.close_file()
        self.is_gone = True
        for kind in (
            names.TRANSACTION_INDEX_SUFFIX,
            names.TIME_INDEX_SUFFIX,
            names.OFFSET_INDEX_SUFFIX,
            names.LOG_SUFFIX,
        ):
            self._disk.remove(self.path(kind))


# `indexes` imports NumPy, which takes a tenth of a second: a broker without transactions starts without it.


def encode_aborted(aborted: Sequence[AbortedEntry]) -> bytes:
    if not aborted:
        return b""
    from sexton.records import indexes

    columns = [list(column) for column in zip(*aborted, strict=True)]
    return indexes.encode(indexes.make_transaction_entries(*columns))


def _decode_aborted(data: bytes) -> list[AbortedEntry]:
    from sexton.records import indexes

    return [AbortedEntry(*map(int, tuple(entry)[1:])) for entry in indexes.decode_transaction_index(data)]
