"""Jepsen's auto-commit: consumers that leave it to their client to commit what they were given.

One in five sends to one log, one polls it in a group, four records at a time, and the others ask what the group has
committed. That may never be more than what was given to the one who polls (committed-too-far).
"""

from __future__ import annotations

from collections.abc import Mapping

from sexton.history.op import F, Log, Op, Poll, Type
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, Parts, Values

LOG = 0
SENDS, POLLS, ASKS = "sends", "polls", "asks"
CONSUMER = {"max.poll.records": 4, "enable.auto.commit": True, "auto.commit.interval.ms": 100}


class AutoCommit:
    uses_subscribe = True
    seen: Mapping[str, int] = {}

    def __init__(self) -> None:
        self._parts = Parts((POLLS, SENDS, ASKS, ASKS, ASKS))
        self._known: set[int] = set()
        self._values = Values()
        self._ends = Ends([LOG])

    @property
    def logs(self) -> Mapping[int, Log]:
        return {LOG: self.log(LOG)}

    def log(self, log: int) -> Log:
        return Log("auto", log)

    def topic(self, log: int) -> Topic:
        return Topic(1)

    def needs(self, process: int) -> Needs:
        return Needs("-auto", CONSUMER if self._parts.of(process) == POLLS else {})

    def next(self, process: int) -> Ask:
        match self._parts.of(process):
            case "sends":
                return Ask(F.SEND, (self._values.send(LOG),))
            case "asks":
                return Ask(F.COMMITTED, logs=(LOG,))
        if process not in self._known:
            self._known.add(process)
            return Ask(F.SUBSCRIBE, logs=(LOG,))
        return Ask(F.POLL, (Poll(),))

    def completed(self, op: Op) -> None:
        self._parts.completed(op)
        if op.f == F.SUBSCRIBE and op.type is not Type.OK:
            self._known.discard(op.process)
        self._ends.completed(op)

    def final(self) -> Ask:
        return self._ends.final(F.TABLE)
