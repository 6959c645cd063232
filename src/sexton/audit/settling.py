"""Which differences stand, among replicas that are written and compacted while they are read. Pure.

A replica is not read at one moment. Its cleaner may take a record before it is read because of one that was written
after it was read: then it shows nothing of a key, and rightly. So a difference counts only when it is seen twice:

1. It was seen. Then all replicas are asked for their high watermarks, and each is read on past the highest.
2. It is seen again, the same offsets on each replica.

Suppose A shows nothing of a key and B shows v at o, twice. If A's emptiness is legal, something with the key at x > o
made v go, and A had it when it was first read, so x is below what was read past before the second look. B was read past
x and shows nothing newer than o. Has B had x, and lost it to its cleaner? Then it lost o no later than x, and that o is
still there is looked up last. So B never got x.

What is different at each look changes faster than it can be read: those keys are *busy*, counted, and no error. No more
looks are taken when they do not get fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib import recfunctions

from sexton.spark.fold_compare import Compared, Differences, Why

LOOKS_MAX: Final = 5
"""After so many, what still changes is busy."""

ROWS_MAX: Final = 100_000
"""Differing keys of a partition that are followed from look to look."""

_IDENTITY: Final = ["first", "second", "why", "code", "content"]


def identities(rows: Differences) -> list[bytes]:
    """What of a row must be the same again."""
    packed = recfunctions.repack_fields(rows[_IDENTITY])
    return [row.tobytes() for row in packed]


@dataclass(frozen=True, slots=True)
class Looks:
    """The last two looks at one partition."""

    now: Compared
    before: Compared | None = None
    unsettled_before: int | None = None

    def then(self, now: Compared) -> Looks:
        return Looks(now, self.now, self.unsettled_count)

    @property
    def unsettled_count(self) -> int:
        """How many differences were not there, or not the same, at the look before."""
        return int((~self._stands()).sum())

    @property
    def is_open(self) -> bool:
        """Whether another look is worth its while: there are differences that do not stand yet, and they get fewer."""
        count = self.unsettled_count
        return count > 0 and (self.unsettled_before is None or count < self.unsettled_before)

    def settled(self, limit: int) -> tuple[Compared, int]:
        """What stands, the first up to the limit; and how many keys are busy."""
        rows, stands = self.now.differences, self._stands()
        busy_count = int((rows["why"][~stands] == Why.DIFFERS).sum())
        return replace(self.now, differences=rows[stands][:limit]), busy_count

    def _stands(self) -> npt.NDArray[np.bool_]:
        known = set() if self.before is None else set(identities(self.before.differences))
        return np.array([each in known for each in identities(self.now.differences)], dtype=np.bool_)
