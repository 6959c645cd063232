"""What must hold between the operations of a history, whatever format it came in.

Each process does one operation at a time: invocation, completion, invocation. Indexes rise, and so do times. A file in
which this does not hold was put together wrongly or has lost lines, and whatever a judge found in it would be about the
file. A history of ours is written by one writer, so it is held to all of it; an imported one is let off where Jepsen
does so, too, and where no verdict depends on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from sexton.errors import CorruptHistoryError
from sexton.history.op import NEMESIS, UNKNOWN, F, Op, Type

REMEDY: Final = "Judge an undamaged copy of the history, or repair the run that wrote it"

KNOWN_F: Final = frozenset(f.value for f in F)


@dataclass(slots=True)
class Notes:
    """What a reader met and let pass. None of it can make a verdict wrong; a report tells it."""

    op_count: int = 0
    unknown_f: Counter[str] = field(default_factory=Counter)
    """Of clients, by name: these operations are not judged."""
    cut_off_bytes: int = 0
    """Of the last line, if the run was killed while it wrote it."""
    times_that_went_back: int = 0
    completions_without_invocation: int = 0

    def to_json(self) -> dict[str, Any]:
        """What was let pass; nothing if nothing was."""
        told = {
            "operations of unknown kinds": dict(sorted(self.unknown_f.items())),
            "bytes of a last line that was cut off": self.cut_off_bytes,
            "times that went back": self.times_that_went_back,
            "completions without an invocation": self.completions_without_invocation,
        }
        return {name: it for name, it in told.items() if it}


def at_line(name: str, line: int) -> str:
    return f"{name}, line {line}"


@dataclass(slots=True)
class Order:
    """Checks operations one after the other.

    Of an imported history (`is_imported`), gaps between indexes are fine (somebody has filtered it), times that go back
    are counted (Jepsen orders by index), and completions may lack invocations if there is no invocation at all (a
    sketch, as in Jepsen's own tests).
    """

    name: str
    """Of the file, for errors."""
    is_imported: bool = False
    notes: Notes = field(default_factory=Notes)
    _next_index: int = 0
    _newest_ns: int = UNKNOWN
    _open: dict[int, int] = field(default_factory=dict)
    """By process, the index of its invocation."""
    _has_invocations: bool = False
    _lacking: tuple[int, int] | None = None
    """Line and process of the first completion without an invocation."""

    def check(self, op: Op, line: int) -> None:
        self._check_index(op, line)
        self._check_time(op, line)
        if op.process not in (NEMESIS, UNKNOWN):
            self._check_process(op, line)
        if op.f not in KNOWN_F and op.process != NEMESIS:
            self.notes.unknown_f[op.f] += 1
        self.notes.op_count += 1

    def _check_index(self, op: Op, line: int) -> None:
        newest = self._next_index - 1
        if op.index == newest:
            raise self._error(line, f"index {op.index} is there twice")
        if op.index < newest:
            raise self._error(line, f"index {op.index} comes after {newest}")
        if op.index > newest + 1 and not self.is_imported:
            raise self._error(line, f"index {op.index} follows {newest}: operations are missing")
        self._next_index = op.index + 1

    def _check_time(self, op: Op, line: int) -> None:
        if op.time_ns == UNKNOWN:
            return
        if op.time_ns < self._newest_ns:
            if not self.is_imported:
                raise self._error(line, f"time goes back, from {self._newest_ns} to {op.time_ns} ns")
            self.notes.times_that_went_back += 1
        self._newest_ns = max(self._newest_ns, op.time_ns)

    def _check_process(self, op: Op, line: int) -> None:
        if op.type is Type.INVOKE:
            if op.process in self._open:
                before = f"before its operation {self._open[op.process]} has completed"
                raise self._error(line, f"process {op.process} begins an operation {before}")
            self._open[op.process] = op.index
            self._has_invocations = True
        elif self._open.pop(op.process, None) is None:
            self.notes.completions_without_invocation += 1
            self._lacking = self._lacking or (line, op.process)
        if self._lacking and (self._has_invocations or not self.is_imported):
            line, process = self._lacking
            raise self._error(line, f"process {process} completes an operation that it has not begun")

    def _error(self, line: int, what: str) -> CorruptHistoryError:
        return CorruptHistoryError(what, at_line(self.name, line), REMEDY)
