"""Records on their way into another partition: which one their key belongs to, and how they are written there.

The plain twins are ``client.partitioner.partition_of`` and ``records.batch.encode``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.jit import inlined_kernel, kernel
from sexton.records.kernels.columns import Records
from sexton.records.kernels.primitives import Bytes, copy_bytes, write_varint

PACKED = np.dtype(
    [
        ("offset", np.int64),
        ("timestamp", np.int64),
        ("start", np.int64),
        ("size", np.int32),
        ("key_size", np.int32),
    ]
)
"""A record without its batch: its bytes from the key on (without the key's size, -1 for none) are
``bytes[start:start + size]``."""

Packed = npt.NDArray[np.void]
Ints = npt.NDArray[np.int32]

RECORD_OVERHEAD_BYTES_MAX = 32
"""Length, attributes, two deltas and the key's size, at their longest."""

_MASK = np.uint64(0xFFFFFFFF)
_M = np.uint64(0x5BD1E995)
_SEED = np.uint64(0x9747B28C)


@inlined_kernel
def _mixed(part: int) -> int:
    part = (part * _M) & _MASK
    return ((part ^ (part >> np.uint64(24))) * _M) & _MASK


@kernel
def murmur2(data: Bytes, start: int, size: int) -> int:
    value = _SEED ^ np.uint64(size)
    whole = size & ~3
    for position in range(start, start + whole, 4):
        part = np.uint64(data[position])
        for index in range(1, 4):
            part |= np.uint64(data[position + index]) << np.uint64(8 * index)
        value = ((value * _M) & _MASK) ^ _mixed(part)
    if size > whole:
        rest = np.uint64(0)
        for index in range(size - whole):
            rest |= np.uint64(data[start + whole + index]) << np.uint64(8 * index)
        value = ((value ^ rest) * _M) & _MASK
    value = ((value ^ (value >> np.uint64(13))) * _M) & _MASK
    return value ^ (value >> np.uint64(15))


@kernel
def partitions_of(data: Bytes, records: Records, partition_count: int, out: Ints) -> None:
    """Where Kafka's default partitioner puts each record; -1 without a key."""
    for index in range(len(records)):
        size = records[index].key_size
        if size < 0:
            out[index] = -1
            continue
        hashed = murmur2(data, records[index].key_start, np.int64(size)) & np.uint64(0x7FFFFFFF)
        out[index] = np.int32(hashed % np.uint64(partition_count))


@inlined_kernel
def _varint_size(value: int) -> int:
    unsigned = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while unsigned >= np.uint64(0x80):
        unsigned >>= np.uint64(7)
        size += 1
    return size


@kernel
def write_records(data: Bytes, packed: Packed, base_timestamp: int, out: Bytes) -> int:
    """Writes the records of one batch, with offsets that count from 0. Returns their size; ``out`` must have room for
    it: ``RECORD_OVERHEAD_BYTES_MAX`` each, and their bytes."""
    position = 0
    for index in range(len(packed)):
        record = packed[index]
        delta = record.timestamp - base_timestamp
        key_size = np.int64(record.key_size)
        size = np.int64(record.size)
        length = 1 + _varint_size(delta) + _varint_size(np.int64(index)) + _varint_size(key_size) + size
        position = write_varint(out, position, length)
        out[position] = 0
        position = write_varint(out, position + 1, delta)
        position = write_varint(out, position, np.int64(index))
        position = write_varint(out, position, key_size)
        copy_bytes(data, record.start, out, position, size)
        position += size
    return position
