"""The partition of a key: the same as in every Kafka client that hashes as Java's does."""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits, as Kafka's Java client seeds it."""
    size = len(data)
    value = _SEED ^ size
    whole = size & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        part = (part ^ (part >> 24)) * _M & _MASK
        value = (value * _M & _MASK) ^ part
    if size > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ (value >> 13)) * _M & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
