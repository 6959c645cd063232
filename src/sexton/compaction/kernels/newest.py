"""Finds each key's newest record: entries of hashes and offsets, split into buckets, older ones marked as dead."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.jit import inlined_kernel, kernel
from sexton.records.kernels.keys import DEAD, Entries
from sexton.records.kernels.primitives import multiply_high

Longs = npt.NDArray[np.int64]

FILTER_BITS_PER_KEY = 12
"""Size of the filter for the clean section. Each key sets four bits of one 64-bit word: about 2 % false positives."""

FALSE_POSITIVES_PER = 50
"""The filter's false positives are one in this many."""


@inlined_kernel
def bucket_of(first: int, bucket_count: int) -> int:
    """Buckets take the hash's upper bits, table slots the lower ones."""
    return np.int64(multiply_high(first, np.uint64(bucket_count)))


@kernel
def _strike_older(
    entries: Entries, start: int, end: int, slots: npt.NDArray[np.int32], alive: npt.NDArray[np.bool_]
) -> int:
    """Marks the newest entry of each key in ``entries[start:end]`` (ascending offsets); returns how many there are.

    Goes backwards: the first entry seen of a key is its newest, and nothing is ever updated.
    """
    mask = np.uint64(1)
    while mask < np.uint64(2 * (end - start)):
        mask <<= np.uint64(1)
    slots[: np.int64(mask)] = -1
    mask -= np.uint64(1)
    count = 0
    for index in range(end - 1, start - 1, -1):
        first = entries[index].first
        second = entries[index].second
        slot = second & mask
        alive[index] = True
        while True:
            other = slots[slot]
            if other < 0:
                slots[slot] = index - start
                count += 1
                break
            if entries[start + other].first == first and entries[start + other].second == second:
                alive[index] = False
                break
            slot = (slot + np.uint64(1)) & mask
    return count


@kernel
def slots_needed(entry_count: int) -> int:
    size = 1
    while size < 2 * entry_count:
        size <<= 1
    return size


@kernel
def _split(entries: Entries, bucket_count: int, out: Entries) -> Longs:
    """Sorts entries by bucket into ``out``, stably; returns the buckets' bounds."""
    bounds = np.zeros(bucket_count + 1, dtype=np.int64)
    for index in range(len(entries)):
        bounds[bucket_of(entries[index].first, bucket_count) + 1] += 1
    for bucket in range(bucket_count):
        bounds[bucket + 1] += bounds[bucket]
    cursor = bounds[:-1].copy()
    for index in range(len(entries)):
        bucket = bucket_of(entries[index].first, bucket_count)
        target = out[cursor[bucket]]
        target.first = entries[index].first
        target.second = entries[index].second
        target.code = entries[index].code
        cursor[bucket] += 1
    return bounds


@kernel
def split_newest(
    entries: Entries,
    bucket_count: int,
    out: Entries,
    slots: npt.NDArray[np.int32],
    alive: npt.NDArray[np.bool_],
) -> Longs:
    """Writes the newest entry of each key into ``out``, by bucket, ascending within a bucket; returns the buckets'
    bounds.

    ``slots`` must have room for the fullest bucket (``slots_needed(len(entries))`` always suffices).
    """
    bounds = _split(entries, bucket_count, out)
    result = np.zeros(bucket_count + 1, dtype=np.int64)
    filled = 0
    for bucket in range(bucket_count):
        start, end = bounds[bucket], bounds[bucket + 1]
        _strike_older(out, start, end, slots, alive)
        for index in range(start, end):
            if alive[index]:
                out[filled].first = out[index].first
                out[filled].second = out[index].second
                out[filled].code = out[index].code
                filled += 1
        result[bucket + 1] = filled
    return result


@kernel
def strike_older(entries: Entries, slots: npt.NDArray[np.int32], alive: npt.NDArray[np.bool_]) -> int:
    """Marks whether each entry of one bucket is its key's newest; returns how many are. Entries must rise by offset."""
    return _strike_older(entries, 0, len(entries), slots, alive)


@inlined_kernel
def _filter_bits(second: int) -> int:
    """Four of a word's 64 bits, from the hash's upper half; the lower picks the word."""
    bits = np.uint64(0)
    for index in range(4):
        bits |= np.uint64(1) << ((second >> np.uint64(32 + 6 * index)) & np.uint64(63))
    return bits


@kernel
def fill_filter(entries: Entries, alive: npt.NDArray[np.bool_], words: npt.NDArray[np.uint64]) -> None:
    """Sets each key's bits in a bucket's section of the filter."""
    for index in range(len(entries)):
        if alive[index]:
            second = entries[index].second
            word = multiply_high(second << np.uint64(32), np.uint64(len(words)))
            words[np.int64(word)] |= _filter_bits(second)


@kernel
def pass_filter(
    entries: Entries, filled: int, words: npt.NDArray[np.uint64], sections: Longs, listed: Longs
) -> tuple[int, int]:
    """Keeps, in place, the entries whose key may be in the filter; returns how many.

    Entries that are not kept belong to records that stay, or that have no key. The codes of those that have a flag are
    written to ``listed``; the second result is their number. ``sections`` holds the bounds of the buckets' sections of
    ``words``.
    """
    kept = 0
    listed_count = 0
    bucket_count = len(sections) - 1
    for index in range(filled):
        first = entries[index].first
        second = entries[index].second
        code = entries[index].code
        bucket = bucket_of(first, bucket_count)
        start, end = sections[bucket], sections[bucket + 1]
        passes = False
        if end > start and not code & DEAD:
            word = start + np.int64(multiply_high(second << np.uint64(32), np.uint64(end - start)))
            bits = _filter_bits(second)
            passes = (words[word] & bits) == bits
        if passes:
            entries[kept].first = first
            entries[kept].second = second
            entries[kept].code = code
            kept += 1
        elif code & 3:
            listed[listed_count] = code
            listed_count += 1
    return kept, listed_count
