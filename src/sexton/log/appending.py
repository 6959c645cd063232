"""Appending to the log: as a leader, which checks and stamps batches, or as a follower, which copies them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from sexton.log.batches import check_client_batch, check_frame, read_marker
from sexton.log.inside import Rules, bad_times, judged
from sexton.log.producers import EndedTransaction, Marker, PastBatch, Verification
from sexton.log.segment import AbortedEntry, Segment
from sexton.log.state import LogState
from sexton.log.types import Appended
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import (
    ATTRIBUTES_POSITION,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from sexton.records.header import Head, has_valid_crc, head_at
from sexton.types import INT32_MAX, OFFSET_MAX

_FRONT = struct.Struct(">qii")
"""Base offset, length, leader epoch: all that a leader changes of a batch that keeps its timestamps."""

_TIMED_FRONT = struct.Struct(">qiibIhiqq")
"""The header up to and including the max timestamp."""

_CRC = struct.Struct(">I")
OWN_BATCH_BYTES_MAX = 1 << 20
"""Batches that a broker writes itself, such as a group's state, may have this size whatever `max.message.bytes` and
`segment.bytes` say: those are for clients, and a coordinator that cannot write cannot work."""

CRC_POSITION = 17


class Appending(LogState):
    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        now_ms: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
        judged_by: Rules | None = None,
    ) -> Appended:
        """Appends one batch and assigns its offsets and leader epoch. `from_client=False` is for batches that this
        broker makes, such as markers or a group's offsets, which have no sequence numbers. A `verification` must still
        be valid. `judged_by` are the rules by which the batch was checked before (`inside.judged`); it is checked again
        if others apply by now."""
        self._check_usable()
        view = records if type(records) is memoryview else memoryview(records)
        size = len(view)
        own_bytes_max = 0 if from_client else OWN_BATCH_BYTES_MAX
        fields = check_frame(view, self._place, max(self.rules.batch_bytes_max, own_bytes_max))
        if from_client:
            check_client_batch(fields, self._place)
            if judged_by is not self.rules:
                if self.rules.has_bad_time(fields, now_ms):
                    raise bad_times(fields, self.rules, now_ms)
                if self.looks_inside:
                    view = memoryview(judged(view, self.rules, now_ms))
                    size = len(view)
                    fields = HEADER.unpack_from(view)
        _, length, _, _, _, attributes, delta, _, max_ts, producer_id, _, _, _ = fields
        if size > max(self.config.segment_bytes, own_bytes_max):
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"{self._place}: the batch has {size} bytes, a segment at most {self.config.segment_bytes}",
            )
        marker: tuple[Marker, int] | None = None
        parts: tuple[Buffer, Buffer]
        if producer_id >= 0:
            if attributes & CONTROL:
                marker = self._check_marker(view, fields)
            else:
                past = self._check_producer(fields, from_client)
                if verification is not None and past is None:
                    self.producers.check_verified(producer_id, fields[10], verification)
                if past is not None:
                    log_append_time_ms = past.timestamp_ms if self._stamps_time else -1
                    return Appended(past.first_offset, past.last_offset, log_append_time_ms, self.start_offset, True)
        first = self.end_offset
        last = first + delta
        if self._stamps_time:
            max_ts = now_ms
            parts = _stamped(view, fields, first, leader_epoch, now_ms)
        else:
            parts = (_FRONT.pack(first, length, leader_epoch), view[16:])
        try:
            segment = self._active
            if self._must_roll(segment, size, last, max_ts, now_ms):
                segment = self._roll(first, now_ms)
            segment.append(parts, size, last, max_ts)
        except OSError as error:
            raise self._storage_error(error) from error
        self.end_offset = last + 1
        if producer_id >= 0:
            self._note_producer(fields, first, last, max_ts, marker)
        return Appended(first, last, now_ms if self._stamps_time else -1, self.start_offset)

    def _check_producer(self, fields: tuple[int, ...], from_client: bool) -> PastBatch | None:
        """Returns the batch that this one repeats, if any. Raises if the batch is out of sequence or its producer
        fenced."""
        _, _, _, _, _, attributes, delta, _, _, producer_id, epoch, sequence, _ = fields
        if from_client:
            past = self.producers.duplicate_of(producer_id, epoch, sequence, delta + 1)
            if past is not None:
                return past
        self.producers.check_data(producer_id, epoch, sequence, bool(attributes & TRANSACTIONAL), from_client)
        return None

    def _note_producer(
        self, fields: tuple[int, ...], first: int, last: int, timestamp_ms: int, marker: tuple[Marker, int] | None
    ) -> None:
        _, _, _, _, _, attributes, _, _, _, producer_id, epoch, sequence, _ = fields
        if marker is not None:
            self._note_end(self.producers.note_marker(producer_id, epoch, first, marker[1], marker[0]))
        else:
            is_transactional = bool(attributes & TRANSACTIONAL)
            self.producers.note_data(producer_id, epoch, sequence, first, last, timestamp_ms, is_transactional)

    def _check_marker(self, view: memoryview, fields: tuple[int, ...]) -> tuple[Marker, int]:
        head = head_at(view, 0, 0)
        marker = read_marker(head, bytes(view[HEADER_BYTES:])) if isinstance(head, Head) else None
        if marker is None:
            raise KafkaError(ErrorCode.invalid_record, f"{self._place}: a control batch that ends no transaction")
        self.producers.check_marker(fields[9], fields[10], marker[0])
        return marker

    def _note_end(self, ended: EndedTransaction | None) -> None:
        if ended is not None and ended.is_abort:
            self._active.add_aborted(
                AbortedEntry(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
            )

    def append_as_follower(self, records: Buffer, gaps_below: int = OFFSET_MAX) -> None:
        """Appends the leader's batches, one or more, at `end_offset` or above. Gaps are what compaction left, and are
        refused where nothing was compacted. An incomplete batch at the end is ignored: the next fetch brings it whole.
        All batches for one segment are written at once."""
        self._check_usable()
        view = memoryview(records)
        heads = self._check_copied(view, gaps_below)
        begun = 0
        while begun < len(heads):
            segment = self._active
            if self._must_roll(
                segment,
                heads[begun].size_bytes,
                heads[begun].last_offset,
                heads[begun].max_timestamp_ms,
                segment.created_ms,
            ):
                segment = self._roll_or_fail(heads[begun].base_offset)
            done, size = begun + 1, heads[begun].size_bytes
            while (
                done < len(heads)
                and segment.size_bytes + size + heads[done].size_bytes <= self.config.segment_bytes
                and heads[done].last_offset - segment.base_offset <= INT32_MAX
            ):
                size += heads[done].size_bytes
                done += 1
            self._write_copied(view, segment, heads[begun:done], size)
            begun = done

    def _check_copied(self, view: memoryview, gaps_below: int) -> list[Head]:
        heads: list[Head] = []
        at, end_offset = 0, self.end_offset
        while at + HEADER_BYTES <= len(view):
            head = head_at(view, at, at)
            if isinstance(head, str):
                raise KafkaError(ErrorCode.corrupt_message, f"{self._place}: {head}")
            if at + head.size_bytes > len(view):
                break
            if head.base_offset < end_offset:
                raise KafkaError(
                    ErrorCode.offset_out_of_range,
                    f"{self._place}: a batch for offset {head.base_offset} came where {end_offset} or more was due",
                )
            if head.base_offset > max(end_offset, gaps_below):
                raise KafkaError(
                    ErrorCode.offset_out_of_range,
                    f"{self._place}: a batch for offset {head.base_offset} came where {end_offset} was due, and "
                    f"nothing above {gaps_below} was ever compacted: records are missing",
                )
            if not has_valid_crc(view[at : at + head.size_bytes]):
                raise KafkaError(
                    ErrorCode.corrupt_message, f"{self._place}: the CRC at offset {head.base_offset} does not match"
                )
            heads.append(head)
            end_offset = head.last_offset + 1
            at += head.size_bytes
        return heads

    def _write_copied(self, view: memoryview, segment: Segment, heads: Sequence[Head], size: int) -> None:
        start = heads[0].position
        position = segment.size_bytes
        try:
            segment.file.append((view[start : start + size],))
        except OSError as error:
            raise self._storage_error(error) from error
        try:
            for head in heads:
                segment.note(position, head.size_bytes, head.last_offset, head.max_timestamp_ms)
                if head.producer_id >= 0:
                    self._note_copied(head, view)
                position += head.size_bytes
        except Exception as bug:
            # The file holds batches that the log's state does not include: nothing may be appended after them.
            self.failure = OSError(f"{self._place}: a bug after an append: {bug!r}")
            raise
        self.end_offset = heads[-1].last_offset + 1

    def _note_copied(self, head: Head, view: memoryview) -> None:
        if not head.attributes & CONTROL:
            self.producers.note_data(
                head.producer_id,
                head.producer_epoch,
                head.base_sequence,
                head.base_offset,
                head.last_offset,
                head.max_timestamp_ms,
                bool(head.attributes & TRANSACTIONAL),
            )
            return
        read = read_marker(head, bytes(view[head.position + HEADER_BYTES : head.position + head.size_bytes]))
        if read is not None:
            marker, timestamp_ms = read
            self._note_end(
                self.producers.note_marker(
                    head.producer_id, head.producer_epoch, head.base_offset, timestamp_ms, marker
                )
            )
            # A verification begun while this replica led before is about a transaction that is over.
            self.producers.void_verifications(head.producer_id, head.producer_epoch)


def _stamped(
    view: memoryview, fields: tuple[int, ...], first: int, leader_epoch: int, now_ms: int
) -> tuple[Buffer, Buffer]:
    """Sets the append time, and computes the CRC again."""
    _, length, _, magic, _, attributes, delta, base_ts, _, _, _, _, _ = fields
    attributes |= LOG_APPEND_TIME
    front = bytearray(_TIMED_FRONT.pack(first, length, leader_epoch, magic, 0, attributes, delta, base_ts, now_ms))
    rest = view[_TIMED_FRONT.size :]
    _CRC.pack_into(front, CRC_POSITION, crc32c(rest, crc32c(front[ATTRIBUTES_POSITION:])))
    return front, rest
