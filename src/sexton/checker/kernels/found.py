"""Cases of an anomaly as arrays: all are counted, and the worst become evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sexton.checker.evidence import Case, Finding, finding
from sexton.checker.kernels.arrays import Longs
from sexton.checker.kernels.columns import Columns


@dataclass(frozen=True, slots=True)
class Found:
    """What a part of a history shows of an anomaly: how often, and at least its worst cases."""

    count: int = 0
    cases: Sequence[Case] = ()


@dataclass(frozen=True, kw_only=True)
class Cases:
    """A row for each; `ops` are rows of calls, `values` vids, `log` ranks."""

    log: Longs
    ops: Sequence[Longs]
    values: Sequence[Longs]
    severity: Longs | None = None
    detail: Callable[[int], Mapping[str, Any]] = field(default=lambda row: {})

    def found(self, columns: Columns, evidence_max: int) -> Found:
        return Found(len(self.log), [self._case(columns, row) for row in self._worst(columns, evidence_max)])

    def _worst(self, columns: Columns, count: int) -> list[int]:
        """As `evidence` orders them; where only their detail tells the last from the next, all of these."""
        rows = np.arange(len(self.log))
        if self.severity is not None and len(rows) > count:
            least = np.partition(self.severity, len(rows) - count)[len(rows) - count]
            rows = rows[self.severity >= least]
        keys = [] if self.severity is None else [-self.severity[rows]]
        keys += [self.log[rows], *(calls[rows] for calls in self.ops)]
        keys += [columns.value_of[vids[rows]] for vids in self.values]
        order = np.lexsort(keys[::-1])
        if len(order) > count:
            is_tied = np.ones(len(order) - count, np.bool_)
            for key in keys:
                is_tied &= key[order[count:]] == key[order[count - 1]]
            order = order[: count + int(is_tied.sum())]
        worst: list[int] = rows[order].tolist()
        return worst

    def _case(self, columns: Columns, row: int) -> Case:
        return Case(
            log=int(columns.logs[self.log[row]]),
            values=tuple(int(columns.value_of[vids[row]]) for vids in self.values),
            ops=tuple(int(columns.index[calls[row]]) for calls in self.ops),
            severity=0 if self.severity is None else int(self.severity[row]),
            detail=self.detail(row),
        )


def merged(name: str, parts: Iterable[Found], evidence_max: int) -> Finding:
    """Of parts that have no case in common."""
    found = list(parts)
    worst = finding(name, (case for part in found for case in part.cases), evidence_max)
    return Finding(name, sum(part.count for part in found), worst.cases)
