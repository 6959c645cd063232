"""Producer snapshots: what a log knows about its idempotent and transactional producers at one offset.

`<offset>.snapshot` sums up all batches below that offset, so that a broker need not read the whole log to
know which sequence number each producer sends next. Layout, big-endian:

    version int16 | CRC-32C uint32 of everything after it | count int32 | count entries of 46 bytes

Version 1 is the only one, up to Kafka 4.3 at least. The checksum does not cover the version.

What a broker does with them on start:
- It loads the newest one at or below the log end, drops producers without an open transaction that have
  been idle for `producer.id.expiration.ms`, and reads the log from there on. Snapshots at or below the log
  start or above the log end are deleted; so are those that match no segment's base offset, except the newest
  if it lies above them all (the one a clean shutdown leaves at the log end).
- One that is corrupt or of another version is deleted with a warning, and the next older one is tried. With
  none left the whole log is read.
- With no snapshot at all after a clean shutdown, the log is taken for one without producers and **not**
  scanned.
- It writes over an existing file of the same name without cutting it, so a longer one that was left there
  makes its own snapshot corrupt. Remove what a new log end makes obsolete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Final

from crc32c import crc32c

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.types import ProducerEpoch, ProducerId

VERSION: Final = 1

_VERSION = struct.Struct(">h")
_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END: Final = _VERSION.size + _CRC.size
_HEADER_BYTES: Final = _CRC_END + _COUNT.size

_REMEDY: Final = (
    "Delete the file while no broker uses it: a broker rebuilds it from an older snapshot and the log, "
    "or copy it from another replica of the partition"
)


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One producer's last batch.

    A producer of which only a transaction marker is left has no batch: `last_sequence` and `last_offset` are
    -1 and `offset_delta` is 0. `last_timestamp` is in milliseconds. `offset_delta` is the last batch's number
    of offsets less one, from which its first sequence follows. `coordinator_epoch` is that of the last
    marker, -1 before the first. `current_txn_first_offset` is -1 when no transaction is open.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Writes entries in order of producer id, so that equal state is equal bytes on every replica."""
    ordered = sorted(entries, key=lambda entry: entry.producer_id)
    for before, entry in pairwise(ordered):
        if before.producer_id == entry.producer_id:
            raise ValueError(f"producer {entry.producer_id} is there twice")
    body = _COUNT.pack(len(ordered)) + b"".join(_ENTRY.pack(*astuple(entry)) for entry in ordered)
    return _VERSION.pack(VERSION) + _CRC.pack(crc32c(body)) + body


def decode_producer_snapshot(data: bytes, place: str) -> tuple[ProducerEntry, ...]:
    """Returns entries in the file's order. Errors name `place`."""
    if len(data) < _HEADER_BYTES:
        raise CorruptLogError(
            f"cut short: {len(data)} bytes, where the header alone has {_HEADER_BYTES}", place, _REMEDY
        )
    (version,) = _VERSION.unpack_from(data)
    if version != VERSION:
        raise UnsupportedFormatError(
            f"producer snapshot of version {version}; only version {VERSION} is known",
            place,
            "Use a release of Sexton that knows this version. If the first two bytes are damaged: " + _REMEDY,
        )
    (count,) = _COUNT.unpack_from(data, _CRC_END)
    expected_bytes = _HEADER_BYTES + count * _ENTRY.size
    (stored_crc,) = _CRC.unpack_from(data, _VERSION.size)
    computed_crc = crc32c(memoryview(data)[_CRC_END:])
    if stored_crc != computed_crc or count < 0 or len(data) != expected_bytes:
        raise CorruptLogError(_what_is_wrong(len(data), expected_bytes, stored_crc, computed_crc), place, _REMEDY)
    entries = tuple(ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEADER_BYTES:]))
    if len({entry.producer_id for entry in entries}) != count:
        raise CorruptLogError("a producer is there twice", place, _REMEDY)
    return entries


def _what_is_wrong(size_bytes: int, expected_bytes: int, stored_crc: int, computed_crc: int) -> str:
    """The likeliest reason first: a length that does not fit its count explains a wrong checksum too."""
    crc = "" if stored_crc == computed_crc else f", checksum {stored_crc:08x} is stored, {computed_crc:08x} is true"
    if expected_bytes < _HEADER_BYTES:
        return f"a negative count of entries{crc}"
    if size_bytes < expected_bytes:
        return f"cut short: {size_bytes} bytes of {expected_bytes}{crc}"
    if size_bytes > expected_bytes:
        return f"{size_bytes - expected_bytes} bytes after the last entry{crc}"
    return f"damaged{crc}"
