"""Maps groups and transactional ids to partitions of their coordinator's topic: every client and every broker must
agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from struct import unpack_from
from typing import Final

UNITS_AT_ONCE: Final = 256
"""Multiplied and summed without a step of Python for each: names may be as long as a string can be (`bounds`)."""

_POWERS: Final[Sequence[int]] = [pow(31, UNITS_AT_ONCE - 1 - place, 2**32) for place in range(UNITS_AT_ONCE)]
_POWER: Final = pow(31, UNITS_AT_ONCE, 2**32)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, with the overflow of a 32-bit int."""
    data = text.encode("utf-16-be", "surrogatepass")
    count = len(data) // 2
    value, at = 0, count % UNITS_AT_ONCE
    for unit in unpack_from(f">{at}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    for start in range(at, count, UNITS_AT_ONCE):
        units = unpack_from(f">{UNITS_AT_ONCE}H", data, 2 * start)
        value = (value * _POWER + sum(map(mul, units, _POWERS))) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(group: str, partitions_count: int) -> int:
    value = java_hash(group)
    # Kafka's Utils.abs: the one number without a positive counterpart becomes zero.
    return (0 if value == -(2**31) else abs(value)) % partitions_count
