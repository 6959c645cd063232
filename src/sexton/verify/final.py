"""The last of a run: every replica of every compacted log is read through the protocol, and folded by the judge.

When this begins, nothing is broken and every replica is in sync, so whatever two of them do not agree about will stay
so (replicas-disagree). One that could not be read is tried again as long as there is time; if it never could, the
history says so, for silence about it proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sexton.history.op import Ext, F, Op, Poll, Type
from sexton.verify.generator import Ask


def replica_ext(log: int, broker: int) -> dict[str, Any]:
    return {str(Ext.REPLICA): broker, str(Ext.LOG): log, str(Ext.FINAL): True}


class ReplicaPasses:
    def __init__(self, replicas: Mapping[int, Sequence[int]], ends: Mapping[int, int]) -> None:
        """`replicas` are the brokers that have each log, `ends` how far each is known to be written."""
        self._ends = ends
        self._waiting = [(log, broker) for log, brokers in sorted(replicas.items()) for broker in sorted(brokers)]
        self._busy: dict[int, tuple[int, int]] = {}
        """The log that each process reads, and the broker it reads from."""

    def next(self, process: int) -> Ask | None:
        """For a process that is free. None: nothing is to be asked now. Log by log, so that one that cannot be read
        does not hide the others."""
        if not self._waiting:
            return None
        self._busy[process] = log, broker = self._waiting.pop(0)
        return Ask(F.SCAN, (Poll(),), (log,), {log: self._ends.get(log, 0)}, replica_ext(log, broker))

    def completed(self, op: Op) -> None:
        replica = self._busy.pop(op.process, None)
        if replica is not None and op.type is not Type.OK:
            self._waiting.append(replica)

    @property
    def left(self) -> Sequence[tuple[int, int]]:
        """Logs and brokers, where the one was not read to its end from the other yet."""
        return sorted({*self._waiting, *self._busy.values()})
