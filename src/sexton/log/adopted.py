"""Validates another replica's compacted segments before they replace this replica's own (docs/rules.md).

The replica that compacted them applied the same rules, and its log may have been compacted further than this one or
less: below the bound, not every batch there needs to have a batch here. What batch headers show is checked: batches are
whole and in order, nothing is transactional, no marker is gone that MXRO protects; and at or above the bound, where a
segment of this log extends beyond it, the batches are exactly this log's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from sexton.compaction.swap import SwapRefusedError
from sexton.log.batches import SCAN_BYTES, Walk
from sexton.log.replacement import Judged, Replacement, SwapTerms, Turns, refusal
from sexton.log.segment import Segment
from sexton.ports.disk import File
from sexton.records.batch import CONTROL, TRANSACTIONAL
from sexton.records.header import Head
from sexton.types import INT32_MAX


class AdoptedJudge:
    def __init__(self, place: str, replacement: Replacement, terms: SwapTerms, target: Segment) -> None:
        self._place = place
        self._terms = terms
        self._target = target
        self._turns = Turns()
        self.judged = Judged(replacement)

    async def judge(self, old: Sequence[Segment], new: File) -> Judged:
        """Raises SwapRefusedError if the segment is not acceptable. Fills the index of `target` on the way."""
        replacement = self.judged.replacement
        if new.size_bytes > INT32_MAX or old[-1].end_offset - replacement.base_offset > INT32_MAX:
            raise self._refusal("it is too large for one segment")
        own = self._own_above_bound(old)
        next_offset = replacement.base_offset
        walk = Walk(new, 0, new.size_bytes, check_crc=True, chunk_bytes=SCAN_BYTES)
        for head in walk:
            if head.base_offset < next_offset:
                raise self._refusal(f"offset {head.base_offset} comes where {next_offset} or more was due")
            self._check(head, own)
            self._target.note(head.position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
            next_offset = head.last_offset + 1
            if self._turns.is_over(head.size_bytes):
                await asyncio.sleep(0)
        if walk.fault is not None:
            raise self._refusal(f"{walk.fault} at byte {walk.position} of what was copied")
        if next(own, None) is not None:
            raise self._refusal("what this log holds above the bound is missing")
        if not old[-1].base_offset < next_offset <= old[-1].end_offset:
            raise self._refusal(f"it ends at {next_offset}, which is not inside the last of what was there")
        await self._check_markers(old)
        self.judged.replacement = replacement._replace(end_offset=next_offset)
        self.judged.size_bytes = new.size_bytes
        return self.judged

    def _own_above_bound(self, old: Sequence[Segment]) -> Iterator[Head]:
        for segment in old:
            if segment.end_offset > self._terms.bound:
                position = segment.position_of(max(self._terms.bound, segment.base_offset))
                yield from segment.heads(position, SCAN_BYTES)

    def _check(self, head: Head, own: Iterator[Head]) -> None:
        if head.base_offset >= self._terms.bound:
            there = next(own, None)
            if there is None or there._replace(position=0) != head._replace(position=0):
                raise self._refusal(f"the batch at {head.base_offset}, above the bound, is not this log's")
            return
        if head.last_offset >= self._terms.bound:
            raise self._refusal(f"the batch at {head.base_offset} lies across the bound {self._terms.bound}")
        if head.attributes & CONTROL:
            if head.record_count:
                self.judged.surviving_markers.add(head.last_offset)
        elif head.attributes & TRANSACTIONAL:
            raise self._refusal(f"the batch at {head.base_offset} is still transactional")

    async def _check_markers(self, old: Sequence[Segment]) -> None:
        """Checks rule 6. Batches above the bound are this log's own, so their markers keep their transaction index
        entries."""
        for segment in old:
            for head in segment.heads(0, SCAN_BYTES):
                if self._turns.is_over(head.size_bytes):
                    await asyncio.sleep(0)
                if not head.attributes & CONTROL or not head.record_count:
                    continue
                if head.base_offset >= self._terms.bound:
                    self.judged.surviving_markers.add(head.last_offset)
                elif head.base_offset >= self._terms.marker_removal_offset and (
                    head.last_offset not in self.judged.surviving_markers
                ):
                    raise self._refusal(f"rule 6: the marker at {head.base_offset} is gone, and is not below MXRO")

    def _refusal(self, what: str) -> SwapRefusedError:
        return refusal(self._place, f"the segment for offset {self.judged.replacement.base_offset}: {what}")
