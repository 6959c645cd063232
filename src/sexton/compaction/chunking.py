"""How the work on a partition is divided: chunks for tasks, and outputs for the new segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sexton.compaction.contract import NewSegment
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.errors import UnsupportedFormatError
from sexton.types import INT32_MAX

CHUNK_BYTES_MAX = 1024 * 1024 * 1024
CHUNK_BYTES_MIN = 8 * 1024 * 1024
CHUNK_RECORDS_MAX = 2_000_000
"""A task's memory depends on its chunk: 24 bytes per entry, twice, and a byte per slot. Two million records are 150
MB."""

BUCKET_ENTRIES = 1 << 17
"""Entries a bucket should have: 3 MB, so that finding the newest stays within the CPU cache."""

SEGMENT_BYTES_MAX = INT32_MAX
"""The largest segment: positions in its index are 32-bit numbers."""

HORIZON_SEGMENT_BYTES_MAX = 1 << 30
"""While more than this is left of a segment, no delete horizon is started in it. A horizon makes every record of its
batch longer by up to five bytes, and batches that a producer compressed better than we do grow, too: this many bytes
may double and still fit into a segment. It is Kafka's default segment.bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Whole batches of one segment: ``path[start:end]``. The batch before it ends at ``previous_offset``."""

    path: str
    segment: int
    start: int
    end: int
    previous_offset: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Chunk:
    """A task's share of a partition: adjacent slices, all dirty or all clean."""

    number: int
    partition: int
    is_dirty: bool
    slices: tuple[Slice, ...]

    @property
    def record_count(self) -> int:
        return sum(part.record_count for part in self.slices)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWork:
    """What every task must know about a partition. It is sent with each job, and small but for `markers`."""

    partition: int
    name: str
    directory: str
    terms: Terms
    segment_ends: npt.NDArray[np.int64]
    """Last offset of the last batch of each segment below the bound: those batches are always kept."""
    producers: npt.NDArray[np.void]
    markers: npt.NDArray[np.void]
    """Markers of transactions that have data in the log, by producer and offset (`transactions.for_tasks`): 36 bytes
    each, however many there are in the dirty section. Tasks share them by broadcast, as they do the chunks."""
    bucket_count: int
    max_batch_bytes: int
    segment_sizes: npt.NDArray[np.int64]
    """Size in bytes of every segment below the bound, by its number."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of a new segment: ``path[start:end]``, from an old segment or from a task's part file."""

    path: str
    start: int
    end: int


EMPTIED_RATIO = 16
"""A segment that shrinks to less than one part in this many counts as emptied: copying what is left costs little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What is left of an old segment: its extents, and the offset of its last batch. Empty only if it was empty
    before."""

    base_offset: int
    last_offset: int
    is_unchanged: bool
    extents: tuple[Extent, ...]
    size_bytes: int
    old_size_bytes: int


@dataclass(frozen=True, slots=True)
class Output:
    """A new segment and its contents, in order. Or an old segment that stays as it is."""

    new: NewSegment
    extents: tuple[Extent, ...]
    is_unchanged: bool
    size_bytes: int


def chunk_bytes(segment_sizes: Sequence[int], parallelism: int) -> int:
    """A chunk's size: several chunks per core, so that a slow one does not hold up the rest, but not too small.

    If there are enough segments to keep every core busy, a chunk is a whole segment: what it writes is then the new
    segment.
    """
    share = sum(segment_sizes) // (4 * parallelism)
    if len(segment_sizes) >= 2 * parallelism:
        share = max(share, *segment_sizes)
    return min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, share))


