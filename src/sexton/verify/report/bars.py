"""When which fault was in force, as far as a history tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    how: str = ""
    """What more is known of it: which brokers do not hear each other, by how much clocks are wrong."""

    def is_in_force(self, start_ns: int, end_ns: int) -> bool:
        return self.start_ns <= end_ns and start_ns <= self.end_ns

    def __str__(self) -> str:
        return " ".join(filter(None, (self.fault, self.told)))

    @property
    def told(self) -> str:
        """To whom it happened, and how."""
        return ": ".join(filter(None, (self.whom, self.how)))


def bars(nemesis: Sequence[Op], end_ns: int) -> list[Bar]:
    """By start. A fault that hit nobody has no phase in its completion, and no bar."""
    asked_ns: dict[str, int] = {}
    begun: dict[str, tuple[int, str, str]] = {}
    found = []

    def end(fault: str, at_ns: int) -> None:
        start_ns, whom, how = begun.pop(fault)
        found.append(Bar(fault, start_ns, at_ns, whom, how))

    for op in nemesis:
        phase = op.ext.get(Ext.PHASE)
        if not op.is_completion:
            asked_ns[op.f] = op.time_ns
        elif op.f == HEAL:
            for fault in list(begun):
                end(fault, op.time_ns)
        elif phase == "start":
            begun.setdefault(op.f, (asked_ns.get(op.f, op.time_ns), _whom(op.ext.get("value")), _how(op.ext)))
        elif phase == "stop" and op.f in begun:
            end(op.f, op.time_ns)
    for fault in list(begun):
        end(fault, end_ns)
    return sorted(found, key=lambda bar: (bar.start_ns, bar.fault))


def never_came(asked: Iterable[str], nemesis: Sequence[Op]) -> list[str]:
    """Faults that were asked for and were never in force: the schedule had no time for them, or nobody was there."""
    came = {op.f for op in nemesis if op.is_completion and op.ext.get(Ext.PHASE) == "start"}
    return [name for name in asked if name not in came]


def _whom(value: Any) -> str:
    """Brokers are numbers, anybody else has a name."""
    if isinstance(value, dict):  # of a history from elsewhere
        return ", ".join(f"{name} {_whom(each)}" for name, each in value.items())
    hit = value if isinstance(value, list) else [value] if value else []
    brokers = [str(each) for each in hit if isinstance(each, int)]
    names = [str(each) for each in hit if not isinstance(each, int)]
    told = [f"broker{'s' * (len(brokers) > 1)} {', '.join(brokers)}"] if brokers else []
    return ", ".join([*told, *names])


def _how(ext: Mapping[str, Any]) -> str:
    """Of damaged files only which: what was done to each is in the history."""
    told = {name: each for name, each in ext.items() if name not in (Ext.PHASE, "target", "value")}
    return ", ".join(f"{name} {_text(each)}" for name, each in told.items())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}: {each}" if isinstance(each, int) else str(name) for name, each in value.items())
    return str(value)
