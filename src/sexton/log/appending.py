"""Appending to the log: as a leader, which checks and stamps batches, or as a follower, which copies them."""

from __future__ import annotations

from collections.abc import Sequence

from sexton.log.checks import (
    Rules,
    check_client_batch,
    check_frame,
    check_marker,
    check_producer,
    check_time,
    note_producer,
)
from sexton.log.inside import judged
from sexton.log.producers import Marker, Verification
from sexton.log.replay import note_copied
from sexton.log.segment import Segment
from sexton.log.state import LogState
from sexton.log.types import Appended
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import header
from sexton.records.header import CONTROL, HEADER_BYTES, Head, has_valid_crc, head_at
from sexton.types import INT32_MAX, OFFSET_MAX

OWN_BATCH_BYTES_MAX = 1 << 20
"""Batches that a broker writes itself, such as a group's state, may have this size whatever `max.message.bytes` and
`segment.bytes` say: those are for clients, and a coordinator that cannot write cannot work."""


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
        if self.failure is not None or self.is_deleted:
            self._check_usable()
        view = records if type(records) is memoryview else memoryview(records)
        rules = self.rules
        if from_client:
            batch_bytes_max, segment_bytes_max = rules.batch_bytes_max, self.config.segment_bytes
        else:
            batch_bytes_max = max(rules.batch_bytes_max, OWN_BATCH_BYTES_MAX)
            segment_bytes_max = max(self.config.segment_bytes, OWN_BATCH_BYTES_MAX)
        head = check_frame(view, self._place, batch_bytes_max)
        if from_client:
            check_client_batch(head, self._place)
            if judged_by is not rules:
                check_time(head, rules, now_ms)
                if self.looks_inside:
                    view = memoryview(judged(view, rules, now_ms))
                    head = header.unpack(view)
        size = head.size_bytes
        if size > segment_bytes_max:
            raise KafkaError(
                ErrorCode.record_list_too_large,
                f"{self._place}: the batch has {size} bytes, a segment at most {self.config.segment_bytes}",
            )
        marker: tuple[Marker, int] | None = None
        if head.producer_id >= 0:
            if head.attributes & CONTROL:
                marker = check_marker(view, head, self.producers, self._place)
            else:
                past = check_producer(head, self.producers, from_client, verification)
                if past is not None:
                    log_append_time_ms = past.timestamp_ms if self._stamps_time else -1
                    return Appended(past.first_offset, past.last_offset, log_append_time_ms, self.start_offset, True)
        first = self.end_offset
        last = first + head.last_offset - head.base_offset
        if self._stamps_time:
            max_ts = now_ms
            parts = header.with_offset_and_time(view, head, first, leader_epoch, now_ms)
        else:
            max_ts = head.max_timestamp_ms
            parts = header.with_offset(view, head, first, leader_epoch)
        try:
            segment = self._active
            if self._must_roll(segment, size, last, max_ts, now_ms):
                segment = self._roll(first, now_ms)
            segment.append(parts, size, last, max_ts)
        except OSError as error:
            raise self._storage_error(error) from error
        self.end_offset = last + 1
        if head.producer_id >= 0:
            ended = note_producer(head, self.producers, first, last, max_ts, marker)
            if ended is not None:
                segment.note_end(ended)
        # tuple.__new__ does not parse arguments as Appended() does: a twentieth of the whole append.
        return tuple.__new__(Appended, (first, last, now_ms if self._stamps_time else -1, self.start_offset, False))

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
            if not has_valid_crc(view[at : at + head.size_bytes], head):
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
                    is_control = head.attributes & CONTROL
                    body = view[head.position + HEADER_BYTES : head.position + head.size_bytes] if is_control else b""
                    ended = note_copied(self.producers, head, bytes(body))
                    if ended is not None:
                        segment.note_end(ended)
                position += head.size_bytes
        except Exception as bug:
            # The file holds batches that the log's state does not include: nothing may be appended after them.
            self.failure = OSError(f"{self._place}: a bug after an append: {bug!r}")
            raise
        self.end_offset = heads[-1].last_offset + 1
