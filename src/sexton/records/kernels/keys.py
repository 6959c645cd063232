"""Hashes keys: the compiled twin of ``records.keyhash``, and the walk over records for the index pass of compaction."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.jit import inlined_kernel, kernel
from sexton.records.kernels.primitives import Bytes, load_u64, multiply_high, read_varint
from sexton.records.kernels.scan import Table

ENTRY = np.dtype([("first", np.uint64), ("second", np.uint64), ("code", np.int64)])
"""A key's 128-bit hash and its offset, with two flags below it: ``code = offset << 2 | flags``. 24 bytes. Codes rise
with offsets, so a key's entries can be compared by code."""

FLAG_BITS = 2
DEAD = 1
TOMBSTONE = 2

SKIP_KEYLESS = -1

Entries = npt.NDArray[np.void]
Longs = npt.NDArray[np.int64]

_PRIME = np.uint64((1 << 61) - 1)
_SEVEN_BYTES = np.uint64((1 << 56) - 1)


@inlined_kernel
def _multiply_add(value: int, point: int, block: int) -> int:
    """Returns (value * point + block) modulo 2^61 - 1: folds the product's upper bits onto its lower 61."""
    low = value * point
    high = multiply_high(value, point)
    total = (low & _PRIME) + ((low >> np.uint64(61)) | (high << np.uint64(3))) + block
    total = (total & _PRIME) + (total >> np.uint64(61))
    return total - _PRIME if total >= _PRIME else total


@inlined_kernel
def _spread(value: int) -> int:
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@kernel
def hash_key(data: Bytes, start: int, size: int, first_point: int, second_point: int) -> tuple[int, int]:
    first = np.uint64(1)
    second = np.uint64(1)
    position = start
    left = size
    while left > 0:
        taken = min(left, 7)
        if position + 8 <= len(data):
            block = load_u64(data, position) & _SEVEN_BYTES
            if taken < 7:
                block &= (np.uint64(1) << np.uint64(8 * taken)) - np.uint64(1)
        else:
            block = np.uint64(0)
            for index in range(taken):
                block |= np.uint64(data[position + index]) << np.uint64(8 * index)
        first = _multiply_add(first, first_point, block)
        second = _multiply_add(second, second_point, block)
        position += taken
        left -= taken
    length = np.uint64(size)
    return _spread(_multiply_add(first, first_point, length)), _spread(_multiply_add(second, second_point, length))


@kernel
def hash_numbers(first: int, second: int, third: int, point: int) -> int:
    """Hashes three 64-bit numbers, with one secret point."""
    value = np.uint64(1)
    for number in (first, second, third):
        value = _multiply_add(value, point, number & _SEVEN_BYTES)
        value = _multiply_add(value, point, number >> np.uint64(56))
    return _spread(value)


@kernel
def hash_records(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    table: Table,
    first_point: int,
    second_point: int,
    keyless_flags: int,
    out: Entries,
    filled: int,
) -> tuple[int, int, int]:
    """Appends one entry per record.

    ``data[starts[i]:ends[i]]`` holds batch i's records, decompressed. A record without a key gets an entry that equals
    no other, with ``keyless_flags``, or none (``SKIP_KEYLESS``). Returns how full ``out`` is, the index of the first
    batch that cannot be parsed (-1: none), and the number of records without a key. ``out`` must have room for every
    record.
    """
    keyless_count = 0
    for batch in range(len(starts)):
        position = starts[batch]
        end = ends[batch]
        base_offset = table[batch].base_offset
        previous = base_offset - 1
        last_offset = table[batch].last_offset
        for _ in range(table[batch].record_count):
            length, position = read_varint(data, position, end)
            # Compared without adding: the result of an overflow is undefined.
            if position < 0 or length < 5 or length > end - position:
                return filled, batch, keyless_count
            record_end = position + length
            _, position = read_varint(data, position + 1, record_end)
            if position < 0:
                return filled, batch, keyless_count
            delta, position = read_varint(data, position, record_end)
            if position < 0 or delta < 0 or delta > last_offset - base_offset:
                return filled, batch, keyless_count
            offset = base_offset + delta
            if offset <= previous:
                return filled, batch, keyless_count
            previous = offset
            key_size, position = read_varint(data, position, record_end)
            if position < 0 or key_size < -1 or key_size > record_end - position:
                return filled, batch, keyless_count
            flags = 0
            if key_size >= 0:
                value_size, after = read_varint(data, position + key_size, record_end)
                if after < 0:
                    return filled, batch, keyless_count
                flags = TOMBSTONE if value_size < 0 else 0
                first, second = hash_key(data, position, key_size, first_point, second_point)
            else:
                keyless_count += 1
                flags = keyless_flags
                first, second = _spread(np.uint64(offset)), ~_spread(np.uint64(offset))
            if flags != SKIP_KEYLESS:
                entry = out[filled]
                entry.first = first
                entry.second = second
                entry.code = (offset << FLAG_BITS) | flags
                filled += 1
            position = record_end
        if position != end:
            return filled, batch, keyless_count
    return filled, -1, keyless_count
