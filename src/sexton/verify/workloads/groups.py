"""Consumer groups: members join, poll, commit, leave, and die.

All members read one topic. By the seed none, some or all of them join by the protocol of KIP-848, the others by the
classic one. Every second one is static: it has a name in its group that its successor inherits, so that the group keeps
its logs for it. Each poll begins where the group stands, or where the member's last one ended; each
commits now and then what it has read. Nothing that lies below a committed offset may have been given to nobody
(group-skip), a committed offset does not go back, and who is not a member any more commits nothing (zombie-commit).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from sexton.history.op import F, Log, Op, Poll, Type
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, Parts, Protocols, Values

SENDS, READS = "sends", "reads"


@dataclass(frozen=True, slots=True)
class GroupsOptions:
    logs: int = 4
    commit_p: float = 0.15
    committed_p: float = 0.05
    leave_p: float = 0.01


class Groups:
    uses_subscribe = True
    seen: Mapping[str, int] = {}

    def __init__(self, options: GroupsOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._parts = Parts((READS, SENDS, READS))
        self._protocols = Protocols(rng)
        self._members: set[int] = set()
        self._seats: dict[int, int] = {}
        """By process that reads; of one that is gone, its successor takes the seat."""
        self._values = Values()
        self._ends = Ends(range(options.logs))

    @property
    def logs(self) -> Mapping[int, Log]:
        return {log: self.log(log) for log in range(self._options.logs)}

    def log(self, log: int) -> Log:
        return Log("shared", log)

    def topic(self, log: int) -> Topic:
        return Topic(self._options.logs)

    def needs(self, process: int) -> Needs:
        settings: dict[str, str | int | bool] = {"max.poll.records": 20}
        needs = Needs("-groups", settings)
        if self._parts.of(process) == READS:
            seat = min(set(range(len(self._seats) + 1)) - set(self._seats.values()))
            self._seats[process] = seat
            if seat % 2:
                settings["group.instance.id"] = f"seat-{seat}"
            needs = self._protocols.needs(needs)
        return needs

    def next(self, process: int) -> Ask:
        options, logs = self._options, tuple(range(self._options.logs))
        if self._parts.of(process) == SENDS:
            return Ask(F.SEND, (self._values.send(self._rng.choice(logs)),))
        if process not in self._members:
            self._members.add(process)
            return Ask(F.SUBSCRIBE, logs=logs)
        luck = self._rng.random()
        if luck < options.leave_p:
            self._members.discard(process)
            return Ask(F.SUBSCRIBE)
        luck -= options.leave_p
        if luck < options.committed_p:
            return Ask(F.COMMITTED, logs=logs)
        luck -= options.committed_p
        return Ask(F.COMMIT) if luck < options.commit_p else Ask(F.POLL, (Poll(),))

    def completed(self, op: Op) -> None:
        self._parts.completed(op)
        if op.type is Type.INFO:
            self._seats.pop(op.process, None)
        if op.f == F.SUBSCRIBE and op.type is not Type.OK:
            self._members.discard(op.process)
        self._ends.completed(op)

    def final(self) -> Ask:
        return self._ends.final(F.TABLE)
