"""Batch headers: walked in a file, checked before an append.

A batch is opaque except for its header; a marker's outcome is in its record, and `inside.py` says when a leader unpacks
a client's batch. Declared difference from Kafka: a client may not set the delete horizon.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from sexton.log.producers import Marker
from sexton.ports.disk import Buffer, File
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    OLDEST_LENGTH_MIN,
    ControlType,
    control_type_of_key,
)
from sexton.records.header import LENGTH_MIN, Head, has_valid_crc, head_at
from sexton.records.varint import read_varint

CODEC_MAX: Final = 4
SCAN_BYTES: Final = 1 << 20
"""Bytes read at once by a scan: enough for the disk to be the limit, little enough for a thousand logs."""

LOOKUP_BYTES: Final = 1 << 13
"""Bytes read at once by a lookup: an index entry is at most a few batches away."""


class Walk:
    """The headers of a file's batches from `position` on. Ends at `end`, or at the first bytes that are not a batch:
    then `fault` says what is wrong at `position`."""

    def __init__(
        self, file: File, position: int, end: int, *, check_crc: bool, chunk_bytes: int = LOOKUP_BYTES
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self._chunk_bytes = chunk_bytes
        self.position = position
        self.fault: str | None = None

    def __iter__(self) -> Iterator[Head]:
        start, data = self.position, b""
        view = memoryview(data)
        while self.position < self._end:
            at = self.position - start
            needed = HEADER_BYTES
            if at + HEADER_BYTES <= len(data) and self._check_crc:
                needed = max(
                    HEADER_BYTES, LOG_OVERHEAD_BYTES + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
                )
            if at + needed > len(data) and start + len(data) < self._end:
                size = min(max(self._chunk_bytes, needed), self._end - self.position)
                start, data = self.position, self._file.read(self.position, size)
                view = memoryview(data)
                if len(data) < size:
                    self.fault = "the file ends before its size"
                    return
                continue
            head = head_at(data, at, self.position)
            if isinstance(head, str):
                self.fault = head
                return
            if self.position + head.size_bytes > self._end:
                self.fault = "the batch is cut off"
                return
            if self._check_crc and not has_valid_crc(view[at : at + head.size_bytes]):
                self.fault = "the CRC does not match"
                return
            self.position += head.size_bytes
            yield head


def find_batch(data: Buffer, start: int, after_offset: int) -> int | None:
    """Position in `data`, at `start` or later, of a complete and valid batch with offsets above `after_offset`.

    Tells whether truncating at a fault would cut off valid batches.
    """
    view = memoryview(data)
    raw = bytes(data)
    at = raw.find(b"\x02", start + 16)
    while at >= 0:
        candidate = at - 16
        head = head_at(raw, candidate, candidate)
        if (
            not isinstance(head, str)
            and head.base_offset > after_offset
            and candidate + head.size_bytes <= len(raw)
            and has_valid_crc(view[candidate : candidate + head.size_bytes])
        ):
            return candidate
        at = raw.find(b"\x02", at + 1)
    return None


# ---- markers ----


def read_marker(head: Head, body: bytes) -> tuple[Marker, int] | None:
    """A control batch's outcome and timestamp. None if compaction has emptied it, or if its type ends no
    transaction."""
    if head.record_count == 0 or len(body) == 0:
        return None
    _, at = read_varint(body, 0)
    timestamp_delta, at = read_varint(body, at + 1)
    _, at = read_varint(body, at)
    key_bytes, at = read_varint(body, at)
    control_type = control_type_of_key(bytes(body[at : at + max(0, key_bytes)]))
    if control_type is ControlType.UNKNOWN:
        return None
    value_bytes, at = read_varint(body, at + key_bytes)
    coordinator_epoch = int.from_bytes(body[at + 2 : at + 6], "big", signed=True) if value_bytes >= 6 else 0
    is_log_append_time = head.attributes & LOG_APPEND_TIME
    timestamp_ms = head.max_timestamp_ms if is_log_append_time else head.base_timestamp_ms + timestamp_delta
    return Marker(control_type is ControlType.ABORT, coordinator_epoch), timestamp_ms


# ---- what a leader accepts ----


def check_frame(records: Buffer, place: str, size_max: int) -> tuple[int, ...]:
    """Header fields of `records`, which must be one batch: complete, of format 2, not too large, and with a valid
    CRC."""
    size = len(records)
    if size < HEADER_BYTES:
        raise _frame_error(records, place)
    fields = HEADER.unpack_from(records)
    if fields[1] != size - LOG_OVERHEAD_BYTES or fields[3] != MAGIC:
        raise _frame_error(records, place)
    if fields[6] < 0 or fields[12] < 0:
        raise KafkaError(ErrorCode.invalid_record, f"{place}: {fields[12]} records for {fields[6] + 1} offsets")
    if size > size_max:
        raise KafkaError(
            ErrorCode.message_too_large, f"{place}: the batch has {size} bytes, max.message.bytes is {size_max}"
        )
    if crc32c(records[ATTRIBUTES_POSITION:]) != fields[4]:
        raise KafkaError(ErrorCode.corrupt_message, f"{place}: the batch's CRC does not match")
    return fields


def _frame_error(records: Buffer, place: str) -> KafkaError:
    """Explains why the bytes are not one complete batch of format 2."""
    size = len(records)
    if size >= 17:
        length = int.from_bytes(records[8:12], "big", signed=True)
        magic = records[16]
        if magic in (0, 1) and length >= OLDEST_LENGTH_MIN:
            return KafkaError(
                ErrorCode.unsupported_for_message_format, f"{place}: message format v{magic} is from before Kafka 0.11"
            )
        if magic == MAGIC and LENGTH_MIN <= length < size - LOG_OVERHEAD_BYTES:
            return KafkaError(ErrorCode.invalid_record, f"{place}: more than one batch in one request")
    return KafkaError(ErrorCode.corrupt_message, f"{place}: {size} bytes that are no whole batch")


def check_client_batch(fields: tuple[int, ...], place: str) -> None:
    """Checks that apply to clients' batches but not to those that coordinators write."""
    base_offset, _, _, _, _, attributes, delta, _, _, producer_id, _, sequence, count = fields
    what = ""
    if base_offset != 0:
        what = f"the base offset should be 0, not {base_offset}"
    elif count <= 0 or count != delta + 1:
        what = f"{count} records for {delta + 1} offsets"
    elif attributes & (CONTROL | DELETE_HORIZON):
        what = "control batches and delete horizons are not for clients"
    elif attributes & CODEC_MASK > CODEC_MAX:
        what = f"codec {attributes & CODEC_MASK} is unknown"
    elif producer_id >= 0 and sequence < 0:
        what = f"producer {producer_id} sent no sequence number"
    if what:
        raise KafkaError(ErrorCode.invalid_record, f"{place}: {what}")
