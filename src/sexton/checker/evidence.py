"""What the judge hands back: plain data that is the same whoever computed it, in whatever order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sexton.history.op import UNKNOWN

EVIDENCE_MAX: Final = 32
"""Cases of one anomaly that are kept: Jepsen's number, enough to see a pattern. All are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One place at which an anomaly was found. `anomalies` says what `values` and `ops` are."""

    log: int = UNKNOWN
    values: tuple[int, ...] = ()
    ops: tuple[int, ...] = ()
    """Indexes of completions in the history."""
    severity: int = 0
    """Among cases of the same anomaly: the highest is shown first."""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "values": list(self.values),
            "ops": list(self.ops),
            "severity": self.severity,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """An anomaly that was found: how often, and its worst cases."""

    name: str
    count: int
    cases: tuple[Case, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "count": self.count, "cases": [case.to_json() for case in self.cases]}


def finding(name: str, cases: Iterable[Case], evidence_max: int = EVIDENCE_MAX) -> Finding:
    ordered = sorted(cases, key=_order)
    return Finding(name, len(ordered), tuple(ordered[:evidence_max]))


def canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _order(case: Case) -> tuple[int, int, tuple[int, ...], tuple[int, ...], str]:
    return -case.severity, case.log, case.ops, case.values, canonical_json(case.detail)