def task_count(sizes: Sequence[int], parallelism: int) -> int:
    """Number of tasks for pieces of these sizes. Small ones share a task: starting one costs Spark tens of
    milliseconds, as much as processing a few megabytes."""
    return max(1, min(len(sizes), max(4 * parallelism, -(-sum(sizes) // CHUNK_BYTES_MIN))))


def bucket_count(dirty_record_count: int) -> int:
    return max(1, -(-dirty_record_count // BUCKET_ENTRIES))


def cut(
    survey: LogSurvey, paths: Sequence[str], bound: int, first_dirty: int, target_bytes: int
) -> list[tuple[bool, tuple[Slice, ...]]]:
    """Slices of the segments below the bound, grouped into chunks, each with whether it is dirty.

    A segment that reaches into the dirty section counts as dirty as a whole: indexing a clean record does no harm.
    """
    chunks: list[tuple[bool, tuple[Slice, ...]]] = []
    pending: list[Slice] = []
    pending_dirty = False
    for index, segment in enumerate(survey.segments):
        if segment.base_offset >= bound:
            break
        segment_end = survey.segments[index + 1].base_offset
        is_dirty = segment_end > first_dirty and first_dirty < bound
        ends = np.append(segment.grains["position"], segment.size_bytes)[1:]
        for grain, end in zip(segment.grains, ends, strict=True):
            piece = Slice(
                path=paths[index],
                segment=index,
                start=int(grain["position"]),
                end=int(end),
                previous_offset=int(grain["previous_offset"]),
                record_count=int(grain["record_count"]),
            )
            if pending and (pending_dirty != is_dirty or _is_full(pending, piece, target_bytes)):
                chunks.append((pending_dirty, _joined(pending)))
                pending = []
            pending_dirty = is_dirty
            pending.append(piece)
    if pending:
        chunks.append((pending_dirty, _joined(pending)))
    return chunks


def group_outputs(segments: Sequence[Rewritten], segment_bytes: int) -> list[Output]:
    """New segments from old ones, in order. Empty segments that are not merged into a new one are left alone.

    Adjacent segments that were small before the compaction, and are not too large after it, are merged up to
    ``segment.bytes``, as Kafka does. So are those of which next to nothing is left, though they were large. Kafka's
    cleaner leaves an empty file for them, which its brokers skip; we leave the segment's last batch, emptied. A fetch
    that Kafka answers from one such segment has no record, which librdkafka takes for a fetch size that is too small,
    and reports after ten of them. An unchanged segment that is at least half full stays as it is: merging it would
    rewrite much to gain little, with every compaction.
    """
    groups: list[list[Rewritten]] = []
    for segment in segments:
        if groups and _joins(groups[-1], segment, segment_bytes):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return [_output(group) for group in groups if group[-1].old_size_bytes]


def _joins(group: Sequence[Rewritten], segment: Rewritten, segment_bytes: int) -> bool:
    """An empty segment can only be merged into a later one: a new segment must end in the last one that it replaces."""
    filled = [member for member in group if member.old_size_bytes]
    if segment.old_size_bytes == 0:
        return not filled
    if segment.last_offset - group[0].base_offset > INT32_MAX:
        return False
    if not filled:
        return not segment.is_unchanged
    if any(member.is_unchanged and member.size_bytes * 2 >= segment_bytes for member in (filled[0], segment)):
        return False
    merged = [*filled, segment]
    old_bytes = sum(one.old_size_bytes for one in merged if not _is_emptied(one))
    new_bytes = sum(one.size_bytes for one in merged)
    return max(old_bytes, new_bytes) <= segment_bytes and new_bytes <= SEGMENT_BYTES_MAX


def _is_emptied(segment: Rewritten) -> bool:
    return segment.size_bytes * EMPTIED_RATIO <= segment.old_size_bytes


def _output(group: Sequence[Rewritten]) -> Output:
    """Raises UnsupportedFormatError if the result is too large for a segment: the original was compressed so well that
    the remaining records take more space than all of them did."""
    size_bytes = sum(member.size_bytes for member in group)
    if size_bytes > SEGMENT_BYTES_MAX:
        raise UnsupportedFormatError(
            f"the segment {group[0].base_offset} of {group[0].old_size_bytes} bytes would have {size_bytes} after the "
            f"pass, and no index can express more than {SEGMENT_BYTES_MAX}",
            remedy="Nothing was changed. With a smaller segment.bytes such segments are not made",
        )
    return Output(
        NewSegment(group[0].base_offset, group[-1].last_offset + 1, tuple(member.base_offset for member in group)),
        extents=tuple(extent for member in group for extent in member.extents),
        is_unchanged=len(group) == 1 and group[0].is_unchanged,
        size_bytes=size_bytes,
    )


def _is_full(pending: Sequence[Slice], piece: Slice, target_bytes: int) -> bool:
    too_long = sum(part.size_bytes for part in pending) + piece.size_bytes > target_bytes
    too_many = sum(part.record_count for part in pending) + piece.record_count > CHUNK_RECORDS_MAX
    # Rather a smaller chunk than one across a segment's end.
    at_an_end = piece.segment != pending[-1].segment and sum(part.size_bytes for part in pending) * 2 > target_bytes
    return too_long or too_many or at_an_end


def _joined(pieces: Sequence[Slice]) -> tuple[Slice, ...]:
    """Joins adjacent slices of one segment."""
    joined: list[Slice] = []
    for piece in pieces:
        if joined and joined[-1].segment == piece.segment:
            last = joined.pop()
            piece = Slice(
                path=last.path,
                segment=last.segment,
                start=last.start,
                end=piece.end,
                previous_offset=last.previous_offset,
                record_count=last.record_count + piece.record_count,
            )
        joined.append(piece)
    return tuple(joined)
