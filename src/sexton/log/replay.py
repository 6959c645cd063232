"""Rebuilds the state of a log's producers from a snapshot and the batches around it."""

from __future__ import annotations

from sexton.log.batches import SCAN_BYTES, read_marker
from sexton.log.producers import EndedTransaction, ProducerStates
from sexton.log.segment import Segment
from sexton.records.header import CONTROL, HEADER_BYTES, TRANSACTIONAL, Head
from sexton.records.producer_snapshot import ProducerEntry

RECALLED_BYTES = 1 << 20
"""How much of the log's end is searched for earlier batches of producers. Little, because every partition pays for it
at startup; enough for five batches of Kafka's default size from each of a dozen producers."""


def note_copied(producers: ProducerStates, head: Head, body: bytes) -> EndedTransaction | None:
    """Records a producer's batch as a follower does, without checks. `body` is the records of a control batch. Returns
    the transaction that the batch ended, if any."""
    if not head.attributes & CONTROL:
        producers.note_data(head, head.base_offset, head.last_offset, head.max_timestamp_ms)
        return None
    read = read_marker(head, body)
    if read is None:
        return None
    marker, timestamp_ms = read
    ended = producers.note_marker(head.producer_id, head.producer_epoch, head.base_offset, timestamp_ms, marker)
    # A verification begun while this replica led before is about a transaction that is over.
    producers.void_verifications(head.producer_id, head.producer_epoch)
    return ended


def note_found(producers: ProducerStates, segment: Segment, head: Head) -> EndedTransaction | None:
    """Records a batch that was found in a segment."""
    if head.producer_id < 0:
        return None
    is_control = head.attributes & CONTROL
    body = segment.file.read(head.position + HEADER_BYTES, head.size_bytes - HEADER_BYTES) if is_control else b""
    return note_copied(producers, head, body)


def replay(
    producers: ProducerStates,
    segments: list[Segment],
    snapshot_offset: int,
    entries: tuple[ProducerEntry, ...],
    now_ms: int,
) -> None:
    """Sets the producer state at the end of these segments, from a snapshot and the batches after it."""
    producers.load(entries, now_ms)
    if len(producers):
        _recall(producers, segments, snapshot_offset)
    for segment in segments:
        if segment.end_offset > snapshot_offset:
            for head in segment.heads(segment.position_of(snapshot_offset), SCAN_BYTES):
                note_found(producers, segment, head)  # whose transaction index is complete


def _recall(producers: ProducerStates, segments: list[Segment], snapshot_offset: int) -> None:
    """A snapshot has only the last batch of each producer, as in Kafka. A client may have had more in flight and retry
    all of them after a restart, so those in the last stretch of the log are read again. So are the ends of
    transactions, whose markers may lie above the high watermark: then they are not committed, and what they end is not
    stable. What lies before the stretch is not read: a transaction that began there counts as begun at the start of the
    log, and those that ended there as ended just before the stretch."""
    before = [segment for segment in segments if segment.base_offset < snapshot_offset]
    left_bytes = RECALLED_BYTES
    stretches: list[tuple[Segment, int]] = []
    for segment in reversed(before):
        end = segment.position_of(snapshot_offset) if segment.end_offset > snapshot_offset else segment.size_bytes
        start = segment.index.boundary_before(max(0, end - left_bytes))
        stretches.append((segment, start))
        left_bytes -= end - start
        if left_bytes <= 0:
            break
    begun: dict[int, int] = {}
    before_stretch = None if not stretches or stretches[-1] == (segments[0], 0) else segments[0].base_offset
    is_first = True
    for segment, start in reversed(stretches):
        for head in segment.heads(start, SCAN_BYTES):
            if is_first and before_stretch is not None and producers.have_ended_transactions:
                producers.recall_end(before_stretch, head.base_offset - 1)
            is_first = False
            if head.base_offset >= snapshot_offset:
                break
            if head.attributes & CONTROL:
                first_offset = begun.pop(head.producer_id, before_stretch)
                if first_offset is not None:
                    producers.recall_end(first_offset, head.base_offset)
            elif head.attributes & TRANSACTIONAL:
                begun.setdefault(head.producer_id, head.base_offset)
            if head.producer_id >= 0 and not head.attributes & CONTROL:
                producers.recall(head)
