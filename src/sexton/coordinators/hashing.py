"""Which partition of `__consumer_offsets` keeps a group: every client and every broker must agree on it."""

from __future__ import annotations

import struct


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, with the overflow of a 32-bit int."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(group: str, partitions_count: int) -> int:
    value = java_hash(group)
    # Kafka's Utils.abs: the one number without a positive counterpart becomes zero.
    return (0 if value == -(2**31) else abs(value)) % partitions_count
