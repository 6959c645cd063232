"""The batches of a file: walked header by header, searched for, and what a marker says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from sexton.log.producers import Marker
from sexton.ports.disk import Buffer
from sexton.records.batch import ControlType, control_type_of_key
from sexton.records.header import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_POSITION,
    Head,
    has_valid_crc,
    head_at,
    size_at,
)
from sexton.records.varint import read_varint

_MAGIC_BYTE: Final = bytes([MAGIC])
SCAN_BYTES: Final = 1 << 20
"""Bytes read at once by a scan: enough for the disk to be the limit, little enough for a thousand logs."""

LOOKUP_BYTES: Final = 1 << 13
"""Bytes read at once by a lookup: an index entry is at most a few batches away."""


class Readable(Protocol):
    def read(self, position: int, size_bytes: int) -> bytes: ...


class Walk:
    """The headers of a file's batches from `position` on. Ends at `end`, or at the first bytes that are not a batch:
    then `fault` says what is wrong at `position`."""

    def __init__(
        self, file: Readable, position: int, end: int, *, check_crc: bool, chunk_bytes: int = LOOKUP_BYTES
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
                needed = max(HEADER_BYTES, size_at(data, at))
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
            if self._check_crc and not has_valid_crc(view[at : at + head.size_bytes], head):
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
    at = raw.find(_MAGIC_BYTE, start + MAGIC_POSITION)
    while at >= 0:
        candidate = at - MAGIC_POSITION
        head = head_at(raw, candidate, candidate)
        if (
            not isinstance(head, str)
            and head.base_offset > after_offset
            and candidate + head.size_bytes <= len(raw)
            and has_valid_crc(view[candidate : candidate + head.size_bytes], head)
        ):
            return candidate
        at = raw.find(_MAGIC_BYTE, at + 1)
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
