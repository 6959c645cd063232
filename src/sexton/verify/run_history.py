"""The history of a run as it is written, and the listener that shows a person how far the run is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sexton.history.lines import Writer
from sexton.history.op import NEMESIS, Op, Type


class Listener(Protocol):
    """Shows a person how far the run is."""

    def phase(self, name: str) -> None: ...

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        """Called once a second."""

    def fault(self, what: str) -> None: ...


@dataclass(slots=True)
class RunHistory:
    """Numbers and stamps operations, as they happen."""

    writer: Writer
    now_ns: Callable[[], int]
    ops: list[Op] = field(default_factory=list)
    counts: dict[Type, int] = field(default_factory=dict)

    def next(self) -> tuple[int, int]:
        """Of an operation that is added at once: its index, and when it happened."""
        return len(self.ops), self.now_ns()

    def write(self, process: int, type_: Type, f: str, **more: Any) -> Op:
        return self.add(Op(*self.next(), process=process, type=type_, f=f, **more))

    def add(self, op: Op) -> Op:
        assert op.index == len(self.ops)
        self.ops.append(op)
        self.writer.write(op, op.time_ns)
        if op.process != NEMESIS:
            self.counts[op.type] = self.counts.get(op.type, 0) + 1
        return op
