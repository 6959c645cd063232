"""Keys with a fingerprint of their record's contents, for comparing two logs without sending their records.

The plain Python equivalents are ``records.keyhash.hash_key``, of the key and of the bytes after it, and
``hash_numbers``, of the latter hash, the timestamp and the value's size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.compaction.kernels.newest import bucket_of
from sexton.jit import kernel
from sexton.records.kernels.columns import Records
from sexton.records.kernels.keys import FLAG_BITS, TOMBSTONE, hash_key, hash_numbers
from sexton.records.kernels.primitives import Bytes

CONTENT = np.dtype([("first", np.uint64), ("second", np.uint64), ("code", np.int64), ("content", np.uint64)])
"""``records.kernels.keys.ENTRY`` and a hash of timestamp, value and headers: 32 bytes."""

Contents = npt.NDArray[np.void]


@kernel
def hash_contents(data: Bytes, records: Records, first_point: int, second_point: int, out: Contents) -> int:
    """An entry for each record that has a key; returns how many. ``out`` must have room for all."""
    filled = 0
    for index in range(len(records)):
        record = records[index]
        if record.key_size < 0:
            continue
        first, second = hash_key(data, record.key_start, record.key_size, first_point, second_point)
        # From the value to the record's end: value, header count and headers are adjacent. The value's size tells where
        # one ends and the other begins.
        rest, _ = hash_key(data, record.value_start, record.end - record.value_start, first_point, second_point)
        entry = out[filled]
        entry.first = first
        entry.second = second
        entry.code = (record.offset << FLAG_BITS) | (TOMBSTONE if record.value_size < 0 else 0)
        entry.content = hash_numbers(rest, np.uint64(record.timestamp), np.uint64(record.value_size), first_point)
        filled += 1
    return filled


@kernel
def hash_keys(
    data: Bytes, records: Records, numbers: npt.NDArray[np.int64], first_point: int, second_point: int, out: Contents
) -> int:
    """The same with a number in place of the hash of the contents: what of a record somebody wants to know who has its
    key's newest one."""
    filled = 0
    for index in range(len(records)):
        record = records[index]
        if record.key_size < 0:
            continue
        first, second = hash_key(data, record.key_start, record.key_size, first_point, second_point)
        entry = out[filled]
        entry.first = first
        entry.second = second
        entry.code = (record.offset << FLAG_BITS) | (TOMBSTONE if record.value_size < 0 else 0)
        entry.content = np.uint64(numbers[index])
        filled += 1
    return filled


@kernel
def buckets_of(entries: Contents, bucket_count: int) -> npt.NDArray[np.int64]:
    buckets = np.empty(len(entries), dtype=np.int64)
    for index in range(len(entries)):
        buckets[index] = bucket_of(entries[index].first, bucket_count)
    return buckets
