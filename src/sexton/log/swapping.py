"""Replaces old segments by compacted ones while the log is read and appended to.

A compactor works on *closed* segments as they were when its compaction was planned: `closed_segments` records them, and
a swap is refused if they have changed since. The compactor's result lies in a directory of its own beside them; it is
validated (`compaction.acceptance`), gets its indexes here, and is then swapped in, segment by segment, lowest first
(docs/decisions, 4): a crash at any point leaves a log with the same latest value for every key.

A reader that holds an old segment keeps reading it. A new read sees the old or the new segment as a whole: old segments
are loaded before their files are renamed, and the list in memory changes at the moment from which on a restart would
find the new one too.

Producer snapshots below the bound are removed first. Such a snapshot may contain an open transaction that the new
segments hold settled and without its marker, and a recovery that started from it would leave it open for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from sexton.compaction import swap
from sexton.compaction.acceptance import SwapTerms, check_replaced, check_settled, refusal
from sexton.compaction.contract import Committed, NewSegment
from sexton.compaction.eligibility import SegmentSummary
from sexton.compaction.swap import Outcome, StagedSegment, SwapRefusedError
from sexton.errors import SextonError
from sexton.log import swap_disk
from sexton.log.batches import SCAN_BYTES
from sexton.log.changing import Changing
from sexton.log.recovery import snapshot_offsets, snapshot_path
from sexton.log.segment import Segment, encode_aborted
from sexton.log.sparse import SparseIndex
from sexton.log.validation import Validated, in_turns, validate
from sexton.ports.disk import File, FileSlice
from sexton.records import names
from sexton.records.header import Head

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClosedSegments:
    """The exact closed segments that a compaction was planned on."""

    reopened_count: int
    segments: tuple[Segment, ...]
    sizes_bytes: tuple[int, ...]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(segment.base_offset for segment in self.segments)


class Swapping(Changing):
    def summaries(self) -> list[SegmentSummary]:
        """What eligibility needs to know about each segment, the active one last."""
        with self._reading():
            found = [
                SegmentSummary(one.base_offset, one.size_bytes, one.first_ms(), one.newest_ms())
                for one in self._segments
            ]
        for segment in self._segments:
            if segment.is_loaded:
                self._keep_open(segment)
        return found

    @property
    def active(self) -> tuple[int, bool]:
        """The active segment's base offset, and whether it is empty."""
        return self._active.base_offset, self._active.size_bytes == 0

    def close_active(self, now_ms: int) -> bool:
        """Rolls the active segment, so that it can be compacted. Returns False if it is empty or the log is
        unusable."""
        if self._active.size_bytes == 0 or self.failure is not None or self.is_deleted:
            return False
        try:
            self._roll(self.end_offset, now_ms)
        except OSError as error:
            raise self._storage_error(error) from error
        return True

    def closed_segments(self, bound: int) -> ClosedSegments:
        """The closed segments that begin below `bound`."""
        below = tuple(segment for segment in self._segments[:-1] if segment.base_offset < bound)
        return ClosedSegments(self.reopened_count, below, tuple(segment.size_bytes for segment in below))

    def sizes_below(self, high_watermark: int) -> tuple[tuple[int, int], ...]:
        """Base offset and size of each segment, cut at the high watermark: what lies above it may be truncated while a
        compactor has it mapped, and touching such a page kills the process. A compaction needs no more, because every
        transaction that began below the last stable offset has ended below the high watermark."""
        sizes = []
        for segment in self._segments:
            end = segment.size_bytes if segment.end_offset <= high_watermark else segment.position_of(high_watermark)
            sizes.append((segment.base_offset, end))
            if segment.is_loaded:
                self._keep_open(segment)
            if segment.end_offset > high_watermark:
                break
        return tuple(sizes)

    def are_current(self, closed: ClosedSegments) -> bool:
        """Whether these are still exactly the segments of this log, so that a compaction of them may be committed."""
        now = self._segments[: len(closed.segments)]
        return (
            closed.reopened_count == self.reopened_count
            and len(now) == len(closed.segments) < len(self._segments)
            and all(one is other for one, other in zip(now, closed.segments, strict=True))
            and all(one.size_bytes == size for one, size in zip(now, closed.sizes_bytes, strict=True))
        )

    def begins_segment(self, offset: int) -> bool:
        return any(segment.base_offset == offset for segment in self._segments)

    def closed_slice(self, base_offset: int, size_bytes: int, position: int, count_bytes: int) -> FileSlice:
        """A slice of a closed segment's file, which the caller identifies by base offset and size. Raises KeyError if
        there is no such segment."""
        for segment in self._segments[:-1]:
            if (segment.base_offset, segment.size_bytes) == (base_offset, size_bytes) and 0 <= position < size_bytes:
                found = FileSlice(segment.file, position, min(count_bytes, size_bytes - position))
                self._keep_open(segment)
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
            self._keep_open(segment)
        return segment.checksum

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
        self._check_usable()
        swap = self._swap(closed, staging, new, terms, check, validating or asyncio.Lock(), then)
        work = asyncio.get_running_loop().create_task(swap)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The caller removes the staged files, so they must stay there until the swap has ended.
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
            raise

    async def _swap(
        self,
        closed: ClosedSegments,
        staging: str,
        new: Sequence[NewSegment],
        terms: SwapTerms,
        check: Callable[[], None],
        validating: asyncio.Lock,
        then: Callable[[], Awaitable[None]] | None,
    ) -> Committed:
        async with self._shape:
            self.check_not_deleted()
            self._check_current(closed)
            replaced = [closed.segments[old] for old in check_replaced(self._place, new, closed.base_offsets)]
            before = len(self._segments), self.size_bytes
            try:
                validated: list[Validated] = []
                for segment, old in zip(new, replaced, strict=True):
                    async with validating:
                        validated.append(await self._validate(segment, old, staging, terms))
                async with validating:
                    await self._check_rest_is_settled(closed, replaced, terms)
                check()
                if validated:
                    await self._drop_snapshots_below(terms.bound)
                for one, old in zip(validated, replaced, strict=True):
                    await self._replace(one, old, staging)
            except OSError as error:
                raise self._storage_error(error) from error
            if then is not None:
                await then()
            return Committed(before[1], self.size_bytes, before[0], len(self._segments))

    def _check_current(self, closed: ClosedSegments) -> None:
        if not self.are_current(closed):
            raise refusal(self._place, "the segments have changed since the pass was planned")

    # Validation

    async def _validate(self, new: NewSegment, old: Sequence[Segment], staging: str, terms: SwapTerms) -> Validated:
        """Validates one new segment. On return its indexes are in the staging directory too."""
        target = Segment(self._disk, self.directory, new.base_offset, self.config, 0)
        path = f"{staging}/{names.log_file_name(new.base_offset, names.CLEANED_SUFFIX)}"
        if not self._disk.exists(path):
            raise refusal(self._place, f"{path} is not there")
        file = self._disk.open(path)
        try:
            validated = await validate(self._place, new, terms, self.producers, old, file, target)
        finally:
            file.close()
        target.seal()
        self._write_staged(staging, new, names.OFFSET_INDEX_SUFFIX, target.index.encode_offsets())
        self._write_staged(staging, new, names.TIME_INDEX_SUFFIX, target.index.encode_times())
        self._write_staged(staging, new, names.TRANSACTION_INDEX_SUFFIX, encode_aborted(validated.aborted))
        for one in old:
            self._keep_open(one)
        return validated

    def _write_staged(self, staging: str, new: NewSegment, kind: str, content: bytes) -> None:
        """Not flushed here: the first step of the swap does that."""
        path = f"{staging}/{names.segment_file_name(new.base_offset, kind, names.CLEANED_SUFFIX)}"
        self._disk.remove(path)
        if content or kind != names.TRANSACTION_INDEX_SUFFIX:
            file = self._disk.open(path, create=True)
            try:
                file.append([content])
            finally:
                file.close()

    async def _check_rest_is_settled(
        self, closed: ClosedSegments, replaced: Sequence[Sequence[Segment]], terms: SwapTerms
    ) -> None:
        if terms.settles_from is None:
            return
        bases = {one.base_offset for old in replaced for one in old}
        rest = [one for one in closed.segments if one.base_offset not in bases and one.end_offset > terms.settles_from]
        await in_turns(check_settled(self._place, self._heads_of(rest)))

    def _heads_of(self, segments: Sequence[Segment]) -> Iterator[Head]:
        for segment in segments:
            yield from segment.heads(0, SCAN_BYTES)
            self._keep_open(segment)

    async def _drop_snapshots_below(self, bound: int) -> None:
        """Removes snapshots below the bound, once there is one at or above it to certify everything below (see
        `recovery`). Appends that wait for a flush wait at most for ours: their acknowledgements depend on it, not on
        our files."""
        end_offset, state = self.end_offset, self.producers.encode()
        if self._sealed:
            async with self._one_at_a_time:
                await self._flush_all()
        known = snapshot_offsets(self._disk, self.directory)
        if known[-1:] < [bound]:
            async with self._one_at_a_time:
                await self._flush_all()
            await self._disk.replace_file(snapshot_path(self.directory, end_offset), state)
        doomed = [offset for offset in known if offset < bound]
        for offset in doomed:
            self._disk.remove(snapshot_path(self.directory, offset))
        if doomed:
            await self._disk.flush_directory(self.directory)

    # The swap itself

    async def _replace(self, validated: Validated, old: Sequence[Segment], staging: str) -> None:
        new = self._staged_segment(validated, old, staging)
        for one in old:
            one.pin()
        try:
            self._move_into_place(staging, validated.new)
            contents = swap_disk.contents(self._disk, self.directory)
            staged = [StagedSegment(validated.new.base_offset, validated.new.end_offset)]
            steps = swap.commit(contents, staged, validated.new.old_base_offsets)

            async def committed() -> None:
                self._exchange(old, new)

            await swap_disk.carry_out(self._disk, self.directory, steps, committed)
        except (OSError, SwapRefusedError):
            await self._put_right(old, new)
            raise
        finally:
            if self.failure is None:  # else there may be no file to load them from again
                for one in (*old, new):
                    one.unpin()
        self._keep_open(new)

    def _staged_segment(self, validated: Validated, old: Sequence[Segment], staging: str) -> Segment:
        """Opens the staged file before it is renamed: nothing is opened by name until the swap is over."""
        base_offset, end_offset = validated.new.base_offset, old[-1].end_offset
        segment = Segment(self._disk, self.directory, base_offset, self.config, old[-1].created_ms)
        file: File = self._disk.open(f"{staging}/{names.log_file_name(base_offset, names.CLEANED_SUFFIX)}")
        index = SparseIndex(base_offset)
        offsets = self._disk.read_file(f"{staging}/{names.offset_index_file_name(base_offset, names.CLEANED_SUFFIX)}")
        times = self._disk.read_file(f"{staging}/{names.time_index_file_name(base_offset, names.CLEANED_SUFFIX)}")
        if file.size_bytes != validated.size_bytes or not index.load(offsets or b"", times or b"", end_offset, 1 << 62):
            raise refusal(self._place, f"what was staged for offset {base_offset} changed after it was validated")
        segment.take_staged(file, index, list(validated.aborted), end_offset)
        segment.first_timestamp_ms = old[0].first_timestamp_ms
        return segment

    def _move_into_place(self, staging: str, new: NewSegment) -> None:
        for kind in swap.SEGMENT_KINDS:
            name = names.segment_file_name(new.base_offset, kind, names.CLEANED_SUFFIX)
            if self._disk.exists(f"{staging}/{name}"):
                self._disk.rename(f"{staging}/{name}", f"{self.directory}/{name}")

    def _exchange(self, old: Sequence[Segment], new: Segment) -> None:
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old), "rule 10: only what was planned on is replaced"
        self._segments[first : first + len(old)] = [new]
        for one in old:
            self._read_lately.pop(one.base_offset, None)
            one.is_gone = True

    async def _put_right(self, old: Sequence[Segment], new: Segment) -> None:
        """Undoes or completes the swap, as a restart would."""
        try:
            recovery = await swap_disk.recover(self._disk, self.directory)
        except (OSError, SextonError) as error:
            self.failure = error if isinstance(error, OSError) else OSError(str(error))
            return
        if recovery.outcome is Outcome.COMPLETED and old[0] in self._segments:
            self._exchange(old, new)
