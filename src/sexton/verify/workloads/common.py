"""What workloads have in common: how far each log is known to be written, and which process has which part."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from sexton.history.op import UNKNOWN, F, Op, Poll, Send, Type
from sexton.verify.generator import Ask, Needs


class Ends:
    """By log, the offset behind the last of which somebody knows that it was written."""

    def __init__(self, logs: Iterable[int] = ()) -> None:
        self._ends = dict.fromkeys(logs, 0)

    def add(self, log: int) -> None:
        self._ends.setdefault(log, 0)

    def completed(self, op: Op) -> None:
        """A send proves something if it is ok, a poll in any case."""
        for micro_op in op.micro_ops:
            if isinstance(micro_op, Poll):
                for log, records in micro_op.records.items():
                    self._raise(log, max((record.offset for record in records), default=UNKNOWN))
            elif op.type is Type.OK:
                self._raise(micro_op.log, micro_op.offset)

    def _raise(self, log: int, offset: int) -> None:
        self.reach(log, offset + 1)

    def reach(self, log: int, end: int) -> None:
        """Everything below this end is known to be written."""
        self._ends[log] = max(self._ends.get(log, 0), end)

    def final(self, f: F) -> Ask:
        """Reads all logs from their beginnings to these ends: with polls, or as a table is read."""
        ends: Mapping[int, int] = dict(sorted(self._ends.items()))
        return Ask(f, (Poll(),), tuple(ends), ends, {"final": True})


class Parts:
    """Gives each process one of several parts to play: always one that fewest have. The part of a process that is gone
    goes to its successor."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = parts
        self._of: dict[int, str] = {}

    def of(self, process: int) -> str:
        if process not in self._of:
            held = list(self._of.values())
            shares = {part: held.count(part) / self._parts.count(part) for part in dict.fromkeys(self._parts)}
            self._of[process] = min(shares, key=lambda part: shares[part])
        return self._of[process]

    def completed(self, op: Op) -> None:
        if op.type is Type.INFO:
            self._of.pop(op.process, None)


def abort_after(rng: random.Random, steps_count: int, abort_p: float) -> dict[str, int]:
    """Before each step, and once more before the commit, a transaction may be aborted on purpose."""
    for step in range(steps_count + 1):
        if rng.random() < abort_p:
            return {"abort_after": step}
    return {}


class Protocols:
    """Which members of a group speak the protocol of KIP-848, by the seed: none, some, or all. With some, the group is
    one that is being moved from the classic protocol to the new one, or back."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._share = rng.choice((0.0, 0.5, 1.0))

    def needs(self, needs: Needs) -> Needs:
        """Of one more member."""
        speaks = self._rng.random() < self._share
        return needs._replace(speaks_kip848=speaks, has_generation=self._share == 0)


class Values:
    """Numbers that were not handed out before."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last

    def send(self, log: int, key: int = UNKNOWN) -> Send:
        return Send(log, self.next(), key=key)
