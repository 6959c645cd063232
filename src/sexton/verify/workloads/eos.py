"""Exactly once: copiers read one topic as a group and write what they made of it to another, in transactions.

A copier polls; then one transaction sends an output for each record that it was given, whose key is the input's value,
and the offsets of the inputs. Between the two the group may have been rebalanced, and then the coordinator must refuse
the offsets: every input has one output, whatever befalls copiers (eos-duplicate, eos-loss). After a transaction that
failed, a copier goes on where its group is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sexton.history.op import UNKNOWN, F, Log, Op, Poll, Type
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, Parts, Protocols, Values

SENDS, COPIES, READS = "sends", "copies", "reads"

POLL_RECORDS: Final = 5
"""That a copier is given at once: each is sent on its own, and a transaction may take one second."""


@dataclass(frozen=True, slots=True)
class EosOptions:
    logs: int = 4
    """Of either topic; each input log is copied to the output log with its number and this."""
    abort_p: float = 0.1
    leave_p: float = 0.02


class Eos:
    uses_subscribe = True
    seen: Mapping[str, int] = {}

    def __init__(self, options: EosOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._inputs = tuple(range(options.logs))
        self._outputs = tuple(range(options.logs, 2 * options.logs))
        self._parts = Parts((COPIES, SENDS, COPIES, READS))
        self._protocols = Protocols(rng)
        self._known: set[int] = set()
        self._given: dict[int, tuple[tuple[int, int], ...]] = {}
        """By copier: log and value of what it was given and has not copied yet."""
        self._values = Values()
        self._ends = Ends((*self._inputs, *self._outputs))

    @property
    def logs(self) -> Mapping[int, Log]:
        return {log: self.log(log) for log in (*self._inputs, *self._outputs)}

    def log(self, log: int) -> Log:
        if log in self._inputs:
            return Log("input", log)
        return Log("output", log - self._options.logs, eos_input=(log - self._options.logs,))

    def topic(self, log: int) -> Topic:
        return Topic(self._options.logs)

    def needs(self, process: int) -> Needs:
        part = self._parts.of(process)
        needs = Needs(f"-{part}", {"max.poll.records": POLL_RECORDS})
        return self._protocols.needs(needs) if part == COPIES else needs

    def next(self, process: int) -> Ask:
        part = self._parts.of(process)
        if part == SENDS:
            return Ask(F.SEND, (self._values.send(self._rng.choice(self._inputs)),))
        if process not in self._known:
            self._known.add(process)
            return Ask(F.SUBSCRIBE, logs=self._inputs) if part == COPIES else Ask(F.ASSIGN, logs=self._outputs)
        given = self._given.pop(process, ())
        if not given:
            if part == COPIES and self._rng.random() < self._options.leave_p:
                self._known.discard(process)
                return Ask(F.SUBSCRIBE)
            return Ask(F.POLL, (Poll(),))
        sends = tuple(self._values.send(log + self._options.logs, key=value) for log, value in given)
        ext: dict[str, int | bool] = {"transaction": True}
        if self._rng.random() < self._options.abort_p:
            ext["abort_after"] = self._rng.randint(0, len(sends))
        return Ask(F.EOS, sends, ext=ext)

    def completed(self, op: Op) -> None:
        part = self._parts.of(op.process)
        self._parts.completed(op)
        if op.f in (F.SUBSCRIBE, F.ASSIGN) and op.type is not Type.OK:
            self._known.discard(op.process)
        if part == COPIES and op.f == F.POLL and op.type is Type.OK:
            self._given[op.process] = tuple(
                (log, record.value)
                for each in op.micro_ops
                if isinstance(each, Poll)
                for log, records in each.records.items()
                for record in records
                if record.value != UNKNOWN
            )
        self._ends.completed(op)

    def final(self) -> Ask:
        return self._ends.final(F.TABLE)
