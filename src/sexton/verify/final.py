"""The last of a run: every replica of every compacted log is read through the protocol, and folded by the judge.

When this begins, nothing is broken and every replica is in sync, so whatever two of them do not agree about will stay
so (replicas-disagree). One that could not be read is tried again as long as there is time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sexton.history.op import Ext, F, Op, Poll, Type
from sexton.verify.generator import Ask


class ReplicaPasses:
    def __init__(self, replicas: Mapping[int, Sequence[int]], ends: Mapping[int, int]) -> None:
        """`replicas` are the brokers that have each log, `ends` how far each is known to be written."""
        logs: dict[int, list[int]] = defaultdict(list)
        for log, brokers in sorted(replicas.items()):
            for broker in brokers:
                logs[broker].append(log)
        self._asks = {
            broker: Ask(F.SCAN, (Poll(),), tuple(some), dict(ends), {str(Ext.REPLICA): broker, "final": True})
            for broker, some in sorted(logs.items())
        }
        self._waiting = list(self._asks)
        self._busy: dict[int, int] = {}
        """By process: the broker that it reads."""

    def next(self, process: int) -> Ask | None:
        """For a process that is free. None: nothing is to be asked now."""
        if not self._waiting:
            return None
        self._busy[process] = broker = self._waiting.pop(0)
        return self._asks[broker]

    def completed(self, op: Op) -> None:
        broker = self._busy.pop(op.process, None)
        if broker is not None and op.type is not Type.OK:
            self._waiting.append(broker)

    @property
    def left(self) -> Sequence[int]:
        """Brokers that were not read to the end yet."""
        return sorted({*self._waiting, *self._busy.values()})
