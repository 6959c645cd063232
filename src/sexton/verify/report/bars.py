"""When which fault was in force, as far as a history tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sexton.history.op import HEAL, Ext, Op


@dataclass(frozen=True, slots=True)
class Bar:
    fault: str
    start_ns: int
    """When it was asked for: it may have been in force from then on."""
    end_ns: int
    """When it was known to be over, or the end of the history."""
    whom: str

    def is_in_force(self, start_ns: int, end_ns: int) -> bool:
        return self.start_ns <= end_ns and start_ns <= self.end_ns

    def __str__(self) -> str:
        return " ".join(filter(None, (self.fault, self.whom)))


def bars(nemesis: Sequence[Op], end_ns: int) -> list[Bar]:
    """By start. A fault that hit nobody has no phase in its completion, and no bar."""
    asked_ns: dict[str, int] = {}
    begun: dict[str, tuple[int, str]] = {}
    found = []

    def end(fault: str, at_ns: int) -> None:
        start_ns, whom = begun.pop(fault)
        found.append(Bar(fault, start_ns, at_ns, whom))

    for op in nemesis:
        phase = op.ext.get(Ext.PHASE)
        if not op.is_completion:
            asked_ns[op.f] = op.time_ns
        elif op.f == HEAL:
            for fault in list(begun):
                end(fault, op.time_ns)
        elif phase == "start":
            begun.setdefault(op.f, (asked_ns.get(op.f, op.time_ns), _whom(op.ext.get("value"))))
        elif phase == "stop" and op.f in begun:
            end(op.f, op.time_ns)
    for fault in list(begun):
        end(fault, end_ns)
    return sorted(found, key=lambda bar: (bar.start_ns, bar.fault))


def _whom(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_whom(each)}" for name, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
