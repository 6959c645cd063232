"""Cases of an anomaly as arrays: all are counted, and the worst become evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sexton.checker.evidence import Case, Finding, finding
from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


@dataclass(frozen=True, slots=True)
class Found:
    """What a part of a history shows of an anomaly: how often, and at least its worst cases."""

    count: int = 0
    cases: Sequence[Case] = ()


@dataclass(frozen=True, kw_only=True)
class Cases:
    """A row for each; `ops` are rows of calls, `values` vids, `log` ranks. A last value may be UNKNOWN: then there is
    none."""

    log: Longs
    ops: Sequence[Longs]
    values: Sequence[Longs]
    severity: Longs | None = None
    detail: Callable[[int], Mapping[str, Any]] = field(default=lambda row: {})

    def only(self, wanted: Bools) -> Cases:
        rows = np.flatnonzero(wanted)
        return Cases(
            log=self.log[rows],
            ops=[calls[rows] for calls in self.ops],
            values=[vids[rows] for vids in self.values],
            severity=None if self.severity is None else self.severity[rows],
            detail=lambda row: self.detail(int(rows[row])),
        )

    def found(self, columns: Columns, evidence_max: int) -> Found:
        return Found(len(self.log), [self._case(columns, row) for row in self._worst(columns, evidence_max)])

    def _worst(self, columns: Columns, count: int) -> list[int]:
        """Where only their detail tells the last from the next, all of these."""
        keys = [self.log, *self.ops, *(_values_of(columns, vids) for vids in self.values)]
        return worst(self.severity, keys, count)

    def _case(self, columns: Columns, row: int) -> Case:
        return Case(
            log=int(columns.logs[self.log[row]]),
            values=tuple(int(columns.value_of[vids[row]]) for vids in self.values if vids[row] != UNKNOWN),
            ops=tuple(int(columns.index[calls[row]]) for calls in self.ops),
            severity=0 if self.severity is None else int(self.severity[row]),
            detail=self.detail(row),
        )


def worst(severity: Longs | None, keys: Sequence[Longs], count: int) -> list[int]:
    """Rows of the first cases as `evidence` orders them, by these keys; all that are equal to the last of them, too."""
    rows = np.arange(len(keys[0]))
    if severity is not None:
        if len(rows) > count:
            least = np.partition(severity, len(rows) - count)[len(rows) - count]
            rows = rows[severity >= least]
        keys = [-severity, *keys]
    keys = [key[rows] for key in keys]
    order = np.lexsort(keys[::-1])
    if len(order) > count:
        is_tied = np.ones(len(order) - count, np.bool_)
        for key in keys:
            is_tied &= key[order[count:]] == key[order[count - 1]]
        order = order[: count + int(is_tied.sum())]
    found: list[int] = rows[order].tolist()
    return found


def _values_of(columns: Columns, vid: Longs) -> Longs:
    """No value comes before any."""
    lowest = np.iinfo(np.int64).min
    return np.where(vid == UNKNOWN, lowest, np.append(columns.value_of, lowest)[vid])


@kernel
def with_room(found: Longs, count: int) -> Longs:
    """Rows as they are, if there is one after the first `count`; otherwise more."""
    if count < len(found):
        return found
    larger = np.empty((2 * len(found), found.shape[1]), np.int64)
    larger[:count] = found
    return larger


def merged(name: str, parts: Iterable[Found], evidence_max: int) -> Finding:
    """Of parts that have no case in common."""
    found = list(parts)
    worst = finding(name, (case for part in found for case in part.cases), evidence_max)
    return Finding(name, sum(part.count for part in found), worst.cases)
