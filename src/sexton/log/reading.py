"""Finding records in a log's segments: by offset, by time, and which of them were aborted.

Nothing here waits, so the records and the aborted transactions of one fetch come from one state of the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import islice

from sexton.log.batches import SCAN_BYTES
from sexton.log.epochs import EpochHistory
from sexton.log.segment import AbortedEntry, Segment
from sexton.log.types import AbortedTransaction, Read, TimedOffset
from sexton.ports.network import SENDFILE_BYTES_MIN, Part
from sexton.records import batch
from sexton.records.header import (
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    Head,
    has_valid_crc,
    head_at,
    span_at,
)


def segment_index(segments: Sequence[Segment], offset: int) -> int:
    """Index of the segment that holds an offset, or held it; 0 for offsets before the first segment."""
    return max(0, bisect_right(segments, offset, key=_base_offset) - 1)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def read(
    segments: Sequence[Segment], epochs: EpochHistory, offset: int, max_bytes: int, end_offset: int, min_one: bool
) -> Read:
    """Reads between two offsets that the log has, the first below the second."""
    index = len(segments) - 1
    if offset < segments[index].base_offset:
        index = segment_index(segments, offset)
    parts: list[Part] = []
    size_bytes, next_offset = 0, offset
    while True:
        segment = segments[index]
        start = segment.position_of(next_offset)
        stop = segment.size_bytes if end_offset >= segment.end_offset else segment.position_of(end_offset)
        stop_offset = min(end_offset, segment.end_offset)
        if start < stop:
            cut = stop
            if start + max_bytes - size_bytes < stop:
                cut, stop_offset = segment.boundary(start, start + max_bytes - size_bytes)
                if cut <= start:
                    if parts or not min_one:
                        break
                    cut, stop_offset = segment.boundary(start, start + segment.batch_bytes(start))
            is_closed = index < len(segments) - 1
            between = next_offset, stop_offset
            parts.append(_part(segment, start, cut - start, between, epochs if is_closed else None))
            size_bytes += cut - start
            if cut < segment.size_bytes:
                segment.remember(stop_offset, cut)
                next_offset = stop_offset
                break
        next_offset = max(next_offset, stop_offset)
        index += 1
        if next_offset >= end_offset or index == len(segments) or size_bytes >= max_bytes:
            break
    return Read(parts, size_bytes, offset, next_offset)


def _part(
    segment: Segment, position: int, size_bytes: int, between: tuple[int, int], epochs: EpochHistory | None
) -> Part:
    """Small reads are checked. Of closed segments, for which `epochs` are given, everything, because old data may have
    been damaged since it was written; of the active one what no CRC covers, because nobody else can. Large reads go out
    without passing through Python: clients and followers check the CRC of what they receive."""
    if size_bytes >= SENDFILE_BYTES_MIN:
        return segment.slice(position, size_bytes)
    data = segment.file.read(position, size_bytes)
    if epochs is not None:
        _check(segment, epochs, position, data, between)
    else:
        _check_offsets(segment, position, data, between)
    return data


def _check_offsets(segment: Segment, position: int, data: bytes, between: tuple[int, int]) -> None:
    """Raises CorruptLogError unless the batches are whole and their offsets rise within the two, which the log knows
    without reading them. A consumer would go on behind an offset that has rotted, past records that it never gets."""
    due, end_offset = between
    at, last_start = 0, len(data) - HEADER_BYTES
    while at <= last_start:
        base_offset, length, delta = span_at(data, at)
        last_offset = base_offset + delta
        is_in_order = due <= (base_offset if at else last_offset) and delta >= 0 and last_offset < end_offset
        if not is_in_order:
            raise segment.out_of_place(base_offset, last_offset, due, end_offset, position + at)
        if length < LENGTH_MIN:
            raise segment.corrupt(f"the batch says it is {length} bytes long", position + at)
        due = last_offset + 1
        at += LOG_OVERHEAD_BYTES + length
    if at != len(data):
        raise segment.corrupt("the batch is cut off", position + at)


def _check(segment: Segment, epochs: EpochHistory, position: int, data: bytes, between: tuple[int, int]) -> None:
    _check_offsets(segment, position, data, between)
    view = memoryview(data)
    at = 0
    while at < len(data):
        head = head_at(data, at, position + at)
        if isinstance(head, str):
            raise segment.corrupt(head, position + at)
        if not has_valid_crc(view[at : at + head.size_bytes], head):
            raise segment.corrupt("the CRC does not match", head.position)
        if contradiction := epochs.contradiction(head):
            raise segment.corrupt(contradiction, head.position)
        at += head.size_bytes


def verify(segments: Sequence[Segment], epochs: EpochHistory, offset: int, end_offset: int) -> None:
    """Raises CorruptLogError if a batch between the two offsets is not what was once written."""
    for segment in segments[segment_index(segments, offset) :]:
        if segment.base_offset >= end_offset:
            return
        start = segment.position_of(offset)
        stop = segment.size_bytes if end_offset >= segment.end_offset else segment.position_of(end_offset)
        between = offset, min(end_offset, segment.end_offset)
        _check(segment, epochs, start, segment.file.read(start, stop - start), between)
        offset = max(offset, segment.end_offset)


def aborted_transactions(segments: Sequence[Segment], start_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Aborted transactions with records between the two offsets, in order of their markers. A marker may lie far beyond
    `end_offset`, but the search stops at the first entry written when everything below `end_offset` was decided."""
    found: list[AbortedTransaction] = []
    for segment in segments[segment_index(segments, start_offset) :]:
        if find_aborted(segment.aborted, start_offset, end_offset, found):
            break
    return found


