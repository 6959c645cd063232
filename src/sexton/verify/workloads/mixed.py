"""Several workloads at once, in one cluster: each has its own topics, groups and processes.

What one does to the brokers the others feel: internal topics that are written by everybody, transactions that time out
beside those that do not, compaction beside replication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sexton.history.op import F, Log, MicroOp, Op, Poll
from sexton.verify.generator import Ask, Needs, Topic, Workload
from sexton.verify.workloads.common import Ends, Parts


class Mixed:
    """Log n of workload i of k is log n * k + i here."""

    def __init__(self, workloads: Mapping[str, Workload], parts: Sequence[str] = ()) -> None:
        """A workload has as many processes as it is named among the parts, of as many as there are parts."""
        self._names = tuple(workloads)
        self._workloads = workloads
        self._parts = Parts(parts or self._names)
        self._ends = Ends()

    @property
    def uses_subscribe(self) -> bool:
        return any(each.uses_subscribe for each in self._workloads.values())

    @property
    def seen(self) -> Mapping[str, int]:
        return {f"{name}: {what}": count for name, each in self._workloads.items() for what, count in each.seen.items()}

    @property
    def logs(self) -> Mapping[int, Log]:
        numbers = (self._outer(name, log) for name, each in self._workloads.items() for log in each.logs)
        return {log: self.log(log) for log in sorted(numbers)}

    def log(self, log: int) -> Log:
        name, inner = self._inner(log)
        found = self._workloads[name].log(inner)
        inputs = tuple(self._outer(name, each) for each in found.eos_input)
        return replace(found, topic=f"{name}-{found.topic}", eos_input=inputs)

    def topic(self, log: int) -> Topic:
        name, inner = self._inner(log)
        return self._workloads[name].topic(inner)

    def needs(self, process: int) -> Needs:
        name = self._parts.of(process)
        needs = self._workloads[name].needs(process)
        return needs._replace(group=f"-{name}{needs.group}")

    def next(self, process: int) -> Ask:
        name = self._parts.of(process)
        ask = self._workloads[name].next(process)
        return ask._replace(
            micro_ops=tuple(_renamed(each, lambda log: self._outer(name, log)) for each in ask.micro_ops),
            logs=tuple(self._outer(name, log) for log in ask.logs),
            offsets={self._outer(name, log): offset for log, offset in ask.offsets.items()},
        )

    def completed(self, op: Op) -> None:
        name = self._parts.of(op.process)
        self._parts.completed(op)
        self._ends.completed(op)
        if op.ext.get("final"):
            return  # all of it is everybody's

        def inner(log: int) -> int:
            return self._inner(log)[1]

        self._workloads[name].completed(
            replace(
                op,
                micro_ops=tuple(_renamed(each, inner) for each in op.micro_ops),
                logs=tuple(map(inner, op.logs)),
                offsets={inner(log): offset for log, offset in op.offsets.items()},
                spans={inner(log): span for log, span in op.spans.items()},
                rebalanced=frozenset(map(inner, op.rebalanced)),
            )
        )

    def final(self) -> Ask:
        for log in self.logs:
            self._ends.add(log)
        return self._ends.final(F.TABLE)

    def _outer(self, name: str, log: int) -> int:
        return log * len(self._names) + self._names.index(name)

    def _inner(self, log: int) -> tuple[str, int]:
        return self._names[log % len(self._names)], log // len(self._names)


def _renamed(micro_op: MicroOp, number: Callable[[int], int]) -> MicroOp:
    if isinstance(micro_op, Poll):
        return Poll({number(log): records for log, records in micro_op.records.items()})
    return micro_op._replace(log=number(micro_op.log))
