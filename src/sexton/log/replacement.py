"""Validates a compactor's result before it replaces anything.

A compactor is another process, perhaps on another machine, perhaps of another version. Batch headers alone show whether
it did only what it may: a batch stays as it was, or has fewer records, or is removed; it keeps its offsets, its
producer and its epochs. If anything else is in a new segment, the whole result is refused. Which *records* of a batch
may be removed is up to the compactor: only it has read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sexton.compaction.swap import SwapRefusedError
from sexton.log.batches import SCAN_BYTES, Walk
from sexton.log.producers import ProducerStates
from sexton.log.segment import AbortedEntry, Segment
from sexton.ports.disk import File
from sexton.records.batch import CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from sexton.records.header import Head
from sexton.types import INT32_MAX

_MAY_CHANGE: Final = TRANSACTIONAL | DELETE_HORIZON
TURN_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 1 << 12
"""Checking a header takes as long as reading this many bytes."""


class Turns:
    """Validation runs in the event loop, about a millisecond at a time, so that other tasks get their turn. Old batches
    count as much as new ones: of a log with many updates nearly all are gone, and they are looked at all the same."""

    def __init__(self) -> None:
        self._left_bytes = TURN_BYTES

    def is_over(self, read_bytes: int = 0) -> bool:
        """Called for each header, with the bytes that were read besides. True if it is time to yield."""
        self._left_bytes -= HEAD_BYTES + read_bytes
        if self._left_bytes > 0:
            return False
        self._left_bytes = TURN_BYTES
        return True


class Replacement(NamedTuple):
    """One new segment and the closed, adjacent old segments that it replaces."""

    base_offset: int
    end_offset: int
    """As the compactor announces it; for an adopted segment it is determined by validation."""
    old_base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LastWord:
    """What must be kept of a live producer: its last batch, or, if it has none in its epoch, the markers of that
    epoch."""

    producer_epoch: int
    last_data_offset: int

    def is_in(self, head: Head) -> bool:
        if self.last_data_offset >= 0:
            return head.last_offset == self.last_data_offset
        return bool(head.attributes & CONTROL) and head.producer_epoch == self.producer_epoch


def last_words(producers: ProducerStates) -> dict[int, LastWord]:
    return {
        producer.producer_id: LastWord(producer.epoch, producer.batches[-1].last_offset if producer.batches else -1)
        for producer in producers
    }


@dataclass(frozen=True, slots=True)
class SwapTerms:
    """The conditions that the broker holds a compactor to."""

    bound: int
    marker_removal_offset: int
    """MXRO: markers at or above it must be kept (rule 6)."""
    settles_from: int | None = 0
    """From this offset (the log's MXFO) up to the bound, nothing transactional may be left. None if this compaction
    settles nothing."""
    is_adopted: bool = False
    """True if another replica made the segments, from its own log: below the bound they cannot be compared with this
    one."""


@dataclass(slots=True)
class Judged:
    """A new segment that has passed validation."""

    replacement: Replacement
    size_bytes: int = 0
    surviving_markers: set[int] = field(default_factory=set)


class Judge:
    """Validates one replacement by walking old and new batches side by side."""

    def __init__(
        self, place: str, replacement: Replacement, terms: SwapTerms, words: Mapping[int, LastWord], target: Segment
    ) -> None:
        self._place = place
        self._terms = terms
        self._words = words
        self._target = target
        self._turns = Turns()
        self.judged = Judged(replacement)

    async def judge(self, old: Sequence[Segment], new: File) -> Judged:
        """Raises SwapRefusedError if the segment is not acceptable. Fills the index of `target` on the way."""
        replacement = self.judged.replacement
        if new.size_bytes > INT32_MAX:
            raise self._refusal(f"{new.size_bytes} bytes are too large for one segment: no index can express them")
        before = _heads_of(old)
        last_old: Head | None = None
        last_new: Head | None = None
        walk = Walk(new, 0, new.size_bytes, check_crc=True, chunk_bytes=SCAN_BYTES)
        for head in walk:
            if last_new is not None and head.base_offset <= last_new.last_offset:
                raise self._refusal(f"offset {head.base_offset} comes after {last_new.last_offset}")
            last_old = await self._counterpart(before, head)
            self._check_kept(last_old, head)
            self._target.note(head.position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
            last_new = head
            if self._turns.is_over(head.size_bytes):
                await asyncio.sleep(0)
        if walk.fault is not None:
            raise self._refusal(f"{walk.fault} at byte {walk.position} of what was handed back")
        if last_new is None or next(before, None) is not None:
            raise self._refusal("the last batch is missing, and with it the segment's end")
        if last_new.last_offset + 1 != replacement.end_offset or replacement.end_offset > self._terms.bound:
            raise self._refusal(
                f"it ends at {last_new.last_offset + 1}; announced was {replacement.end_offset}, and the bound is "
                f"{self._terms.bound}"
            )
        self.judged.size_bytes = new.size_bytes
        return self.judged

    async def _counterpart(self, before: Iterator[Head], new: Head) -> Head:
        """The old batch that the new one is a remainder of. The old batches before it were removed."""
        for old in before:
            if self._turns.is_over():
                await asyncio.sleep(0)
            if old.base_offset == new.base_offset:
                return old
            if old.base_offset > new.base_offset:
                break
            self._check_gone(old)
        raise self._refusal(f"there was no batch at offset {new.base_offset}")

    def _check_gone(self, old: Head) -> None:
        if old.attributes & CONTROL and old.record_count:
            self._check_marker_may_go(old)
        if old.producer_id >= 0:
            word = self._words.get(old.producer_id)
            if word is not None and word.is_in(old):
                raise self._refusal(f"the last batch of producer {old.producer_id}, at {old.base_offset}, is gone")

    def _check_marker_may_go(self, old: Head) -> None:
        if old.base_offset >= self._terms.marker_removal_offset:
            raise self._refusal(
                f"rule 6: the marker at {old.base_offset} is gone, and MXRO is {self._terms.marker_removal_offset}"
            )

    def _check_kept(self, old: Head, new: Head) -> None:
        same = (
            old.last_offset == new.last_offset
            and old.leader_epoch == new.leader_epoch
            and old.producer_id == new.producer_id
            and old.producer_epoch == new.producer_epoch
            and old.base_sequence == new.base_sequence
        )
        may_change = _MAY_CHANGE | (CODEC_MASK if new.record_count == 0 else 0)
        if not same or (old.attributes ^ new.attributes) & ~may_change or new.record_count > old.record_count:
            raise self._refusal(f"the batch at {old.base_offset} is not what was left of the one that was there")
        if new.attributes & TRANSACTIONAL & ~old.attributes:
            raise self._refusal(f"the batch at {old.base_offset} has become transactional")
        if old.attributes & CONTROL:
            if new.record_count < old.record_count:
                self._check_marker_may_go(old)
            elif new.record_count:
                self.judged.surviving_markers.add(new.last_offset)
        elif new.attributes & TRANSACTIONAL and self._terms.settles_from is not None:
            raise self._refusal(f"the batch at {new.base_offset} is still transactional")

    def _refusal(self, what: str) -> SwapRefusedError:
        return refusal(self._place, f"the segment for offset {self.judged.replacement.base_offset}: {what}")


async def check_settled(place: str, segment: Segment, turns: Turns) -> None:
    """Checks a segment that is not replaced because nothing in it had to change."""
    for head in segment.heads(0, SCAN_BYTES):
        if turns.is_over(head.size_bytes):
            await asyncio.sleep(0)
        if head.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
            raise refusal(place, f"the batch at {head.base_offset} is transactional and was left as it was")


def check_replacements(
    place: str, replacements: Sequence[Replacement], inputs: Sequence[Segment], terms: SwapTerms
) -> list[list[Segment]]:
    """The segments that each replacement replaces. Replacements come in order, and each replaces adjacent segments."""
    at, found = 0, []
    for replacement in replacements:
        wanted = replacement.old_base_offsets
        while at < len(inputs) and wanted and inputs[at].base_offset < wanted[0]:
            at += 1
        old = list(inputs[at : at + len(wanted)])
        if not old or tuple(one.base_offset for one in old) != wanted or replacement.base_offset != wanted[0]:
            raise refusal(place, f"{list(wanted)} are not the closed segments that were planned on, in order")
        at += len(wanted)
        found.append(old)
    return found


def surviving_aborts(old: Sequence[Segment], judged: Judged) -> list[AbortedEntry]:
    """Transaction index entries whose markers survive: an entry is removed together with its marker."""
    return [entry for one in old for entry in one.aborted if entry.last_offset in judged.surviving_markers]


def refusal(place: str, what: str) -> SwapRefusedError:
    return SwapRefusedError(what, place, "Nothing was changed. The compactor's log says more; the next plan is new")


def _heads_of(segments: Sequence[Segment]) -> Iterator[Head]:
    for segment in segments:
        yield from segment.heads(0)
