"""What must hold between the operations of a history, whatever format it came in.

Each process does one operation at a time: invocation, completion, invocation. Indexes rise, and so do times. A file in
which this does not hold was put together wrongly or has lost lines, and whatever a judge found in it would be about the
file. A history of ours is written by one writer, so it is held to all of it; an imported one is let off where Jepsen
does so, too, and where no verdict depends on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

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


def at_line(name: str, line: int) -> str:
    return f"{name}, line {line}"


def gap(name: str, line: int, index: int, expected: int) -> CorruptHistoryError:
    what = f"index {index} follows {expected - 1}: operations are missing"
    return CorruptHistoryError(what, at_line(name, line), REMEDY)


def index_twice(name: str, line: int, index: int, newest: int) -> CorruptHistoryError:
    what = f"index {index} is there twice" if index == newest else f"index {index} comes after {newest}"
    return CorruptHistoryError(what, at_line(name, line), REMEDY)


def time_went_back(name: str, line: int, time_ns: int, newest_ns: int) -> CorruptHistoryError:
    what = f"time goes back, from {newest_ns} to {time_ns} ns"
    return CorruptHistoryError(what, at_line(name, line), REMEDY)


def two_at_once(name: str, line: int, process: int, open_index: int) -> CorruptHistoryError:
    what = f"process {process} begins an operation before its operation {open_index} has completed"
    return CorruptHistoryError(what, at_line(name, line), REMEDY)


def no_invocation(name: str, line: int, process: int) -> CorruptHistoryError:
    what = f"process {process} completes an operation that it has not begun"
    return CorruptHistoryError(what, at_line(name, line), REMEDY)


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
        if op.index < self._next_index:
            raise index_twice(self.name, line, op.index, self._next_index - 1)
        if op.index > self._next_index and not self.is_imported:
            raise gap(self.name, line, op.index, self._next_index)
        self._next_index = op.index + 1

    def _check_time(self, op: Op, line: int) -> None:
        if op.time_ns == UNKNOWN:
            return
        if op.time_ns < self._newest_ns:
            if not self.is_imported:
                raise time_went_back(self.name, line, op.time_ns, self._newest_ns)
            self.notes.times_that_went_back += 1
        self._newest_ns = max(self._newest_ns, op.time_ns)

    def _check_process(self, op: Op, line: int) -> None:
        if op.type is Type.INVOKE:
            if op.process in self._open:
                raise two_at_once(self.name, line, op.process, self._open[op.process])
            self._open[op.process] = op.index
            self._has_invocations = True
        elif self._open.pop(op.process, None) is None:
            self.notes.completions_without_invocation += 1
            self._lacking = self._lacking or (line, op.process)
        if self._lacking and (self._has_invocations or not self.is_imported):
            raise no_invocation(self.name, *self._lacking)
