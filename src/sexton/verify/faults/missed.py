"""What a replica that is away misses of one log, and what the others have forgotten of it since. Pure.

Fed with looks at the leader's log, as raw batches. Two offsets are known of the replica that is away: it has all that
is below the one (the high watermark while it was in sync), and nothing from the other on (the log's end when it had
left the in-sync replicas). What lies between is not counted, nor is what was written in a transaction: it may have been
aborted, and then it is gone without ever having counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sexton.records.batch import Batch, Record


class Missed:
    def __init__(self, known_offset: int, before: Sequence[Batch]) -> None:
        """`before` is the log while the replica was in sync, up to where it has everything."""
        plain = plain_offsets(before)
        self._values = {
            key
            for key, record in newest_records(before, 0, known_offset).items()
            if record.offset in plain and not record.is_tombstone
        }
        self._open = open_producers(before, known_offset)
        self._known_offset = known_offset
        self._missed_offset = -1
        self._seen_offsets: set[int] = set()
        self._tombstones: set[bytes | None] = set()
        self._markers: dict[int, int] = {}
        """Of producers with an open transaction on the replica: where the first marker is that it has missed."""
        self._horizon_offset = -1
        self.passes_count = 0
        """How often compaction has been seen to have gone over all that was missed."""
        self.is_removed = False
        """Whether the others have removed anything that it has missed."""
        self.forgotten_keys = 0
        """Of which the replica has a value, and nothing in the log says that they are deleted."""
        self.forgotten_markers = 0
        """The end of a transaction that is open on the replica, of which nothing in the log tells."""

    def lost(self, log: Sequence[Batch], at_ms: int) -> None:
        """The first look, when the replica has left the in-sync ones. It was lost at that time of day: a marker that
        was written later did not reach it."""
        end_offset = log[-1].next_offset if log else 0
        self._missed_offset = self._horizon_offset = end_offset
        self._values -= newest_records(log, self._known_offset, end_offset).keys()
        self._open -= {
            batch.producer_id
            for batch in log
            if batch.base_offset >= self._known_offset and not (batch.is_control and batch.max_timestamp_ms > at_ms)
        }

        self._note_markers(log)

    def look(self, log: Sequence[Batch]) -> None:
        """Looks at the leader's whole log as it is now."""
        end_offset = log[-1].next_offset if log else 0
        newest = newest_records(log, self._missed_offset, end_offset)
        plain = plain_offsets(log)
        self._tombstones |= {
            key
            for key, record in newest.items()
            if record.is_tombstone and record.offset in plain and key in self._values
        }
        self.forgotten_keys = sum(key not in newest for key in self._tombstones)
        markers = {batch.base_offset for batch in log if batch.is_control and batch.records}
        self._note_markers(log)
        self.forgotten_markers = sum(offset not in markers for offset in self._markers.values())
        offsets = {record.offset for record in data_records(log) if record.offset >= self._missed_offset}
        self.is_removed = self.is_removed or not self._seen_offsets <= offsets
        self._seen_offsets |= offsets
        self._count_passes(log, end_offset)

    def _note_markers(self, log: Sequence[Batch]) -> None:
        for batch in log:
            if batch.is_control and batch.producer_id in self._open and batch.base_offset >= self._known_offset:
                self._markers.setdefault(batch.producer_id, batch.base_offset)

    def _count_passes(self, log: Sequence[Batch], end_offset: int) -> None:
        keys = [record.key for record in data_records(log) if record.offset < self._horizon_offset]
        if len(keys) == len(set(keys)) and end_offset > self._horizon_offset:
            self.passes_count += 1
            self._horizon_offset = end_offset


def data_records(log: Sequence[Batch]) -> Iterator[Record]:
    return (record for batch in log if not batch.is_control for record in batch.records)


def newest_records(log: Sequence[Batch], start_offset: int, end_offset: int) -> dict[bytes | None, Record]:
    return {record.key: record for record in data_records(log) if start_offset <= record.offset < end_offset}


def plain_offsets(log: Sequence[Batch]) -> set[int]:
    """Of records that were written outside of transactions."""
    return {record.offset for batch in log if not batch.is_transactional for record in batch.records}


def open_producers(log: Sequence[Batch], end_offset: int) -> set[int]:
    """Whose last batch below an offset is one of a transaction, and no marker."""
    last = {batch.producer_id: batch for batch in log if batch.base_offset < end_offset}
    return {producer_id for producer_id, batch in last.items() if batch.is_transactional and not batch.is_control}
