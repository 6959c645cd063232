"""The history of a run as it is written, and the listener that shows a person how far the run is.

What was done to the cluster, and what came of it, stands in a file of its own as well (`faults.jsonl`): a few lines
among the very many of the history, in the same form, for people and programs that want to know no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Protocol

from sexton.history.lines import Writer, to_line
from sexton.history.op import NEMESIS, Op, Type

FAULTS: Final = "faults.jsonl"
"""In a run's directory."""


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
    faults: BinaryIO
    """Takes what was done to the cluster, at once: whoever watches the run reads it there."""
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
        if op.process == NEMESIS:
            self.faults.write(to_line(op))
            self.faults.flush()
        else:
            self.counts[op.type] = self.counts.get(op.type, 0) + 1
        return op
