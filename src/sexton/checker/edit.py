"""A history that is being changed, for `sabotage`: what operations were told is altered, and new ones are added at the
end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sexton.checker.planted import QUEUES, TABLES, History
from sexton.checker.removal import Written
from sexton.checker.view import Call, Look, Options, View, prepare
from sexton.history.op import UNKNOWN, Ext, F, MicroOp, Op, Poll, Record, Send, Span, Type

SECOND_NS: Final = 1_000_000_000
_Found = TypeVar("_Found")


class NoPlaceError(Exception):
    """This history has no place for this anomaly; another seed has."""


class Edit:
    def __init__(self, history: History, rng: random.Random) -> None:
        self.rng = rng
        self.run = history.run
        self.view: View = prepare(history.ops, history.run)
        self.options = Options()
        self.ops = {op.index: op for op in history.ops}
        self.now_ns = max(op.time_ns for op in history.ops)
        self._value = max(value for _, value in self.view.sender_of)
        self._process = max(op.process for op in history.ops)
        self.reader = self.view.calls[-1].op.process
        """Who did the final reads."""
        self._ends = {
            log: max(call.op.spans[log].end_offset for call in self.view.calls if log in call.op.spans)
            for log in history.run.logs
        }

    def result(self) -> History:
        return History([replace(op, index=index) for index, op in enumerate(self.ops.values())], self.run)

    def pick(self, candidates: Iterable[_Found]) -> _Found:
        found = list(candidates)
        if not found:
            raise NoPlaceError
        return self.rng.choice(found)

    def new_value(self) -> int:
        self._value += 1
        return self._value

    def new_process(self) -> int:
        self._process += 1
        return self._process

    def new_offset(self, log: int) -> int:
        self._ends[log] += 1
        return self._ends[log] - 1

    def end_of(self, log: int) -> int:
        return self._ends[log]

    def change_records(self, call: Call, log: int, change: Callable[[list[Record]], list[Record]]) -> None:
        op = self.ops[call.index]
        micro_ops = [
            Poll({**micro_op.records, log: change(list(micro_op.records[log]))})
            if isinstance(micro_op, Poll) and log in micro_op.records
            else micro_op
            for micro_op in op.micro_ops
        ]
        self.ops[call.index] = replace(op, micro_ops=tuple(micro_ops))

    def drop(self, call: Call, log: int, *values: int) -> None:
        self.change_records(call, log, lambda records: [record for record in records if record.value not in values])

    def drop_everywhere(self, log: int, value: int) -> None:
        for call in self.view.readers_of.get((log, value), ()):
            self.drop(call, log, value)

    def insert(self, call: Call, log: int, *added: Record) -> None:
        self.change_records(call, log, lambda records: sorted([*records, *added]))

    def change_send(self, call: Call, value: int, **changes: Any) -> None:
        op = self.ops[call.index]
        micro_ops = [
            micro_op._replace(**changes) if isinstance(micro_op, Send) and micro_op.value == value else micro_op
            for micro_op in op.micro_ops
        ]
        self.ops[call.index] = replace(op, micro_ops=tuple(micro_ops))

    def change_span(self, call: Call, log: int, span: Span) -> None:
        op = self.ops[call.index]
        self.ops[call.index] = replace(op, spans={**op.spans, log: span})

    def begin(self, process: int, f: str, *micro_ops: MicroOp, **more: Any) -> None:
        self._add(process, Type.INVOKE, f, micro_ops, more)

    def end(self, process: int, f: str, *micro_ops: MicroOp, **more: Any) -> None:
        self._add(process, more.pop("type", Type.OK), f, micro_ops, more)

    def call(self, process: int, f: str, *micro_ops: MicroOp, **more: Any) -> None:
        self.begin(process, f, logs=more.get("logs", ()))
        self.end(process, f, *micro_ops, **more)

    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS

    def poll(self, log: int, *records: Record) -> None:
        """A new consumer is given these and no others of the log."""
        span = Span(min(record.offset for record in records), max(record.offset for record in records) + 1)
        self.call(self.new_process(), F.POLL, Poll({log: records}), spans={log: span})

    def content(self, log: int) -> list[Record]:
        """As it was when the final reads were over."""
        calls = self.view.by_process[self.reader]
        return [record for call in calls for record in call.polled.get(log, ())]

    def table(self, log: int, records: Sequence[Record], seconds: int = 0, replica: int = UNKNOWN) -> None:
        process = self.new_process()
        f = F.TABLE if replica == UNKNOWN else F.SCAN
        self.begin(process, f, Poll())
        self.wait(seconds)
        ext = {} if replica == UNKNOWN else {Ext.REPLICA: replica}
        self.end(process, f, Poll({log: sorted(records)}), spans={log: Span(0, self.end_of(log))}, ext=ext)

    def sends(self) -> Iterable[tuple[Call, int, Send]]:
        """Single sends to a queue that are ok, have an offset and were polled."""
        for (log, value), call in self.view.sender_of.items():
            if log in QUEUES and call.op.f == F.SEND and call.is_ok and (log, value) in self.view.seen:
                send = call.sends[log][0]
                if send.offset != UNKNOWN:
                    yield call, log, send

    def polls(self, records_min: int) -> Iterable[tuple[Call, int, Sequence[Record]]]:
        """Ok polls of a queue that gave at least so many records."""
        for call in self.view.calls:
            for log in QUEUES:
                records = call.polled.get(log, ())
                if call.op.f == F.POLL and call.is_ok and len(records) >= records_min:
                    yield call, log, records

    def is_seen_twice(self, log: int, value: int) -> bool:
        """So that it is not lost if one of them does not see it."""
        return sum(reader.is_ok for reader in self.view.readers_of[log, value]) > 1

    def tables(self, *logs: int) -> Iterable[tuple[Look, int]]:
        for log in logs or TABLES:
            for look in self.view.looks_at.get(log, ()):
                if look.call.op.f == F.TABLE:
                    yield look, log

    def newest(self, look: Look, log: int) -> Mapping[int, Written]:
        """By key, what is certainly the newest below the end of a look, and must be there."""
        removal = self.view.removals[log]
        found = {key: removal.newest_below(key, look.span.end_offset) for key in removal.certain}
        return {
            key: newest
            for key, newest in found.items()
            if newest is not None
            and look.is_over(newest.offset)
            and not removal.may_be_gone(newest.value, look.call.end_ns)
        }

    def _add(self, process: int, type: Type, f: str, micro_ops: Sequence[MicroOp], more: Mapping[str, Any]) -> None:
        self.now_ns += 1_000_000
        index = len(self.ops)
        self.ops[index] = Op(
            index=index, time_ns=self.now_ns, process=process, type=type, f=f, micro_ops=tuple(micro_ops), **more
        )
