"""A sample of a log, and what follows from it for the whole, with its error. Pure.

A partition's offsets are divided into strata of equal length, and each stratum into cells; two cells of each are read,
drawn at random, and what has its offset in the cell is counted. The total of a stratum is its cells' mean times their
number; the two cells' difference gives its variance, and variances of strata add up. Strata follow a log's history: its
beginning is thinned by compaction, its end is not, and that difference is no error. And a log without gaps has as many
records as offsets, so it gives none at all.

So few differences tell an error badly: a margin is a Student's t for as many as there were (Satterthwaite's number of
degrees of freedom, where strata differ).

Distinct keys are another matter: whether a record's key has a newer record elsewhere, a sample does not see. It gives
bounds. Whole partitions, drawn at random, give an estimate, because keys are spread over partitions by their hash.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

CELLS_READ: Final = 2
"""Of each stratum: the least that has a variance."""
STRATA_MIN: Final = 5
"""With fewer, nobody could tell how far to trust the variance."""
STRATA_MAX: Final = 16
CELL_BYTES_MIN: Final = 256 << 10
"""A smaller cell costs a request all the same, and its first batch may be larger."""
WHOLE_BYTES_MAX: Final = 16 << 20
"""A log that small is read whole."""
WHOLE_OFFSETS_MAX: Final = 1_000

T_95: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t by degrees of freedom from 1 on: between so many standard errors on either side the truth lies in 95 of
100 samples."""
T_95_OF_MANY: Final = 2.12


class Estimate(NamedTuple):
    value: float
    variance: float = 0.0
    is_exact: bool = True

    squares: float = 0.0
    """The sum of variance² / degrees of freedom of its parts."""

    @property
    def rounded(self) -> int:
        return round(self.value)

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.variance)

    @property
    def margin(self) -> float:
        """The truth lies within it in 95 of 100 samples. Infinite, if nothing tells."""
        if self.variance == 0 or math.isinf(self.variance):
            return self.standard_error
        freedom = int(self.variance**2 / self.squares)
        return (T_95[max(1, freedom) - 1] if freedom <= len(T_95) else T_95_OF_MANY) * self.standard_error

    def plus(self, other: Estimate) -> Estimate:
        return Estimate(
            self.value + other.value,
            self.variance + other.variance,
            self.is_exact and other.is_exact,
            self.squares + other.squares,
        )


ZERO: Final = Estimate(0)


@dataclass(frozen=True, slots=True)
class Stratum:
    cell_count: int
    cells: tuple[tuple[int, int], ...]
    """Offsets [from, to) of those that are read."""


def strata_of(
    from_offset: int, to_offset: int, size_bytes: int, fraction: float, rng: random.Random
) -> tuple[Stratum, ...]:
    """Empty: the log is so small, or the fraction so large, that it is best read whole."""
    offsets = to_offset - from_offset
    cell_count = round(CELLS_READ / fraction)
    if cell_count <= CELLS_READ or size_bytes <= WHOLE_BYTES_MAX or offsets <= WHOLE_OFFSETS_MAX:
        return ()
    wanted = size_bytes * fraction / (CELLS_READ * CELL_BYTES_MIN)
    count = max(1, min(max(STRATA_MIN, int(wanted)), STRATA_MAX, offsets // (2 * cell_count)))
    edges = [from_offset + offsets * index // count for index in range(count + 1)]
    return tuple(_stratum(edges[index], edges[index + 1], cell_count, rng) for index in range(count))


def _stratum(start: int, end: int, cell_count: int, rng: random.Random) -> Stratum:
    count = min(cell_count, end - start)
    edges = [start + (end - start) * index // count for index in range(count + 1)]
    drawn = sorted(rng.sample(range(count), min(CELLS_READ, count)))
    return Stratum(count, tuple((edges[index], edges[index + 1]) for index in drawn))


def total(strata: Sequence[Stratum], counted: Sequence[Sequence[float]]) -> Estimate:
    """`counted` is what was found in each stratum's cells, in order."""
    result = ZERO
    for stratum, found in zip(strata, counted, strict=True):
        result = result.plus(expanded(found, stratum.cell_count))
    return result


def expanded(found: Sequence[float], count: int) -> Estimate:
    """The total of `count` of which these were drawn at random, without any of them twice."""
    drawn = len(found)
    mean = sum(found) / drawn
    if drawn == count:
        return Estimate(sum(found))
    spread = sum((each - mean) ** 2 for each in found) / (drawn - 1) if drawn > 1 else math.inf
    variance = count * count * (1 - drawn / count) * spread / drawn
    return Estimate(mean * count, variance, is_exact=False, squares=variance**2 / max(1, drawn - 1))
