"""Texts that were met, each once: without a Python object for one that was met before."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sexton.history.kernels.tables import Bytes, Ints
from sexton.jit import kernel


class Texts(NamedTuple):
    """Texts that were met, each once, by their place in `data`: a hash table."""

    slots: Ints
    """A power of two, at least twice as many as texts; -1 is free."""
    places: npt.NDArray[np.int64]
    """A row for each text: where it starts and ends. In the first row: how many there are."""


@kernel
def _hash(data: Bytes, start: int, end: int) -> int:
    value = np.uint64(0xCBF29CE484222325)
    for position in range(start, end):
        value = (value ^ np.uint64(data[position])) * np.uint64(0x100000001B3)
    return value ^ (value >> np.uint64(29))


@kernel
def intern(data: Bytes, start: int, end: int, texts: Texts) -> int:
    """Returns the text's number, or -2 if there is no room for another.

    In `ops` a text is -1 minus its number, and the empty one is 0: so 1 is none, and tells that there was no room.
    """
    count = texts.places[0, 0]
    mask = np.uint64(len(texts.slots) - 1)
    slot = _hash(data, start, end) & mask
    while texts.slots[slot] >= 0:
        number = texts.slots[slot]
        other = texts.places[number + 1, 0]
        if texts.places[number + 1, 1] - other == end - start:
            same = 0
            while same < end - start and data[other + same] == data[start + same]:
                same += 1
            if same == end - start:
                return number
        slot = (slot + np.uint64(1)) & mask
    if 2 * (count + 1) > len(texts.slots):
        return -2
    texts.slots[slot] = count
    texts.places[count + 1, 0] = start
    texts.places[count + 1, 1] = end
    texts.places[0, 0] = count + 1
    return count


@kernel
def intern_all(data: Bytes, known: npt.NDArray[np.int64], texts: Texts) -> None:
    """Fills a larger table, `texts`, with those of another, in their order."""
    for row in range(1, known[0, 0] + 1):
        intern(data, known[row, 0], known[row, 1], texts)
