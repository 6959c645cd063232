"""The operations that wait for the disk: flushing, truncating, moving the log start, epochs, closing.

One runs at a time. Appends go on meanwhile, so each operation reads the state that it needs before it waits, and
changes the state in memory without waiting in between.

The order of steps allows a crash between any two of them (see `recovery`): a producer snapshot is durably removed
before the records that it certifies, and written after them. A truncation removes segments from the end backwards, a
move of the log start from the start forwards, so that a crash always leaves a log.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right
from collections.abc import Awaitable, Sequence

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.log import flushed
from sexton.log.producers import ProducerStates
from sexton.log.recovery import snapshot_offsets, snapshot_path, start_offset_path
from sexton.log.replay import replay
from sexton.log.segment import Segment
from sexton.log.state import UNKNOWN_TIME_MS, LogState
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import names
from sexton.records.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    encode_leader_epochs,
    encode_offset_checkpoint,
)
from sexton.records.producer_snapshot import ProducerEntry, decode_producer_snapshot
from sexton.settings.schema import DAY_MS
from sexton.types import OFFSET_MAX


class Changing(LogState):
    # Flushing

    async def flush(self) -> None:
        """On return, everything appended before the call survives a crash. Callers may overlap: one flush runs at a
        time, and the next covers all callers that wait."""
        self._check_usable()
        if not self.needs_flush:
            return
        loop = asyncio.get_running_loop()
        flushed: asyncio.Future[None] = loop.create_future()
        self._waiting.append(flushed)
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush_for_all())
        await flushed

    async def _flush_for_all(self) -> None:
        """A task of its own, so that a cancelled caller does not cancel the flush of the others."""
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                error = await self._flush_once()
                for flushed in waiting:
                    if not flushed.done():
                        if error is None:
                            flushed.set_result(None)
                        else:
                            flushed.set_exception(error)
        except Exception as bug:
            for flushed in waiting:
                if not flushed.done():
                    flushed.set_exception(bug)
            raise
        finally:
            self._flusher = None
            for flushed in (*waiting, *self._waiting):
                flushed.cancel()

    async def _flush_once(self) -> KafkaError | None:
        async with self._one_at_a_time:
            try:
                await self._flush_all()
            except KafkaError as unusable:
                return unusable
            except OSError as error:
                return self._storage_error(error)
            return None

    async def _flush_all(self) -> None:
        """Checks first that no flush has failed while the caller waited: the next flush may succeed without the pages
        that were lost."""
        self._check_usable()
        end_offset, active = self.end_offset, self._active
        for sealed in list(self._sealed):
            await self._on_device(sealed.segment.file.flush())
            await sealed.segment.write_index()
            await self._disk.replace_file(snapshot_path(self.directory, sealed.next_base_offset), sealed.snapshot)
            self._sealed.remove(sealed)
            self._keep_open(sealed.segment)
            self.flushed_offset = max(self.flushed_offset, min(end_offset, sealed.next_base_offset))
        if self.flushed_offset < end_offset:
            await self._on_device(active.file.flush())
            self.flushed_offset = end_offset

    async def _on_device(self, flush: Awaitable[None]) -> None:
        """After a failed flush it is unknown what the device holds, whatever error it returned: the log has failed."""
        try:
            await flush
        except OSError as error:
            self.failure = error
            flushed.distrust(self._disk, self.directory)
            raise

    async def mark_as_unflushed(self) -> None:
        """From here on the log may acknowledge unflushed records (`log.flushed`). Waits for a running flush, because
        one that fails must be able to invalidate the mark."""
        async with self._one_at_a_time:
            self._check_usable()
            await flushed.mark(self._disk, self.directory, is_whole=True)

    # Log end

    async def truncate_to(self, offset: int) -> None:
        """Keeps whole batches below `offset`. Below the log start nothing can be kept: the log is emptied and starts
        there."""
        if offset < self.start_offset:
            await self.restart_at(offset)
            return
        async with self._shape, self._one_at_a_time:
            self._check_usable()
            if offset >= self.end_offset:
                return
            try:
                await self._vouch_below(offset)
                await self._remove_snapshots_above(offset)
                self._cut_segments(offset)
                self._reload_producers()
                epochs_changed = self.epochs.cut_end(offset)
                await self._on_device(self._active.file.flush())
                await self._disk.flush_directory(self.directory)
                if epochs_changed:
                    await self._write_epochs()
            except OSError as error:
                raise self._storage_error(error) from error
            if not self._sealed:
                self.flushed_offset = self.end_offset

    async def _vouch_below(self, offset: int) -> None:
        """Writes a snapshot below the cut before those above are removed. Earlier snapshots may have been removed by a
        swap, and without any, recovery cannot know that the records before a gap between two segments were flushed (see
        `recovery`)."""
        index = max(0, bisect_right(self._segments, offset, key=lambda one: one.base_offset) - 1)
        base_offset = self._segments[index].base_offset
        known = snapshot_offsets(self._disk, self.directory)
        if index == 0 or base_offset > self.flushed_offset or any(base_offset <= one <= offset for one in known):
            return
        producers = ProducerStates(self._place, DAY_MS)
        replay(producers, self._segments[:index], *self._newest_snapshot(base_offset), now_ms=-1)
        await self._disk.replace_file(snapshot_path(self.directory, base_offset), producers.encode())

    def _cut_segments(self, offset: int) -> None:
        for segment in reversed(self._segments[1:]):
            if segment.base_offset <= offset:
                break  # a segment that begins there stays, empty: it shows that nothing lies just below
            self._segments.pop()
            self._forget(segment)
            segment.remove()
        if self._active is not self._segments[-1]:
            self.reopened_count += 1
        active = self._active = self._segments[-1]
        self._sealed = [sealed for sealed in self._sealed if sealed.segment is not active]
        self._read_lately.pop(active.base_offset, None)
        active.cut(offset)
        active.reconfigure(self.config)
        self.end_offset = max(active.end_offset, self.start_offset)
        self.flushed_offset = min(self.flushed_offset, self.end_offset)

    def _forget(self, segment: Segment) -> None:
        self._read_lately.pop(segment.base_offset, None)
        self._sealed = [sealed for sealed in self._sealed if sealed.segment is not segment]

    async def _remove_snapshots_above(self, offset: int) -> None:
        doomed = [one for one in snapshot_offsets(self._disk, self.directory) if one > offset]
        for one in reversed(doomed):
            self._disk.remove(snapshot_path(self.directory, one))
        if doomed:
            await self._disk.flush_directory(self.directory)

    def _reload_producers(self) -> None:
        """Reloads from the newest snapshot left and the batches after it. No producer expires here."""
        snapshot_offset, entries = self._newest_snapshot(OFFSET_MAX)
        replay(self.producers, self._segments, snapshot_offset, entries, now_ms=-1)

    def _newest_snapshot(self, limit: int) -> tuple[int, tuple[ProducerEntry, ...]]:
        first = self._segments[0].base_offset
        for offset in reversed(snapshot_offsets(self._disk, self.directory)):
            if offset > limit:
                continue
            if offset < first:
                break
            path = snapshot_path(self.directory, offset)
            try:
                return offset, decode_producer_snapshot(self._disk.read_file(path) or b"", path)
            except (CorruptLogError, UnsupportedFormatError):
                continue
        return first, ()

    async def restart_at(self, offset: int) -> None:
        """Discards everything, epoch history included, and starts an empty log at `offset`."""
        async with self._shape, self._one_at_a_time:
            self.check_not_deleted()
            try:
                await self._remove_snapshots_above(-1)
                await self._write_start(offset)
                for segment in reversed(self._segments):
                    self._forget(segment)
                    segment.remove()
                segment = Segment(self._disk, self.directory, offset, self.config, UNKNOWN_TIME_MS)
                segment.create()
                self._segments, self._sealed, self._active = [segment], [], segment
                self.reopened_count += 1
                self.start_offset = self.end_offset = self.flushed_offset = offset
                self.producers.clear()
                self.epochs.replace(())
                await self._disk.flush_directory(self.directory)
                await self._write_epochs()
            except OSError as error:
                raise self._storage_error(error) from error

    # Log start

    async def advance_start(self, offset: int) -> None:
        """Moves the log start, durably, before it removes the segments that lie below it as a whole, the active one
        too."""
        async with self._shape, self._one_at_a_time:
            self.check_not_deleted()
            if offset <= self.start_offset:
                return
            if offset > self.end_offset:
                raise KafkaError(
                    ErrorCode.offset_out_of_range, f"{self._place}: {offset} is past the log's end {self.end_offset}"
                )
            try:
                if offset >= self.end_offset and self._active.size_bytes:
                    self._roll(self.end_offset, UNKNOWN_TIME_MS)
                if self._sealed or self.flushed_offset < offset:
                    await self._flush_all()  # snapshots first: producers outlive their records
                await self._write_start(offset)
                self.start_offset = offset
                self._drop_segments_below(offset)
                if self.epochs.cut_start(offset):
                    await self._write_epochs()
            except OSError as error:
                raise self._storage_error(error) from error

    def _drop_segments_below(self, offset: int) -> None:
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
            segment = self._segments.pop(0)
            self._forget(segment)
            segment.remove()
        first = self._segments[0].base_offset
        for snapshot in snapshot_offsets(self._disk, self.directory):
            if snapshot < first:
                self._disk.remove(snapshot_path(self.directory, snapshot))

    async def _write_start(self, offset: int) -> None:
        content = encode_offset_checkpoint({(self.topic, self.partition): offset})
        await self._disk.replace_file(start_offset_path(self.directory), content)

    # Epochs

    async def begin_epoch(self, leader_epoch: int) -> None:
        """Starts a leader epoch at the log end. Durable on return."""
        async with self._one_at_a_time:
            self.check_not_deleted()
            before = self.epochs.entries
            if self.epochs.begin(leader_epoch, self.end_offset):
                await self._write_epochs_or(before)

    async def replace_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Replaces the history by the leader's. Durable on return."""
        async with self._one_at_a_time:
            self.check_not_deleted()
            before = self.epochs.entries
            if tuple(entries) != before:
                self.epochs.replace(entries)
                await self._write_epochs_or(before)

    async def _write_epochs_or(self, before: Sequence[EpochEntry]) -> None:
        try:
            await self._write_epochs()
        except OSError as error:
            self.epochs.replace(before)
            raise self._storage_error(error) from error

    async def _write_epochs(self) -> None:
        content = encode_leader_epochs(self.epochs.entries)
        await self._disk.replace_file(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", content)

    # Closing and deleting

    async def close(self) -> None:
        """Flushes, and leaves the directory as Kafka expects it after a clean shutdown: with indexes, and a snapshot at
        the log end. A log that has failed is left as it is."""
        if self.failure is None:
            async with self._shape, self._one_at_a_time:
                self.check_not_deleted()
                try:
                    await self._flush_all()
                    self._active.seal()
                    for segment in self._segments:  # an index that was lost is written again
                        await segment.write_index()
                    await self._write_last_snapshot()
                except OSError as error:
                    raise self._storage_error(error) from error
        for segment in self._segments:
            segment.close_file()

    async def _write_last_snapshot(self) -> None:
        """Unless the snapshot exists, or the log is new and without producers, so that it would say nothing."""
        path = snapshot_path(self.directory, self.end_offset)
        is_new = self.end_offset == self._segments[0].base_offset and not len(self.producers)
        if not is_new and not self._disk.exists(path):
            await self._disk.replace_file(path, self.producers.encode())

    async def delete(self) -> None:
        """Renames the directory first, in one step, so that a crash leaves either a complete log or one that is to be
        deleted. The next log of this name may be created as soon as this returns, while others still wait for this
        log's locks."""
        async with self._shape, self._one_at_a_time:
            self.is_deleted = True
            for segment in self._segments:
                segment.close_file()
                segment.is_gone = True
            parent = self.directory.rpartition("/")[0]
            unique_id = uuid.uuid5(self.topic_id, str(self.partition)).hex
            doomed = f"{parent}/{name_of_deleted(self.topic, self.partition, unique_id)}"
            try:
                self._disk.remove_tree(doomed)
                self._disk.rename(self.directory, doomed)
                await self._disk.flush_directory(parent)
                self._disk.remove_tree(doomed)
            except OSError as error:
                raise self._storage_error(error) from error


def name_of_deleted(topic: str, partition: int, unique_id: str) -> str:
    """Kafka's name for a deleted partition's directory, with the topic truncated if the name would be too long."""
    for length in range(len(topic), 0, -1):
        name = names.PartitionDir(topic[:length], partition, names.DirState.DELETE, unique_id).name
        if len(name) <= names.DIR_NAME_LENGTH_MAX:
            return name
    raise ValueError(f"no name is short enough for {topic!r}")