def find_aborted(
    aborted: Sequence[AbortedEntry], start_offset: int, end_offset: int, found: list[AbortedTransaction]
) -> bool:
    """Adds those of one list, which is in order of markers. Returns whether none that comes later can concern the
    offsets."""
    for index in range(bisect_left(aborted, start_offset, key=_marker_offset), len(aborted)):
        entry = aborted[index]
        if entry.first_offset < end_offset:
            found.append(AbortedTransaction(entry.producer_id, entry.first_offset))
        if entry.last_stable_offset >= end_offset:
            return True
    return False


def _marker_offset(entry: AbortedEntry) -> int:
    return entry.last_offset


def offset_for_time(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int, end_offset: int
) -> TimedOffset | None:
    """The first record with this timestamp or a later one."""
    for segment in segments[segment_index(segments, start_offset) :]:
        if segment.base_offset >= end_offset:
            break
        if segment.size_bytes == 0 or segment.newest_ms() < timestamp_ms:
            continue
        index = segment.index
        first = max(index.offset_before_time(timestamp_ms), start_offset)
        for head in segment.heads(segment.position_of(first)):
            if head.base_offset >= end_offset:
                return None
            if head.max_timestamp_ms >= timestamp_ms:
                found = _record_at(segment, head, timestamp_ms, start_offset)
                if found is not None:
                    return found if found.offset < end_offset else None
    return None


def newest_record(segments: Sequence[Segment], start_offset: int, end_offset: int) -> TimedOffset | None:
    """The first record with the largest timestamp of all below the end.

    A batch that compaction has emptied keeps its timestamp but has no record: it does not count. (Kafka responds that
    there is no record.)
    """
    newest, newest_offset, holder = -1, -1, None
    for segment in segments[segment_index(segments, start_offset) :]:
        if segment.base_offset >= end_offset:
            break
        timestamp_ms, offset = segment.newest_below(end_offset)
        if offset < start_offset or _is_empty(segment, offset):  # below the log start, or an empty batch
            timestamp_ms, offset = _newest_between(segment, start_offset, end_offset)
        if timestamp_ms > newest:
            newest, newest_offset, holder = timestamp_ms, offset, segment
    if holder is None:
        return None
    for head in holder.heads(holder.position_of(newest_offset)):
        return _record_at(holder, head, newest, start_offset)
    return None


def _newest_between(segment: Segment, start_offset: int, end_offset: int) -> tuple[int, int]:
    newest, newest_offset = -1, -1
    for head in segment.heads(segment.position_of(start_offset), SCAN_BYTES):
        if head.last_offset >= end_offset:
            break
        if head.max_timestamp_ms > newest and head.record_count:
            newest, newest_offset = head.max_timestamp_ms, head.last_offset
    return newest, newest_offset


def _is_empty(segment: Segment, offset: int) -> bool:
    return any(head.record_count == 0 for head in islice(segment.heads(segment.position_of(offset)), 1))


def _record_at(segment: Segment, head: Head, timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    def data() -> bytes:
        return segment.file.read(head.position, head.size_bytes)

    return record_in_batch(head, data, timestamp_ms, start_offset, segment.file.path)


def record_in_batch(
    head: Head, data: Callable[[], bytes | memoryview], timestamp_ms: int, start_offset: int, place: str
) -> TimedOffset | None:
    """The first record of a batch that is not older than `timestamp_ms` and not below `start_offset`. `data` returns
    the batch, and is called only if the header does not say it all."""
    if head.attributes & LOG_APPEND_TIME and head.record_count == head.last_offset - head.base_offset + 1:
        return TimedOffset(head.max_timestamp_ms, max(head.base_offset, start_offset), head.leader_epoch)
    for record in batch.decode(data(), 0, place, check_crc=False).records:
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return TimedOffset(record.timestamp_ms, record.offset, head.leader_epoch)
    return None
