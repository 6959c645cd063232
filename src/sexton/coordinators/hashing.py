"""Maps groups and transactional ids to partitions of their coordinator's topic: every client and every broker must
agree on it."""

from __future__ import annotations

import struct

LONG_BYTES = 512
"""From this length on NumPy is faster. A client may send many names of megabytes, and hashing them must not block the
event loop. NumPy is imported when the first long name comes: brokers start without it."""


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, with the overflow of a 32-bit int."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = _hash(data) if len(data) < LONG_BYTES else _hash_long(data)
    return value - 2**32 if value >= 2**31 else value


def _hash(data: bytes) -> int:
    value = 0
    for (unit,) in struct.iter_unpack(">H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def _hash_long(data: bytes) -> int:
    import numpy as np

    units = np.frombuffer(data, ">u2").astype(np.uint32)
    weights = np.full(len(units), 31, np.uint32)
    weights[-1] = 1
    weights = np.cumprod(weights[::-1], dtype=np.uint32)[::-1]
    return int(np.sum(units * weights, dtype=np.uint32))


def partition_for(group: str, partitions_count: int) -> int:
    value = java_hash(group)
    # Kafka's Utils.abs: the one number without a positive counterpart becomes zero.
    return (0 if value == -(2**31) else abs(value)) % partitions_count
