"""Replaces old segments by compacted ones while the log is read and appended to.

A compactor works on *closed* segments as they were when its compaction was planned: `Segments.closed` records them, and
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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from sexton.compaction import swap
from sexton.compaction.acceptance import SwapTerms, check_replaced, check_settled, refusal
from sexton.compaction.contract import Committed, NewSegment
from sexton.compaction.swap import SwapRecovery, SwapRefusedError
from sexton.errors import SextonError
from sexton.log import swap_disk
from sexton.log.batches import SCAN_BYTES
from sexton.log.segment import Segment, encode_aborted
from sexton.log.segments import ClosedSegments
from sexton.log.sparse import SparseIndex
from sexton.log.validation import Validated, in_turns, validate
from sexton.ports.disk import File
from sexton.records import names
from sexton.records.header import Head

if TYPE_CHECKING:
    from sexton.log.log import Log


class Swap:
    """One replacement of closed segments in a log. `run` does it."""

    def __init__(self, log: Log, closed: ClosedSegments, staging: str, terms: SwapTerms) -> None:
        self._log = log
        self._closed = closed
        self._staging = staging
        self._terms = terms
        self._disk = log.disk
        self._segments = log.segments

    async def run(
        self,
        new: Sequence[NewSegment],
        check: Callable[[], None],
        validating: asyncio.Lock,
        then: Callable[[], Awaitable[None]] | None,
    ) -> Committed:
        log, closed, segments = self._log, self._closed, self._segments
        async with log.locks.shape:
            log.health.check_not_deleted()
            if not segments.are_current(closed):
                raise refusal(log.place, "the segments have changed since the pass was planned")
            replaced = [closed.segments[old] for old in check_replaced(log.place, new, closed.base_offsets)]
            count_before, bytes_before = len(segments.all), segments.size_bytes
            with log.health.writing():
                validated: list[Validated] = []
                for segment, old in zip(new, replaced, strict=True):
                    async with validating:
                        validated.append(await self._validate(segment, old))
                async with validating:
                    await self._check_rest_is_settled(replaced)
                check()
                if validated:
                    await self._drop_snapshots_below(self._terms.bound)
                for one, old in zip(validated, replaced, strict=True):
                    await self._replace(one, old)
            if then is not None:
                await then()
            return Committed(bytes_before, segments.size_bytes, count_before, len(segments.all))

    # Validation

    async def _validate(self, new: NewSegment, old: Sequence[Segment]) -> Validated:
        """Validates one new segment. On return its indexes are in the staging directory too."""
        log = self._log
        target = Segment(log.disk, log.directory, new.base_offset, log.config, 0)
        path = self._staged_path(new.base_offset, names.LOG_SUFFIX)
        if not self._disk.exists(path):
            raise refusal(log.place, f"{path} is not there")
        file = self._disk.open(path)
        try:
            validated = await validate(log.place, new, self._terms, log.producers, log.epochs, old, file, target)
        finally:
            file.close()
        target.seal()
        self._write_staged(new, names.OFFSET_INDEX_SUFFIX, target.index.encode_offsets())
        self._write_staged(new, names.TIME_INDEX_SUFFIX, target.index.encode_times())
        self._write_staged(new, names.TRANSACTION_INDEX_SUFFIX, encode_aborted(validated.aborted))
        for one in old:
            self._segments.keep_open(one)
        return validated

    def _write_staged(self, new: NewSegment, kind: str, content: bytes) -> None:
        """Not flushed here: the first step of the swap does that."""
        path = self._staged_path(new.base_offset, kind)
        self._disk.remove(path)
        if content or kind != names.TRANSACTION_INDEX_SUFFIX:
            file = self._disk.open(path, create=True)
            try:
                file.append([content])
            finally:
                file.close()

    def _staged_path(self, base_offset: int, kind: str) -> str:
        return f"{self._staging}/{names.segment_file_name(base_offset, kind, names.CLEANED_SUFFIX)}"

    async def _check_rest_is_settled(self, replaced: Sequence[Sequence[Segment]]) -> None:
        settles_from = self._terms.settles_from
        if settles_from is None:
            return
        bases = {one.base_offset for old in replaced for one in old}
        closed = self._closed.segments
        rest = [one for one in closed if one.base_offset not in bases and one.end_offset > settles_from]
        await in_turns(check_settled(self._log.place, self._heads_of(rest)))

    def _heads_of(self, segments: Sequence[Segment]) -> Iterator[Head]:
        for segment in segments:
            yield from segment.heads(0, SCAN_BYTES)
            self._segments.keep_open(segment)

    async def _drop_snapshots_below(self, bound: int) -> None:
        """Removes snapshots below the bound, once there is one at or above it to certify everything below (see
        `recovery`). Appends that wait for a flush wait at most for ours: their acknowledgements depend on it, not on
        our files."""
        log, snapshots = self._log, self._log.snapshots
        end_offset, state = log.end_offset, log.producers.encode()
        if self._segments.sealed:
            async with log.locks.flushing:
                await log.flush_now()
        known = snapshots.offsets()
        if known[-1:] < [bound]:
            async with log.locks.flushing:
                await log.flush_now()
            await snapshots.write(end_offset, state)
        await snapshots.remove_durably([offset for offset in known if offset < bound])

    # The swap itself

    async def _replace(self, validated: Validated, old: Sequence[Segment]) -> None:
        log, new = self._log, self._staged_segment(validated, old)
        for one in old:
            one.pin()
        try:
            self._move_into_place(validated.new)
            contents = swap_disk.contents(log.disk, log.directory)
            steps = swap.commit(contents, [validated.new])

            async def committed() -> None:
                self._segments.exchange(old, new)

            await swap_disk.carry_out(log.disk, log.directory, steps, committed)
        except (OSError, SwapRefusedError):
            await self._put_right(old, new)
            raise
        finally:
            if log.failure is None:  # else there may be no file to load them from again
                for one in (*old, new):
                    one.unpin()
        self._segments.keep_open(new)

    def _staged_segment(self, validated: Validated, old: Sequence[Segment]) -> Segment:
        """Opens the staged file before it is renamed: nothing is opened by name until the swap is over."""
        base_offset, end_offset = validated.new.base_offset, old[-1].end_offset
        log = self._log
        segment = Segment(log.disk, log.directory, base_offset, log.config, old[-1].created_ms)
        file: File = self._disk.open(self._staged_path(base_offset, names.LOG_SUFFIX))
        index = SparseIndex(base_offset)
        offsets = self._disk.read_file(self._staged_path(base_offset, names.OFFSET_INDEX_SUFFIX))
        times = self._disk.read_file(self._staged_path(base_offset, names.TIME_INDEX_SUFFIX))
        if file.size_bytes != validated.size_bytes or not index.load(offsets or b"", times or b"", end_offset, 1 << 62):
            raise refusal(log.place, f"what was staged for offset {base_offset} changed after it was validated")
        segment.take_staged(file, index, list(validated.aborted), end_offset)
        segment.first_timestamp_ms = old[0].first_timestamp_ms
        return segment

    def _move_into_place(self, new: NewSegment) -> None:
        for kind in swap.SEGMENT_KINDS:
            path = self._staged_path(new.base_offset, kind)
            if self._disk.exists(path):
                self._disk.rename(path, f"{self._log.directory}/{path.rpartition('/')[2]}")

    async def _put_right(self, old: Sequence[Segment], new: Segment) -> None:
        """Undoes or completes the swap, as a restart would."""
        try:
            outcome = await swap_disk.recover(self._disk, self._log.directory)
        except (OSError, SextonError) as error:
            self._log.health.failure = error if isinstance(error, OSError) else OSError(str(error))
            return
        if outcome is SwapRecovery.COMPLETED and old[0] in self._segments.all:
            self._segments.exchange(old, new)
