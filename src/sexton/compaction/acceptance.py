"""What a broker accepts as the result of a compaction: of its own log, or of another replica's that it adopts.

Whether a compaction fits the replica at all is asked of its watermarks, at the moment of the swap (`may_commit`,
`may_adopt`). Whether each new segment is what it may be is asked of batch headers, before anything is replaced
(`OwnSegment`, `AdoptedSegment`): a compactor is another process, perhaps on another machine, perhaps of another
version. If anything is wrong, the whole result is refused.

| what is checked     | made of the own log                            | adopted                                |
|---------------------|------------------------------------------------|----------------------------------------|
| batches             | each is one of this log's, as it was or with   | whole and in order; from the bound on, |
|                     | fewer records: same offsets, producer, epochs  | exactly this log's own                 |
| the end             | the last batch of the last old segment stays   | inside the last old segment            |
| transactions (MXFO) | nothing transactional is left                  | nothing transactional is left          |
| markers (rule 6)    | none is gone that MXRO protects                | none is gone that MXRO protects        |
| live producers      | the last batch of each is there                | its maker's broker has checked that    |

Which *records* of a batch may be removed, tombstones among them (rule 5), is up to the compactor: only it has read
them. An adopted segment cannot be compared with this log's below the bound: its maker's log may have been compacted
further than this one, or less.

Nothing here reads a file or waits. A check takes headers as it needs them and pauses after each, so that the caller
decides how many are checked at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.compaction import rules
from sexton.compaction.contract import NewSegment
from sexton.compaction.rules import LastOfProducer
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.records.header import CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL, Head
from sexton.types import INT32_MAX

_MAY_CHANGE: Final = TRANSACTIONAL | DELETE_HORIZON

Progress = Iterator[int]
"""One for each header that was looked at: how many bytes were read for it."""


def may_commit(own: ReplicaWatermarks, *, generation: int, bound: int, last_stable_offset: int) -> bool:
    """Whether a compaction of this replica's own log may be swapped in. That it was made of exactly the segments that
    are there is checked by the log."""
    return generation == own.generation and own.compacted.keys <= bound <= last_stable_offset


def may_adopt(
    own: ReplicaWatermarks,
    *,
    generation: int,
    bound: int,
    planned_high_watermark: int,
    last_stable_offset: int,
    high_watermark: int,
) -> bool:
    """Whether another replica's finished compaction may be swapped in. One that ends where this replica's own does may
    be a later one, which has removed tombstones or markers.

    This replica's high watermark must have reached the one up to which the *maker's log* had been compacted, which may
    be more than this compaction: the maker may have copied its log from a replica that was compacted further, or have
    crashed between a swap and the MCCO that covers it. What is missing from its log below the bound may be superseded
    above it. And a high watermark at the bound is not enough for transactions: the marker of one that was settled may
    lie above both.
    """
    fits = may_commit(own, generation=generation, bound=bound, last_stable_offset=last_stable_offset)
    return fits and high_watermark >= planned_high_watermark


@dataclass(frozen=True, slots=True)
class SwapTerms:
    """The conditions that the broker holds a compactor to."""

    bound: int
    mxro: int
    """Markers at or above it must be kept (rule 6)."""
    settles_from: int | None = 0
    """From this offset (the log's MXFO) up to the bound, nothing transactional may be left. None if this compaction
    settles nothing."""
    is_adopted: bool = False
    """Whether another replica made the segments, from its own log."""


class _Segment:
    """A new segment while it is being checked."""

    def __init__(self, place: str, new: NewSegment, terms: SwapTerms) -> None:
        self._place = place
        self._terms = terms
        self.new = new
        self.surviving_markers: set[int] = set()
        """Offsets of markers that stay. Entries of the transaction index leave with their markers."""

    def _check_marker_may_go(self, marker: Head) -> None:
        if rules.marker_waits_for_replicas(marker.last_offset, self._terms.mxro):
            raise self._refusal(f"rule 6: the marker at {marker.base_offset} is gone, and MXRO is {self._terms.mxro}")

    def _refusal(self, what: str) -> SwapRefusedError:
        return refusal(self._place, f"the segment for offset {self.new.base_offset}: {what}")


class OwnSegment(_Segment):
    """Checks a segment that was made of this log's own, by walking old and new batches side by side."""

    def __init__(
        self, place: str, new: NewSegment, terms: SwapTerms, last_of_producers: Mapping[int, LastOfProducer]
    ) -> None:
        super().__init__(place, new, terms)
        self._last_of_producers = last_of_producers

    def check(self, size_bytes: int, old: Iterator[Head], staged: Iterable[Head]) -> Progress:
        """Raises SwapRefusedError. `old` are the headers of all segments that are to be replaced."""
        if size_bytes > INT32_MAX:
            raise self._refusal(f"{size_bytes} bytes are too large for one segment: no index can express them")
        end_offset = 0
        for head in staged:
            if head.base_offset < end_offset:
                raise self._refusal(f"offset {head.base_offset} comes after {end_offset - 1}")
            for before in old:
                yield 0
                if before.base_offset >= head.base_offset:
                    break
                self._check_gone(before)
            else:
                raise self._stranger(head)
            if before.base_offset != head.base_offset:
                raise self._stranger(head)
            self._check_kept(before, head)
            end_offset = head.last_offset + 1
            yield head.size_bytes
        if end_offset == 0 or next(old, None) is not None:
            raise self._refusal("the last batch is missing, and with it the segment's end")
        if end_offset != self.new.end_offset or end_offset > self._terms.bound:
            raise self._refusal(
                f"it ends at {end_offset}; announced was {self.new.end_offset}, and the bound is {self._terms.bound}"
            )

    def _stranger(self, head: Head) -> SwapRefusedError:
        return self._refusal(f"there was no batch at offset {head.base_offset}")

    def _check_gone(self, old: Head) -> None:
        if old.attributes & CONTROL and old.record_count:
            self._check_marker_may_go(old)
        if old.producer_id >= 0:
            last = self._last_of_producers.get(old.producer_id)
            if last is not None and last.is_in(old):
                raise self._refusal(f"the last batch of producer {old.producer_id}, at {old.base_offset}, is gone")

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
                self.surviving_markers.add(new.last_offset)
        elif new.attributes & TRANSACTIONAL and self._terms.settles_from is not None:
            raise self._refusal(f"the batch at {new.base_offset} is still transactional")


class AdoptedSegment(_Segment):
    """Checks a segment that was copied from another replica, with what this log holds above the bound after it."""

    def check(
        self,
        size_bytes: int,
        last_old: range,
        above_bound: Iterator[Head],
        old: Iterable[Head],
        staged: Iterable[Head],
    ) -> Progress:
        """Raises SwapRefusedError. `last_old` are the offsets of the last segment that is to be replaced, `above_bound`
        this log's headers from the bound on, `old` those of all segments that are to be replaced. Afterwards `new` has
        its end."""
        if size_bytes > INT32_MAX or last_old.stop - self.new.base_offset > INT32_MAX:
            raise self._refusal("it is too large for one segment")
        next_offset = self.new.base_offset
        for head in staged:
            if head.base_offset < next_offset:
                raise self._refusal(f"offset {head.base_offset} comes where {next_offset} or more was due")
            self._check_copied(head, above_bound)
            next_offset = head.last_offset + 1
            yield head.size_bytes
        if next(above_bound, None) is not None:
            raise self._refusal("what this log holds above the bound is missing")
        if not last_old.start < next_offset <= last_old.stop:
            raise self._refusal(f"it ends at {next_offset}, which is not inside the last of what was there")
        for head in old:
            yield head.size_bytes
            if head.attributes & CONTROL and head.record_count:
                self._check_marker(head)
        self.new = NewSegment(self.new.base_offset, next_offset, self.new.old_base_offsets)

    def _check_copied(self, head: Head, above_bound: Iterator[Head]) -> None:
        bound = self._terms.bound
        if head.base_offset >= bound:
            own = next(above_bound, None)
            if own is None or own._replace(position=0) != head._replace(position=0):
                raise self._refusal(f"the batch at {head.base_offset}, above the bound, is not this log's")
        elif head.last_offset >= bound:
            raise self._refusal(f"the batch at {head.base_offset} lies across the bound {bound}")
        elif head.attributes & CONTROL:
            if head.record_count:
                self.surviving_markers.add(head.last_offset)
        elif head.attributes & TRANSACTIONAL:
            raise self._refusal(f"the batch at {head.base_offset} is still transactional")

    def _check_marker(self, old: Head) -> None:
        """Above the bound every batch is this log's own, and stays."""
        if old.base_offset >= self._terms.bound:
            self.surviving_markers.add(old.last_offset)
        elif old.last_offset not in self.surviving_markers:
            self._check_marker_may_go(old)


def check_settled(place: str, heads: Iterable[Head]) -> Progress:
    """Checks segments that are not replaced because nothing in them had to change."""
    for head in heads:
        yield head.size_bytes
        if head.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
            raise refusal(place, f"the batch at {head.base_offset} is transactional and was left as it was")


def check_replaced(place: str, new: Sequence[NewSegment], base_offsets: Sequence[int]) -> list[slice]:
    """Which of the planned segments each new one replaces. They come in order, and each replaces adjacent ones."""
    at, found = 0, []
    for segment in new:
        wanted = segment.old_base_offsets
        while at < len(base_offsets) and wanted and base_offsets[at] < wanted[0]:
            at += 1
        old = slice(at, at + len(wanted))
        if not wanted or tuple(base_offsets[old]) != wanted or segment.base_offset != wanted[0]:
            raise refusal(place, f"{list(wanted)} are not the closed segments that were planned on, in order")
        at += len(wanted)
        found.append(old)
    return found


def refusal(place: str, what: str) -> SwapRefusedError:
    return SwapRefusedError(what, place, "Nothing was changed. The compactor's log says more; the next plan is new")
