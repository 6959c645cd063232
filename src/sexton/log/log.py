"""One partition's log.

A log is a list of segments (`segments`), of which the last is appended to. Appends and reads reach the page cache and
return at once; `flush` waits for the device. Whatever must be durable in a certain order happens in coroutines, one at
a time (`locks`), and that order allows a crash between any two steps (see `recovery`): a producer snapshot is durably
removed before the records that it certifies, and written after them; the log start is durable before old segments are
removed. A truncation removes segments from the end backwards, a move of the log start from the start forwards, so that
a crash always leaves a log.

Batches are written as received, except for what a leader sets: base offset and leader epoch, which the CRC does not
cover, and with LogAppendTime the timestamp, after which the CRC is computed again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from sexton.compaction import retention
from sexton.compaction.acceptance import SwapTerms
from sexton.compaction.contract import Committed, NewSegment
from sexton.compaction.eligibility import SegmentSummary
from sexton.errors import CorruptLogError
from sexton.log import flushed, reading
from sexton.log.checks import (
    OWN_BATCH_BYTES_MAX,
    Rules,
    check_client_batch,
    check_copied,
    check_frame,
    check_marker,
    check_producer,
    check_time,
    note_producer,
)
from sexton.log.group_flush import GroupFlush
from sexton.log.health import Health
from sexton.log.inside import validated
from sexton.log.locks import Locks
from sexton.log.producers import Marker, ProducerStates, Verification
from sexton.log.recovery import Recovered, start_offset_path
from sexton.log.replay import note_copied, replay
from sexton.log.segment import AbortedEntry, Segment
from sexton.log.segments import UNKNOWN_TIME_MS, ClosedSegments, Segments
from sexton.log.snapshots import Snapshots
from sexton.log.swapping import Swap
from sexton.log.types import AbortedTransaction, Appended, Read, TimedOffset
from sexton.ports.disk import Buffer, Disk
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import names
from sexton.records.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    encode_leader_epochs,
    encode_offset_checkpoint,
)
from sexton.records.header import CONTROL, HEADER_BYTES, Head, unpack, with_offset, with_offset_and_time
from sexton.settings.schema import DAY_MS
from sexton.settings.topic import TopicConfig
from sexton.types import INT32_MAX, OFFSET_MAX, LeaderEpoch

T = TypeVar("T")


class Log:
    def __init__(
        self,
        *,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: TopicConfig,
        recovered: Recovered,
    ) -> None:
        """For `opening`, which finds or makes what is on disk."""
        self.disk = disk
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.place = f"{topic}-{partition}"
        self.start_offset = recovered.start_offset
        self.end_offset = recovered.end_offset
        self.flushed_offset = recovered.end_offset
        """The durable log end: everything below survives a crash."""
        self.is_doubtful = recovered.is_doubtful
        """Recovery cut off valid batches that followed a fault; the broker decides when the log can be trusted
        again."""
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.health = Health(self.place)
        self.segments = Segments(disk, directory, self.place, config, recovered.segments)
        self.snapshots = Snapshots(disk, directory)
        self.locks = Locks()
        self._group_flush = GroupFlush(self._flush_once)
        self.reconfigure(config)

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self.rules = Rules.of(self.place, config)
        self.looks_inside = self.rules.look_inside
        self._stamps_time = self.rules.stamps_time
        self.segments.reconfigure(config)

    def __repr__(self) -> str:
        return f"<Log {self.place} {self.start_offset} to {self.end_offset}, flushed to {self.flushed_offset}>"

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def failure(self) -> OSError | None:
        return self.health.failure

    @property
    def damage(self) -> CorruptLogError | None:
        return self.health.damage

    @property
    def is_deleted(self) -> bool:
        return self.health.is_deleted

    def check_invariants(self) -> None:
        """Rules 2 and 11. They hold between any two steps of an operation on the log."""
        segments = self.segments.all
        assert self.segments.active is segments[-1], f"rule 11: {self!r} appends to a segment that is not its last"
        assert segments[0].base_offset <= self.start_offset <= self.end_offset, f"rule 11: {self!r}"
        assert 0 <= self.flushed_offset <= self.end_offset, f"rule 11: {self!r}"
        below = -1
        for segment in segments:
            assert below < segment.base_offset, f"rule 2: {self!r} has a segment out of order"
            below = segment.base_offset
        assert below <= self.end_offset, f"rule 2: {self!r} has a segment past its end"

    # Appending

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
        validated_by: Rules | None = None,
    ) -> Appended:
        """Appends one batch and assigns its offsets and leader epoch. `from_client=False` is for batches that this
        broker makes, such as markers or a group's offsets, which have no sequence numbers. A `verification` must still
        be valid. `validated_by` are the rules by which the batch was checked before (`inside.validated`); it is checked
        again if others apply by now."""
        health = self.health
        if health.failure is not None or health.is_deleted:
            health.check_usable()
        view = records if type(records) is memoryview else memoryview(records)
        rules = self.rules
        if from_client:
            batch_bytes_max, segment_bytes_max = rules.batch_bytes_max, self.config.segment_bytes
        else:
            batch_bytes_max = max(rules.batch_bytes_max, OWN_BATCH_BYTES_MAX)
            segment_bytes_max = max(self.config.segment_bytes, OWN_BATCH_BYTES_MAX)
        head = check_frame(view, self.place, batch_bytes_max)
        if from_client:
            check_client_batch(head, self.place)
            if validated_by is not rules:
                check_time(head, rules, now_ms)
                if self.looks_inside:
                    view = memoryview(validated(view, rules, now_ms))
                    head = unpack(view)
        size = head.size_bytes
        if size > segment_bytes_max:
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"{self.place}: the batch has {size} bytes, a segment at most {self.config.segment_bytes}",
            )
        marker: tuple[Marker, int] | None = None
        if head.producer_id >= 0:
            if head.attributes & CONTROL:
                marker = check_marker(view, head, self.producers, self.place)
            else:
                past = check_producer(head, self.producers, from_client, verification)
                if past is not None:
                    log_append_time_ms = past.timestamp_ms if self._stamps_time else -1
                    return Appended(past.first_offset, past.last_offset, log_append_time_ms, self.start_offset, True)
        first = self.end_offset
        last = first + head.last_offset - head.base_offset
        if self._stamps_time:
            max_ts = now_ms
            parts = with_offset_and_time(view, head, first, leader_epoch, now_ms)
        else:
            max_ts = head.max_timestamp_ms
            parts = with_offset(view, head, first, leader_epoch)
        try:
            segments = self.segments
            segment = segments.active
            if segments.must_roll(size, last, max_ts, now_ms):
                segment = segments.roll(first, now_ms, self.producers.encode())
            segment.append(parts, size, last, max_ts)
        except OSError as error:
            raise health.storage_error(error) from error
        self.end_offset = last + 1
        if head.producer_id >= 0:
            ended = note_producer(head, self.producers, first, last, max_ts, marker)
            if ended is not None:
                segment.note_end(ended)
        # tuple.__new__ does not parse arguments as Appended() does: a twentieth of the whole append.
        return tuple.__new__(Appended, (first, last, now_ms if self._stamps_time else -1, self.start_offset, False))

    def append_as_follower(
        self, records: Buffer, gaps_below: int = OFFSET_MAX, leader_end_offset: int = OFFSET_MAX
    ) -> None:
        """Appends the leader's batches, one or more, at `end_offset` or above. Gaps are what compaction left, and are
        refused where nothing was compacted, and so are offsets that the leader's log does not have. An incomplete batch
        at the end is ignored: the next fetch brings it whole. All batches for one segment are written at once."""
        self.health.check_usable()
        view = memoryview(records)
        heads = check_copied(view, self.place, self.end_offset, gaps_below, self.epochs, leader_end_offset)
        begun = 0
        while begun < len(heads):
            segment, first = self.segments.active, heads[begun]
            if self.segments.must_roll(first.size_bytes, first.last_offset, first.max_timestamp_ms, segment.created_ms):
                with self.health.writing():
                    segment = self.segments.roll(first.base_offset, UNKNOWN_TIME_MS, self.producers.encode())
            done, size = begun + 1, first.size_bytes
            while (
                done < len(heads)
                and segment.size_bytes + size + heads[done].size_bytes <= self.config.segment_bytes
                and heads[done].last_offset - segment.base_offset <= INT32_MAX
            ):
                size += heads[done].size_bytes
                done += 1
            self._write_copied(view, segment, heads[begun:done], size)
            begun = done

    def _write_copied(self, view: memoryview, segment: Segment, heads: Sequence[Head], size: int) -> None:
        start = heads[0].position
        position = segment.size_bytes
        try:
            segment.file.append((view[start : start + size],))
        except OSError as error:
            raise self.health.storage_error(error) from error
        try:
            for head in heads:
                segment.note(position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
                if head.producer_id >= 0:
                    is_control = head.attributes & CONTROL
                    body = view[head.position + HEADER_BYTES : head.position + head.size_bytes] if is_control else b""
                    ended = note_copied(self.producers, head, bytes(body))
                    if ended is not None:
                        segment.note_end(ended)
                position += head.size_bytes
        except Exception as bug:
            # The file holds batches that the log's state does not include: nothing may be appended after them.
            self.health.failure = OSError(f"{self.place}: a bug after an append: {bug!r}")
            raise
        self.end_offset = heads[-1].last_offset + 1

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool) -> Read:
        end_offset = min(end_offset, self.end_offset)
        if not self.start_offset <= offset <= end_offset:
            self.health.check_usable()  # one that failed to start over ends below what its consumers have read
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.place}: offset {offset} is not between {self.start_offset} and {end_offset}",
            )
        if offset == end_offset:
            return Read([], 0, offset, offset)
        try:
            found = reading.read(self.segments.all, self.epochs, offset, max_bytes, end_offset, min_one)
        except (CorruptLogError, OSError) as error:
            raise self.health.unreadable(error) from error
        if offset < self.segments.active.base_offset:
            index = reading.segment_index(self.segments.all, offset)
            for segment in self.segments.all[index : index + len(found.parts) + 1]:
                self.segments.keep_open(segment)
        return found

    def verify(self, offset: int, end_offset: int) -> None:
        """Called when a receiver could not take the records read there. If they are corrupt here, raises as `read`
        would."""
        with self.health.reading():
            first, end = max(offset, self.start_offset), min(end_offset, self.end_offset)
            if first < end:  # else it was deleted since
                reading.verify(self.segments.all, self.epochs, first, end)

    def last_stable_offset(self, high_watermark: int) -> int:
        return self.producers.last_stable_offset(high_watermark, self.start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        with self.health.reading():
            found = reading.aborted_transactions(self.segments.all, start_offset, end_offset)
        return found if start_offset >= self.segments.active.base_offset else self._released(found)

    def aborted_entries(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Aborted transactions whose markers lie between the two offsets."""
        with self.health.reading():
            segments = self.segments.all[reading.segment_index(self.segments.all, start_offset) :]
            return self._released(
                [
                    one
                    for segment in segments
                    if segment.base_offset < end_offset
                    for one in segment.aborted
                    if start_offset <= one.last_offset < end_offset
                ]
            )

    def offset_for_time(self, timestamp_ms: int, end_offset: int) -> TimedOffset | None:
        """The first record with this timestamp or a later one, below `end_offset`."""
        with self.health.reading():
            return self._released(
                reading.offset_for_time(self.segments.all, timestamp_ms, self.start_offset, end_offset)
            )

    def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | None:
        with self.health.reading():
            return self._released(reading.newest_record(self.segments.all, self.start_offset, end_offset))

    def _released(self, answer: T) -> T:
        """Returns `answer`, after adding the segments that were opened to find it to those that may stay open."""
        self.segments.keep_loaded_open()
        return answer

    def retention_start(self, high_watermark: int, now_ms: int) -> int:
        """Where retention would put the log start. Only a leader calls this; followers take over its log start. As in
        Kafka, the active segment is removed too once all of it is due."""
        with self.health.reading():
            summaries = [
                SegmentSummary(one.base_offset, one.size_bytes, one.first_timestamp_ms, one.newest_ms())
                for one in self.segments.all
            ]
        if summaries[-1].size_bytes:
            summaries.append(SegmentSummary(self.end_offset, 0, -1, now_ms))
        return max(self.start_offset, retention.retained_from(summaries, self.config, high_watermark, now_ms))

    # Flushing

    @property
    def needs_flush(self) -> bool:
        return self.flushed_offset < self.end_offset or bool(self.segments.sealed)

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether a segment was closed since the last flush. Callers that do not flush before each acknowledgement
        should flush then, or recovery has more to scan."""
        return bool(self.segments.sealed)

    async def flush(self) -> None:
        """On return, everything appended before the call survives a crash. Callers may overlap."""
        self.health.check_usable()
        if self.needs_flush:
            await self._group_flush.wait()

    async def _flush_once(self) -> KafkaError | None:
        async with self.locks.flushing:
            try:
                await self.flush_now()
            except KafkaError as unusable:
                return unusable
            except OSError as error:
                return self.health.storage_error(error)
            return None

    async def flush_now(self) -> None:
        """For those who hold `locks.flushing`. Checks first that no flush has failed while the caller waited: the next
        flush may succeed without the pages that were lost."""
        self.health.check_usable()
        segments, end_offset, active = self.segments, self.end_offset, self.segments.active
        for sealed in list(segments.sealed):
            await self._on_device(sealed.segment.file.flush())
            await sealed.segment.write_index()
            await self.snapshots.write(sealed.next_base_offset, sealed.snapshot)
            segments.sealed.remove(sealed)
            segments.keep_open(sealed.segment)
            self.flushed_offset = max(self.flushed_offset, min(end_offset, sealed.next_base_offset))
        if self.flushed_offset < end_offset:
            await self._on_device(active.file.flush())
            self.flushed_offset = end_offset

    async def _on_device(self, flush: Awaitable[None]) -> None:
        """After a failed flush it is unknown what the device holds, whatever error it returned: the log has failed."""
        try:
            await flush
        except OSError as error:
            self.health.failure = error
            flushed.distrust(self.disk, self.directory)
            raise

    async def mark_as_unflushed(self) -> None:
        """From here on the log may acknowledge unflushed records (`log.flushed`). Waits for a running flush, because
        one that fails must be able to invalidate the mark."""
        async with self.locks.flushing:
            self.health.check_usable()
            await flushed.mark(self.disk, self.directory, is_whole=True)

    # Log end

    async def truncate_to(self, offset: int) -> None:
        """Keeps whole batches below `offset`. Below the log start nothing can be kept: the log is emptied and starts
        there."""
        if offset < self.start_offset:
            await self.restart_at(offset)
            return
        async with self.locks.both():
            self.health.check_usable()
            if offset >= self.end_offset:
                return
            with self.health.reading():  # damage at the place to cut at is found before anything is removed
                self.segments.all[reading.segment_index(self.segments.all, offset)].position_of(offset)
            with self.health.writing():
                await self._vouch_below(offset)
                await self._remove_snapshots_above(offset)
            with self.health.cutting():
                # First: if this fails halfway, and the replica leads, what is gone must not count as held.
                self.end_offset = offset
                self.flushed_offset = min(self.flushed_offset, offset)
                self.segments.cut(offset)
                self.end_offset = max(self.segments.active.end_offset, self.start_offset)
                self.flushed_offset = min(self.flushed_offset, self.end_offset)
                self._reload_producers()
                epochs_changed = self.epochs.cut_end(offset)
            with self.health.writing():
                await self._on_device(self.segments.active.file.flush())
                await self.disk.flush_directory(self.directory)
                if epochs_changed:
                    await self._write_epochs()
            if not self.segments.sealed:
                self.flushed_offset = self.end_offset

    async def _vouch_below(self, offset: int) -> None:
        """Writes a snapshot below the cut before those above are removed. Earlier snapshots may have been removed by a
        swap, and without any, recovery cannot know that the records before a gap between two segments were flushed (see
        `recovery`)."""
        segments = self.segments.all
        index = reading.segment_index(segments, offset)
        base_offset = segments[index].base_offset
        known = self.snapshots.offsets()
        if index == 0 or base_offset > self.flushed_offset or any(base_offset <= one <= offset for one in known):
            return
        producers = ProducerStates(self.place, DAY_MS)
        snapshot_offset, entries = self.snapshots.newest(segments[0].base_offset, base_offset)
        replay(producers, segments[:index], snapshot_offset, entries, now_ms=-1)
        await self.snapshots.write(base_offset, producers.encode())

    async def _remove_snapshots_above(self, offset: int) -> None:
        await self.snapshots.remove_durably([one for one in reversed(self.snapshots.offsets()) if one > offset])

    def _reload_producers(self) -> None:
        """Reloads from the newest snapshot left and the batches after it. No producer expires here."""
        segments = self.segments.all
        snapshot_offset, entries = self.snapshots.newest(segments[0].base_offset, OFFSET_MAX)
        replay(self.producers, segments, snapshot_offset, entries, now_ms=-1)

    async def restart_at(self, offset: int) -> None:
        """Discards everything, epoch history included, and starts an empty log at `offset`."""
        async with self.locks.both():
            self.health.check_not_deleted()
            with self.health.writing():
                await self._remove_snapshots_above(-1)
                await self._write_start(offset)
            with self.health.cutting():
                self.end_offset = self.flushed_offset = self.start_offset
                self.segments.restart_at(offset)
                self.start_offset = self.end_offset = self.flushed_offset = offset
                self.producers.clear()
                self.epochs.replace(())
            with self.health.writing():
                await self.disk.flush_directory(self.directory)
                await self._write_epochs()

    # Log start

    async def advance_start(self, offset: int) -> None:
        """Moves the log start, durably, before it removes the segments that lie below it as a whole, the active one
        too."""
        async with self.locks.both():
            self.health.check_not_deleted()
            if offset <= self.start_offset:
                return
            if offset > self.end_offset:
                raise KafkaError(
                    ErrorCode.offset_out_of_range, f"{self.place}: {offset} is past the log's end {self.end_offset}"
                )
            with self.health.writing():
                if offset >= self.end_offset and self.segments.active.size_bytes:
                    self.segments.roll(self.end_offset, UNKNOWN_TIME_MS, self.producers.encode())
                if self.segments.sealed or self.flushed_offset < offset:
                    await self.flush_now()  # snapshots first: producers outlive their records
                await self._write_start(offset)
                self.start_offset = offset
                self.segments.drop_below(offset)
                first = self.segments.all[0].base_offset
                for snapshot in self.snapshots.offsets():
                    if snapshot < first:
                        self.snapshots.remove(snapshot)
                if self.epochs.cut_start(offset):
                    await self._write_epochs()

    async def _write_start(self, offset: int) -> None:
        content = encode_offset_checkpoint({(self.topic, self.partition): offset})
        await self.disk.replace_file(start_offset_path(self.directory), content)

    # Epochs

    async def begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Starts a leader epoch at the log end. Durable on return."""
        async with self.locks.flushing:
            self.health.check_not_deleted()
            before = self.epochs.entries
            if self.epochs.begin(leader_epoch, self.end_offset):
                await self._write_epochs_or(before)

    async def replace_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Replaces the history by the leader's. Durable on return."""
        async with self.locks.flushing:
            self.health.check_not_deleted()
            before = self.epochs.entries
            if tuple(entries) != before:
                self.epochs.replace(entries)
                await self._write_epochs_or(before)

    async def _write_epochs_or(self, before: Sequence[EpochEntry]) -> None:
        try:
            await self._write_epochs()
        except OSError as error:
            self.epochs.replace(before)
            raise self.health.storage_error(error) from error

    async def _write_epochs(self) -> None:
        content = encode_leader_epochs(self.epochs.entries)
        await self.disk.replace_file(f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", content)

    # Compaction

    def summaries(self) -> list[SegmentSummary]:
        """What eligibility needs to know about each segment, the active one last."""
        with self.health.reading():
            found = [
                SegmentSummary(one.base_offset, one.size_bytes, one.first_ms(), one.newest_ms())
                for one in self.segments.all
            ]
        return self._released(found)

    def close_active(self, now_ms: int) -> bool:
        """Rolls the active segment, so that it can be compacted. Returns False if it is empty or the log is
        unusable."""
        if self.segments.active.size_bytes == 0 or self.failure is not None or self.is_deleted:
            return False
        with self.health.writing():
            self.segments.roll(self.end_offset, now_ms, self.producers.encode())
        return True

    async def swap(
        self,
        closed: ClosedSegments,
        staging: str,
        new: Sequence[NewSegment],
        terms: SwapTerms,
        check: Callable[[], None] = lambda: None,
        validating: asyncio.Lock | None = None,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> Committed:
        """Replaces the segments, or raises SwapRefusedError and changes nothing. `staging` is a directory on the same
        volume with a `.log.cleaned` file for each new segment. `check` runs last, after validation and before the first
        rename; it raises to refuse. `validating` is held while a segment is validated: logs that share it do not occupy
        the event loop together. `then` runs before the next swap may begin and records the watermarks of the new
        segments, which the next swap's `check` depends on.

        After a disk error the log is as before, or some segments are replaced and others are not, which is a valid log
        too. If neither can be achieved now, the log has failed, and opening it again completes or undoes the swap.
        """
        self.health.check_usable()
        swap = Swap(self, closed, staging, terms).run(new, check, validating or asyncio.Lock(), then)
        work = asyncio.get_running_loop().create_task(swap)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The caller removes the staged files, so they must stay there until the swap has ended.
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
            raise

    # Closing and deleting

    async def close(self) -> None:
        """Flushes, and leaves the directory as Kafka expects it after a clean shutdown: with indexes, and a snapshot at
        the log end. A log that has failed is left as it is."""
        if self.health.failure is None:
            async with self.locks.both():
                self.health.check_not_deleted()
                with self.health.writing():
                    await self.flush_now()
                    self.segments.active.seal()
                    for segment in self.segments.all:  # an index that was lost is written again
                        await segment.write_index()
                    await self._write_last_snapshot()
        self.segments.close_files()

    async def _write_last_snapshot(self) -> None:
        """Unless the snapshot exists, or the log is new and without producers, so that it would say nothing."""
        is_new = self.end_offset == self.segments.all[0].base_offset and not len(self.producers)
        if not is_new and not self.snapshots.exists(self.end_offset):
            await self.snapshots.write(self.end_offset, self.producers.encode())

    async def delete(self) -> None:
        """Renames the directory first, in one step, so that a crash leaves either a complete log or one that is to be
        deleted. The next log of this name may be created as soon as this returns, while others still wait for this
        log's locks."""
        parent = self.directory.rpartition("/")[0]
        unique_id = uuid.uuid5(self.topic_id, str(self.partition)).hex
        doomed = f"{parent}/{names.name_in_state(self.topic, self.partition, names.DirState.DELETE, unique_id)}"
        async with self.locks.both():
            with self.health.writing():
                self.disk.remove_tree(doomed)
            await self._give_up_name(doomed)
            with self.health.writing():
                self.disk.remove_tree(doomed)

    async def set_aside(self, path: str) -> None:
        """Leaves the directory under another name, as one that was closed, or as it is if it cannot be closed. The next
        log of this name may be created as soon as this returns."""
        with suppress(OSError, KafkaError):
            await self.close()
        async with self.locks.both():
            await self._give_up_name(path)

    async def _give_up_name(self, path: str) -> None:
        self.health.is_deleted = True
        for segment in self.segments.all:
            segment.close_file()
            segment.is_gone = True
        with self.health.writing():
            self.disk.rename(self.directory, path)
            await self.disk.flush_directory(self.directory.rpartition("/")[0])
