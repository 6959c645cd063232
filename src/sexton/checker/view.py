"""A history, prepared for judging: calls, who sent and who polled each value, and the order of each log.

Definitions, which are Jepsen's unless said otherwise:

- A *completion* is an operation that is ok, failed or unknown. An invocation that never completed counts as an unknown
  completion (Jepsen's histories have none).
- A call's sends are *certain* if it is ok, or unknown and one of the values that it sent was polled by an ok call:
  reading one part of a transaction proves the rest.
- The *order* of a log says which values were seen at each offset: by the sends of certain calls, and by the polls of
  all, for a consumer's answers are true whatever becomes of its transaction. Offsets may have gaps; an *index* is the
  rank among offsets that have a value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from sexton.checker.removal import NEVER_NS, Removal
from sexton.history.op import (
    HEAL,
    NEMESIS,
    READS_AND_WRITES,
    UNKNOWN,
    Ext,
    F,
    Op,
    Poll,
    Record,
    Run,
    Send,
    Span,
    Type,
)

LogValue = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    ww_deps: bool = True
    """Whether the order of records in a log is a dependency between those who sent them (Jepsen's `--ww-deps`)."""
    patience_ms: int = 60_000
    """How long a consumer may stand still after all faults were healed."""
    cycle_steps_max: int = 200_000
    """Of the search for the shortest cycle in one component: counted, so that no verdict depends on a machine."""
    evidence_max: int = 32


@dataclass(frozen=True, slots=True)
class Call:
    """What a client asked for, and what came of it."""

    op: Op
    """The completion; of a call without one, its invocation as INFO."""
    begin_ns: int
    begin_index: int
    """Of the invocation; UNKNOWN if the history has none."""
    end_ns: int
    sends: Mapping[int, Sequence[Send]]
    """By log, in order."""
    polled: Mapping[int, Sequence[Record]]
    """By log, in order, over all its polls. A log that was polled without a record is there, too."""

    @property
    def index(self) -> int:
        return self.op.index

    @property
    def is_ok(self) -> bool:
        return self.op.type is Type.OK

    @property
    def is_certain_not(self) -> bool:
        return self.op.type is Type.FAIL

    def trusted_spans(self) -> Iterable[tuple[int, Span]]:
        """A rebalance in the middle moves the position, and then a span is not what the consumer has read over."""
        return ((log, span) for log, span in self.op.spans.items() if log not in self.op.rebalanced)


@dataclass(frozen=True, slots=True)
class Look:
    """What a call saw of one log: its position moved over the span, and it was given some records there."""

    call: Call
    span: Span
    records: Sequence[Record]

    def is_over(self, offset: int) -> bool:
        return self.span.start_offset <= offset < self.span.end_offset


@dataclass(frozen=True, slots=True)
class Order:
    """What was seen at each offset of a log."""

    offsets: Sequence[int]
    values: Sequence[tuple[int, ...]]
    """Of each of these offsets, ascending. Where there are several, the smallest stands for the offset (Jepsen takes
    any)."""
    index_of: Mapping[int, int]
    """The last index at which a value stands."""
    first: Mapping[int, int]
    """The first index at which a value was seen, whether it stands there or not."""
    last: Mapping[int, int]

    def delta(self, value: int | None, other: int | None) -> int:
        """How many records on `other` is; one whose index is unknown counts as the next."""
        if value is None or other is None or value not in self.index_of or other not in self.index_of:
            return 1
        return self.index_of[other] - self.index_of[value]

    def between(self, value: int, other: int) -> list[int]:
        return [self.values[index][0] for index in range(self.index_of[value] + 1, self.index_of[other])]

    def offset_of(self, value: int) -> int:
        """The last offset at which a value was seen."""
        return self.offsets[self.last[value]] if value in self.last else UNKNOWN


EMPTY_ORDER: Final = Order((), (), {}, {}, {})


@dataclass(frozen=True)
class View:
    run: Run
    options: Options
    calls: Sequence[Call]
    """Of clients, by the index of their completion."""
    nemesis: Sequence[Op] = field(default_factory=tuple)

    @cached_property
    def by_process(self) -> Mapping[int, Sequence[Call]]:
        """Without those of which no process is known."""
        found: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.op.process != UNKNOWN:
                found[call.op.process].append(call)
        return dict(sorted(found.items()))

    @cached_property
    def sender_of(self) -> Mapping[LogValue, Call]:
        return {(log, send.value): call for call in self.calls for log, sends in call.sends.items() for send in sends}

    @cached_property
    def readers_of(self) -> Mapping[LogValue, Sequence[Call]]:
        found: dict[LogValue, list[Call]] = defaultdict(list)
        for call in self.calls:
            for log, records in call.polled.items():
                for record in records:
                    found[log, record.value].append(call)
        return dict(found)

    @cached_property
    def seen(self) -> frozenset[LogValue]:
        """What an ok call polled."""
        return frozenset(value for value, readers in self.readers_of.items() if any(reader.is_ok for reader in readers))

    def is_certain(self, call: Call) -> bool:
        if call.op.type is not Type.INFO:
            return call.is_ok
        return any((log, send.value) in self.seen for log, sends in call.sends.items() for send in sends)

    @cached_property
    def orders(self) -> Mapping[int, Order]:
        logs: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for call in self.calls:
            if self.is_certain(call):
                for log, sends in call.sends.items():
                    for send in sends:
                        if send.offset != UNKNOWN:
                            logs[log][send.offset].add(send.value)
            for log, records in call.polled.items():
                for record in records:
                    if record.offset != UNKNOWN:
                        logs[log][record.offset].add(record.value)
        return {log: _order(values) for log, values in sorted(logs.items())}

    def order(self, log: int) -> Order:
        return self.orders.get(log, EMPTY_ORDER)

    @cached_property
    def removals(self) -> Mapping[int, Removal]:
        return {log: Removal(self, log) for log in self.orders.keys() | self.sends_to.keys() | self.run.logs.keys()}

    @cached_property
    def end_ns(self) -> int:
        return max((call.op.time_ns for call in self.calls), default=0)

    @cached_property
    def healed_ns(self) -> int:
        """Since when nothing is broken on purpose: from the start if nothing ever was, never if nobody healed it."""
        if not self.nemesis:
            return 0
        healed = [op.time_ns for op in self.nemesis if op.f == HEAL and op.is_completion]
        return max(healed, default=NEVER_NS)

    def by_log(self, call: Call, name: Ext) -> Mapping[int, int]:
        """In JSON the names of logs are strings."""
        offsets: Mapping[Any, Any] = call.op.ext.get(name, {})
        return {int(log): int(offset) for log, offset in offsets.items()}

    @cached_property
    def probes(self) -> Sequence[Call]:
        """Where brokers were asked for what they say of themselves."""
        return [call for call in self.calls if call.op.f == F.DEBUG and call.is_ok]

    @cached_property
    def deletions(self) -> Sequence[Call]:
        """Those that may have been carried out."""
        return [call for call in self.calls if call.op.f == F.DELETE_RECORDS and not call.is_certain_not]

    @cached_property
    def sends_to(self) -> Mapping[int, Sequence[tuple[Call, Send]]]:
        found: dict[int, list[tuple[Call, Send]]] = defaultdict(list)
        for call in self.calls:
            for log, sends in call.sends.items():
                found[log] += [(call, send) for send in sends]
        return found

    @cached_property
    def looks_at(self) -> Mapping[int, Sequence[Look]]:
        """By log. Not those of calls of which nobody knows when they began."""
        found: dict[int, list[Look]] = defaultdict(list)
        for call in self.calls:
            if call.begin_ns != UNKNOWN:
                for log, span in call.trusted_spans():
                    found[log].append(Look(call, span, call.polled.get(log, ())))
        return found


def prepare(ops: Iterable[Op], run: Run, options: Options | None = None) -> View:
    """In whatever order the operations come. A second completion, or one without an invocation, stands for itself."""
    pending: dict[int, Op] = {}
    nemesis = []
    calls = []
    ordered = sorted(ops, key=lambda op: op.index)
    end_ns = max((op.time_ns for op in ordered), default=0)
    for op in ordered:
        if op.process == NEMESIS:
            nemesis.append(op)
        elif op.process == UNKNOWN:
            if op.is_completion:
                calls.append(_call(op, None, op.time_ns))
        elif op.is_completion:
            calls.append(_call(op, pending.pop(op.process, None), op.time_ns))
        else:
            if op.process in pending:
                calls.append(_unfinished(pending[op.process], end_ns))
            pending[op.process] = op
    calls += [_unfinished(op, end_ns) for op in pending.values()]
    calls.sort(key=lambda call: call.index)
    return View(run, options or Options(), calls, nemesis)


def _unfinished(invocation: Op, end_ns: int) -> Call:
    return _call(replace(invocation, type=Type.INFO), invocation, end_ns)


def _call(op: Op, invocation: Op | None, end_ns: int) -> Call:
    begin_ns, begin_index = (invocation.time_ns, invocation.index) if invocation else (UNKNOWN, UNKNOWN)
    return call(op, begin_ns, begin_index, end_ns)


def call(op: Op, begin_ns: int, begin_index: int, end_ns: int) -> Call:
    sends: dict[int, list[Send]] = {}
    polled: dict[int, list[Record]] = {}
    for micro_op in op.micro_ops if op.f in READS_AND_WRITES else ():
        if isinstance(micro_op, Poll):
            for log, records in micro_op.records.items():
                polled.setdefault(log, []).extend(records)
        else:
            sends.setdefault(micro_op.log, []).append(micro_op)
    return Call(op=op, begin_ns=begin_ns, begin_index=begin_index, end_ns=end_ns, sends=sends, polled=polled)


def _order(values: Mapping[int, set[int]]) -> Order:
    offsets = sorted(values)
    ranked = [tuple(sorted(values[offset])) for offset in offsets]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, at_offset in enumerate(ranked):
        for value in at_offset:
            first.setdefault(value, index)
            last[value] = index
    return Order(offsets, ranked, {at[0]: index for index, at in enumerate(ranked)}, first, last)
