"""Reads batch headers for the checks of `compaction.acceptance`, in turns with everything else that the broker does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.compaction.acceptance import AdoptedSegment, OwnSegment, Progress, SwapTerms, refusal
from sexton.compaction.contract import NewSegment
from sexton.log.batches import SCAN_BYTES, Walk
from sexton.log.epochs import EpochHistory
from sexton.log.producers import ProducerStates
from sexton.log.segment import AbortedEntry, Segment
from sexton.ports.disk import File
from sexton.records.header import Head

TURN_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 1 << 12
"""Checking a header takes as long as reading this many bytes."""


@dataclass(frozen=True, slots=True)
class Validated:
    """A new segment that has passed validation."""

    new: NewSegment
    size_bytes: int
    aborted: Sequence[AbortedEntry]
    """Its transaction index. An entry is removed together with its marker."""


async def validate(
    place: str,
    new: NewSegment,
    terms: SwapTerms,
    producers: ProducerStates,
    epochs: EpochHistory,
    old: Sequence[Segment],
    file: File,
    target: Segment,
) -> Validated:
    """Raises SwapRefusedError if the segment in `file` may not replace the old ones. Fills the index of `target` on the
    way."""
    staged = _staged_heads(place, new, epochs, file, target)
    segment: OwnSegment | AdoptedSegment
    if terms.is_adopted:
        segment = AdoptedSegment(place, new, terms)
        last_old = range(old[-1].base_offset, old[-1].end_offset)
        above_bound, every = _above(old, terms.bound), (head for one in old for head in one.heads(0, SCAN_BYTES))
        await in_turns(segment.check(file.size_bytes, last_old, above_bound, every, staged))
    else:
        segment = OwnSegment(place, new, terms, producers.last_batches())
        await in_turns(segment.check(file.size_bytes, (head for one in old for head in one.heads(0)), staged))
    aborted = [entry for one in old for entry in one.aborted if entry.last_offset in segment.surviving_markers]
    return Validated(segment.new, file.size_bytes, aborted)


async def in_turns(progress: Progress) -> None:
    """Runs a check in the event loop, about a millisecond at a time, so that other tasks get their turn. Old batches
    count as much as new ones: of a log with many updates nearly all are gone, and they are looked at all the same."""
    left_bytes = TURN_BYTES
    for read_bytes in progress:
        left_bytes -= HEAD_BYTES + read_bytes
        if left_bytes <= 0:
            left_bytes = TURN_BYTES
            await asyncio.sleep(0)


def _staged_heads(place: str, new: NewSegment, epochs: EpochHistory, file: File, target: Segment) -> Iterator[Head]:
    walk = Walk(file, 0, file.size_bytes, check_crc=True, chunk_bytes=SCAN_BYTES)
    for head in walk:
        if contradiction := epochs.contradiction(head):
            raise refusal(place, f"the segment for offset {new.base_offset}: {contradiction}")
        yield head
        target.note(head.position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
    if walk.fault is not None:
        what = f"{walk.fault} at byte {walk.position} of what was staged"
        raise refusal(place, f"the segment for offset {new.base_offset}: {what}")


def _above(segments: Sequence[Segment], bound: int) -> Iterator[Head]:
    for segment in segments:
        if segment.end_offset > bound:
            yield from segment.heads(segment.position_of(max(bound, segment.base_offset)), SCAN_BYTES)
