"""Opens a log from its files: what was flushed is trusted, what may be torn is scanned and truncated.

The directory itself says how far it was flushed. A producer snapshot at offset S is written only after everything below
S is on disk, indexes included, and always when a segment is closed and the next has begun. So after a crash the newest
snapshot is a *certificate*, by its name alone: segments that end at or below it are trusted as they are, the rest is
scanned batch by batch with its CRC. If its producer state cannot be read, the snapshot is rebuilt. (After a clean
shutdown, which leaves a snapshot at the log end, only the last few kilobytes are scanned.) Three things can be wrong
with what is scanned:

- There is something that is not a batch. That is how an unfinished write looks, and valid batches may follow, because
  pages reach the device in any order: the log is truncated there. But not below the certificate, nor below the *flushed
  point*, a later lower bound that the broker keeps for all its logs (see `flushed`): there it is damage, an error that
  names the position. Between that point and the end of the last flush the two cannot be told apart. So where valid
  batches are cut off, or an invalid one that is there in its full length, the log is *doubtful*, durably so, until its
  broker has let the other replicas, if there are any, decide what was acknowledged (docs/decisions, 15).
- A segment does not begin where the one before ends, and lies above what is known to have been flushed. Then what is
  missing was never flushed, so neither was what follows: it is removed. Below that, the gap is what compaction left.
- The certificate lies beyond the log end: records that were on disk are gone. An error.

A Kafka broker writes its snapshots at the same offsets but does not flush first, so a directory of a broker that lost
power should be recovered by Kafka before it is used here.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from bisect import insort
from dataclasses import dataclass, field

from sexton.compaction.swap import SwapRecovery
from sexton.errors import CorruptLogError, SextonError, UnsupportedFormatError
from sexton.log import flushed, swap_disk
from sexton.log.batches import SCAN_BYTES, Walk, find_batch
from sexton.log.epochs import EpochHistory
from sexton.log.flushed import FlushedPoint
from sexton.log.producers import ProducerStates
from sexton.log.replay import note_found, replay
from sexton.log.segment import Segment
from sexton.log.snapshots import Snapshots
from sexton.ports.disk import Disk
from sexton.records import names
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH
from sexton.records.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    EpochEntry,
    decode_leader_epochs,
    decode_offset_checkpoint,
    encode_leader_epochs,
)
from sexton.records.header import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    OLDEST_LENGTH_MIN,
    magic_at,
    size_at,
)
from sexton.records.producer_snapshot import ProducerEntry
from sexton.settings.topic import TopicConfig
from sexton.types import OFFSET_MAX

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIX = ".tmp"


@dataclass(slots=True)
class Recovered:
    segments: list[Segment]
    producers: ProducerStates
    epochs: EpochHistory
    start_offset: int
    end_offset: int
    is_doubtful: bool = False


@dataclass(slots=True)
class Recovery:
    """Recovery of one partition directory. `run` does it."""

    disk: Disk
    directory: str
    topic: str
    partition: int
    config: TopicConfig
    now_ms: int
    stopped_cleanly: bool
    producers: ProducerStates
    start_offset: int = 0
    flushed_point: FlushedPoint | None = None
    keeps_its_start: bool = False
    """Whether the log start is beside the log if it was ever moved, as it is of all logs that a broker has made."""
    snapshots: list[int] = field(default_factory=list)
    """Offsets of the producer snapshots found, rising."""
    unreadable: set[int] = field(default_factory=set)
    """Offsets of the snapshots whose contents cannot be read."""
    segments: list[Segment] = field(default_factory=list)
    walked: list[Segment] = field(default_factory=list)
    new_snapshots: dict[int, bytes] = field(default_factory=dict)
    torn: Segment | None = None
    """The segment to be truncated: its file holds more than the batches that are kept."""
    doomed: list[Segment] = field(default_factory=list)
    is_doubtful: bool = False
    """True if something is cut off of which it is unknown whether it was flushed."""

    async def run(self) -> Recovered:
        found = await self._look_around()
        if LOG_START_OFFSET_CHECKPOINT in found:
            stored = read_start_offset(self.disk, self.directory, self.topic, self.partition)
            self.start_offset = max(self.start_offset, stored)
        is_new = not self.segments
        if is_new:
            segment = Segment(self.disk, self.directory, self.start_offset, self.config, self.now_ms)
            segment.create()
            self.segments.append(segment)
        self._check_first()
        certified = max([self.segments[0].base_offset, *self.snapshots])
        snapshot, entries = self._newest_snapshot(OFFSET_MAX)
        is_believed = self.stopped_cleanly or is_new
        if is_believed:
            self._believe_all()
        else:
            await self._read_back(certified)
            self._walk_from(certified, max(certified, self._flushed_bound()))
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        end_offset = self._end_of(self.segments[-1])
        if certified > end_offset:
            raise CorruptLogError(
                f"records up to offset {certified} were flushed, but the log ends at {end_offset}",
                self.directory,
                f"{WHAT_TO_DO_WITH_A_CORRUPT_BATCH}. If losing them is acceptable, remove the "
                f"{names.producer_snapshot_file_name(certified)} file",
            )
        if is_believed:
            replay(self.producers, self.segments, snapshot, entries, self.now_ms)
        await self._cut()
        await self._make_durable(is_new)
        await self._remove_unreadable(end_offset)
        await self._drop_below_start(end_offset)
        self._remove_stray_snapshots()
        epochs = await self._read_epochs(end_offset)
        return Recovered(
            segments=self.segments,
            producers=self.producers,
            epochs=epochs,
            start_offset=self.start_offset,
            end_offset=end_offset,
            is_doubtful=self.is_doubtful,
        )

    @property
    def _history_path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"

    @property
    def _snapshot_files(self) -> Snapshots:
        return Snapshots(self.disk, self.directory)

    def _end_of(self, segment: Segment) -> int:
        """A log never ends below its start, even if what lay in between was never flushed."""
        return max(segment.end_offset, self.start_offset)

    # Files

    async def _look_around(self) -> list[str]:
        """Finds segments and snapshots, and removes files that do not belong to the log. Returns all names, from a
        single listing of the directory: a broker has a thousand of them to open before it serves."""
        listed = self.disk.list(self.directory)
        if not swap_disk.has_no_swap_in_progress(listed):
            await self._finish_swap()
            listed = self.disk.list(self.directory)
        with_log = {name.removesuffix(names.LOG_SUFFIX) for name in listed if name.endswith(names.LOG_SUFFIX)}
        for name in listed:
            parsed = names.parse_segment_file(name)
            if name.endswith(TEMPORARY_SUFFIX):
                self.disk.remove(f"{self.directory}/{name}")
            elif parsed is None or parsed.state:
                continue
            elif parsed.kind == names.LOG_SUFFIX:
                segment = Segment(self.disk, self.directory, parsed.base_offset, self.config, self.now_ms)
                self.segments.append(segment)
            elif parsed.kind == names.PRODUCER_SNAPSHOT_SUFFIX:
                self.snapshots.append(parsed.base_offset)
            elif name.partition(".")[0] not in with_log:
                self.disk.remove(f"{self.directory}/{name}")
        return listed

    async def _finish_swap(self) -> None:
        """Runs first: until then the file names do not say which segments the log has."""
        outcome = await swap_disk.recover(self.disk, self.directory)
        swap_disk.remove_staged(self.disk, self.directory)
        if outcome is not SwapRecovery.NOTHING:
            logger.info("%s: a swap of compacted segments was interrupted; %s", self.directory, outcome.value)

    def _check_first(self) -> None:
        """The start is durable before any segment is removed. A log that began at its first segment, whatever that is,
        would have other replicas drop, too, what this one has lost."""
        first = self.segments[0]
        if self.keeps_its_start and first.base_offset > self.start_offset:
            raise CorruptLogError(
                f"the log starts at offset {self.start_offset}, but its first segment at {first.base_offset}: "
                "what lies between is missing",
                first.path(names.LOG_SUFFIX),
                WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
            )

    def _remove_snapshot(self, offset: int) -> None:
        self.snapshots.remove(offset)
        self._snapshot_files.remove(offset)

    async def _write_snapshot(self, offset: int, content: bytes) -> None:
        await self._snapshot_files.write(offset, content)
        self.unreadable.discard(offset)
        if offset not in self.snapshots:
            insort(self.snapshots, offset)

    def _newest_snapshot(self, limit: int) -> tuple[int, tuple[ProducerEntry, ...]]:
        """Offset and contents of the newest readable snapshot at or below `limit`; the log's first offset if there is
        none. Unreadable ones are removed in the end, as in Kafka: an older one and the log give the same producer
        state. A snapshot from before the first segment does not count: the records after it are gone."""
        for offset in reversed(self.snapshots):
            if self.segments[0].base_offset <= offset <= limit and offset not in self.unreadable:
                try:
                    return offset, self._snapshot_files.read(offset)
                except (CorruptLogError, UnsupportedFormatError) as error:
                    logger.warning("%s; rebuilding it", error)
                    self.unreadable.add(offset)
        return self.segments[0].base_offset, ()

    # Trusting

    def _believe_all(self) -> None:
        last = self.segments[-1]
        self._believe(self.segments)
        fault = last.load_end()
        if fault is not None:
            raise CorruptLogError(
                f"{fault}, although the log was closed cleanly",
                f"{last.path(names.LOG_SUFFIX)} at byte {last.size_bytes}",
                WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
            )

    def _believe(self, segments: list[Segment]) -> None:
        """Trusts all segments but the last."""
        for segment, after in itertools.pairwise(segments):
            segment.believe(segment.file.size_bytes, after.base_offset)

    # Scanning

    async def _read_back(self, certified: int) -> None:
        """Makes sure that the scan sees what the device holds: a flush may have failed in the previous process, and the
        page cache may still show what could not be written."""
        for segment in self.segments[self._first_to_walk(certified) :]:
            await segment.file.read_back()

    def _first_to_walk(self, certified: int) -> int:
        return max((index for index, one in enumerate(self.segments) if one.base_offset <= certified), default=0)

    def _flushed_bound(self) -> int:
        data = self.disk.read_file(self._history_path)
        if self.flushed_point is None or not data:
            return 0
        return self.flushed_point.bound(decode_leader_epochs(data, self._history_path))

    def _walk_from(self, certified: int, flushed_offset: int) -> None:
        first = self._first_to_walk(certified)
        self._believe(self.segments[: first + 1])
        base_offset = self.segments[first].base_offset
        snapshot, entries = self._newest_snapshot(base_offset)
        replay(self.producers, self.segments[:first], snapshot, entries, self.now_ms)
        if base_offset in self.unreadable:
            self.new_snapshots[base_offset] = self.producers.encode()
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            is_next = index == first or self.segments[index - 1].end_offset == segment.base_offset
            if not is_next and segment.base_offset > flushed_offset:
                self._drop_from(index, "it does not begin where the segment before it ends")
                return
            if index > first:
                self.new_snapshots[segment.base_offset] = self.producers.encode()
            self.walked.append(segment)
            if self._walk(segment, certified, flushed_offset):
                if index + 1 < len(self.segments):
                    self._drop_from(index + 1, "the segment before it is torn")
                return

    def _walk(self, segment: Segment, certified: int, flushed_offset: int) -> bool:
        """Scans a segment. Returns True if it is torn and must be truncated."""
        file = segment.file
        size_bytes = file.size_bytes
        segment.forget_batches()
        walk = Walk(file, 0, size_bytes, check_crc=True, chunk_bytes=SCAN_BYTES)
        fault = None
        for head in walk:
            if head.base_offset < segment.end_offset:
                fault = f"offset {head.base_offset} comes again"
                break
            segment.note(head.position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
            ended = note_found(self.producers, segment, head)
            if ended is not None:
                segment.note_end(ended)
        fault = fault or walk.fault
        if fault is None and self._end_of(segment) < certified:
            fault = "the file ends"
        if fault is None:
            return False
        self._check_unflushed(segment, fault, flushed_offset)
        self._check_rest(segment, size_bytes, fault)
        logger.warning(
            "%s: %s at byte %d; truncating %d bytes of an unfinished write",
            file.path,
            fault,
            segment.size_bytes,
            size_bytes - segment.size_bytes,
        )
        self.torn = segment
        return True

    def _check_unflushed(self, segment: Segment, fault: str, flushed_offset: int) -> None:
        """Raises CorruptLogError if the damage is below what was flushed: that must not be truncated."""
        if self._end_of(segment) < flushed_offset:
            raise CorruptLogError(
                f"{fault}, below offset {flushed_offset}, up to which the log was flushed",
                _place(segment),
                WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
            )

    def _check_rest(self, segment: Segment, size_bytes: int, fault: str) -> None:
        position = segment.size_bytes
        rest = segment.file.read(position, size_bytes - position)
        if _is_old_format(rest):
            raise UnsupportedFormatError(
                f"message format v{magic_at(rest)} (before Kafka 0.11) is not supported",
                _place(segment),
                "Let a Kafka 3.x broker rewrite the topic, then try again",
            )
        found = find_batch(rest, 1, segment.end_offset - 1)
        if found is not None:
            self._doubt(segment, f"{fault}, and valid batches follow from byte {position + found} on")
        elif _was_whole(rest):
            self._doubt(segment, f"{fault}, and the batch has its full length")

    def _doubt(self, segment: Segment, what: str) -> None:
        """What is cut off may be pages of an unflushed write that were written out of order, or records that were
        acknowledged."""
        logger.warning("%s: %s", _place(segment), what)
        self.is_doubtful = True

    def _drop_from(self, index: int, why: str) -> None:
        for segment in self.segments[index:]:
            logger.warning("%s was never flushed, removing it: %s", segment.path(names.LOG_SUFFIX), why)
        self.doomed = self.segments[index:]
        del self.segments[index:]

    async def _cut(self) -> None:
        """Runs after everything was checked. The mark first: once the log is truncated, nothing else shows the doubt.
        Segments from the highest down: whatever part of this a crash undoes, the rest is in order."""
        if self.is_doubtful:
            await flushed.mark(self.disk, self.directory, is_whole=False)
        for segment in reversed(self.doomed):
            segment.remove()
        if self.torn is not None:
            self.torn.file.truncate(self.torn.size_bytes)

    # Afterwards

    async def _make_durable(self, is_new: bool) -> None:
        """Flushes what was scanned: it survived a crash of the process, but perhaps would not survive one of the
        machine."""
        *_, active = self.segments
        for segment in self.walked:
            await segment.file.flush()
            if segment is not active:
                segment.seal()
                await segment.write_index()
        if self.walked or is_new:
            await self.disk.flush_directory(self.directory)
        for offset, content in self.new_snapshots.items():
            is_there = offset in self.snapshots and offset not in self.unreadable
            if not is_there and offset <= active.base_offset:
                await self._write_snapshot(offset, content)

    async def _remove_unreadable(self, end_offset: int) -> None:
        """Removes unreadable snapshots; the newest only after another that certifies as much is written."""
        if self.unreadable and self.snapshots[-1] in self.unreadable:
            await self._write_snapshot(end_offset, self.producers.encode())
        for offset in self.unreadable:
            self._remove_snapshot(offset)

    async def _drop_below_start(self, end_offset: int) -> None:
        """Removes segments below the log start that a crash left behind. The state of their producers is kept."""
        first = max(i for i, segment in enumerate(self.segments) if i == 0 or segment.base_offset <= self.start_offset)
        if first == 0:
            return
        if max(self.snapshots, default=-1) < self.segments[first].base_offset:
            await self._write_snapshot(end_offset, self.producers.encode())
        for segment in self.segments[:first]:
            segment.remove()
        del self.segments[:first]

    def _remove_stray_snapshots(self) -> None:
        """Removes snapshots at whose offset no segment begins, except the newest, which is the current producer
        state."""
        bases = {segment.base_offset for segment in self.segments}
        offsets = self.snapshots.copy()
        for offset in offsets:
            if offset not in bases and (offset != offsets[-1] or offset < self.segments[0].base_offset):
                self._remove_snapshot(offset)

    async def _read_epochs(self, end_offset: int) -> EpochHistory:
        """Entries beyond the log end are removed from the file too: they would come back once the log has grown past
        them."""
        path = self._history_path
        data = self.disk.read_file(path)
        if not data:
            kept = found = self._epochs_of_batches()
        else:
            found = list(decode_leader_epochs(data, path))
            kept = [entry for entry in found if entry.start_offset <= end_offset]
        if kept and (not data or kept != found):
            await self.disk.replace_file(path, encode_leader_epochs(kept))
        return EpochHistory(kept)

    def _epochs_of_batches(self) -> list[EpochEntry]:
        """Derives a history from batches, for a directory that never had one."""
        entries: list[EpochEntry] = []
        for segment in self.segments:
            for head in segment.heads(0, SCAN_BYTES):
                if head.leader_epoch >= 0 and (not entries or head.leader_epoch > entries[-1].epoch):
                    entries.append(EpochEntry(head.leader_epoch, head.base_offset))
        return entries


def _place(segment: Segment) -> str:
    return f"{segment.path(names.LOG_SUFFIX)} at byte {segment.size_bytes}"


def _was_whole(rest: bytes) -> bool:
    """Whether an invalid batch is there in its full length. An unfinished write is cut off, or leaves only zeros; here
    a page in the middle is missing, or what was flushed has been damaged since."""
    if len(rest) < HEADER_BYTES or not any(rest):
        return False
    return size_at(rest) <= len(rest)


def _is_old_format(rest: bytes) -> bool:
    """Whether it begins with a complete message of format 0 or 1, by its own checksum."""
    if len(rest) < LOG_OVERHEAD_BYTES + OLDEST_LENGTH_MIN or magic_at(rest) not in (0, 1):
        return False
    end = size_at(rest)
    crc = int.from_bytes(rest[LOG_OVERHEAD_BYTES:MAGIC_POSITION], "big")
    return LOG_OVERHEAD_BYTES + OLDEST_LENGTH_MIN <= end <= len(rest) and zlib.crc32(rest[MAGIC_POSITION:end]) == crc


# ---- small files ----


def start_offset_path(directory: str) -> str:
    """The log start, in Kafka's format, but beside the log, to be durable with it; Kafka keeps one file for all
    partitions."""
    return f"{directory}/{LOG_START_OFFSET_CHECKPOINT}"


def read_start_offset(disk: Disk, directory: str, topic: str, partition: int) -> int:
    path = start_offset_path(directory)
    try:
        return decode_offset_checkpoint(disk.read_file(path) or b"", path).get((topic, partition), 0)
    except SextonError as error:
        raise CorruptLogError(
            f"the log's start cannot be read ({error.what})",
            path,
            "Remove the file: the log starts at its first segment",
        ) from error
