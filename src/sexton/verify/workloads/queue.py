"""Jepsen's queue: records without keys, in logs that are made when they are first used and left when they are full.

Each operation is one send or one poll; with transactions, one to four of them in a transaction, in any order. Now and
then a process is given other logs to read. Of ten logs each is used twice as often as the one before it: so the newest
see much of everything, and the old ones pauses.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.history.op import UNKNOWN, F, Log, MicroOp, Op, Poll, Send, Type
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Protocols, abort_after

PARTITIONS_PER_TOPIC: Final = 2
SENDS_PER_LOG_MAX: Final = 1024
ABORT_P: Final = 0.1
REASSIGN_P: Final = 1 / 64
UNSEEN_P: Final = 1 / 3
"""Of the times that a process is given other logs: how often those are among them of which not all was read."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    is_transactional: bool = False
    uses_subscribe: bool = False
    uses_assign: bool = True
    active_logs: int = 10
    sends_per_log_max: int = SENDS_PER_LOG_MAX
    micro_ops_max: int = 4
    """Most micro-operations in a transaction."""
    abort_p: float = ABORT_P
    """That a transaction is aborted on purpose, at each of its steps."""


def topic_of(log: int, prefix: str = "t") -> tuple[str, int]:
    return f"{prefix}{log // PARTITIONS_PER_TOPIC}", log % PARTITIONS_PER_TOPIC


class Queue:
    seen: Mapping[str, int] = {}

    def __init__(self, options: QueueOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._active = list(range(options.active_logs))
        self._next_log = options.active_logs
        self._sends_count: dict[int, int] = {}
        self._value = 0
        self._known: set[int] = set()
        """Processes that have something to read."""
        self._sent: dict[int, int] = {}
        self._polled: dict[int, int] = {}
        self._protocols = Protocols(rng) if options.uses_subscribe else None

    @property
    def logs(self) -> dict[int, Log]:
        """All that were used so far."""
        return {log: self.log(log) for log in sorted(self._sends_count)}

    @property
    def uses_subscribe(self) -> bool:
        return self._options.uses_subscribe

    def log(self, log: int) -> Log:
        return Log(*topic_of(log))

    def topic(self, log: int) -> Topic:
        return Topic(PARTITIONS_PER_TOPIC)

    def needs(self, process: int) -> Needs:
        return Needs() if self._protocols is None else self._protocols.needs(Needs())

    def next(self, process: int) -> Ask:
        if process not in self._known or self._rng.random() < REASSIGN_P:
            self._known.add(process)
            return self._reading()
        if not self._options.is_transactional:
            return _tagged((self._micro_op(),))
        micro_ops = tuple(self._micro_op() for _ in range(self._rng.randint(1, self._options.micro_ops_max)))
        ext = {"transaction": True, **abort_after(self._rng, len(micro_ops), self._options.abort_p)}
        return _tagged(micro_ops)._replace(ext=ext)

    def _reading(self) -> Ask:
        chosen = set(self._rng.sample(self._active, self._rng.randint(1, len(self._active))))
        if self._rng.random() < UNSEEN_P:
            chosen |= {log for log, offset in self._sent.items() if offset > self._polled.get(log, UNKNOWN)}
        ways = [F.ASSIGN] * self._options.uses_assign + [F.SUBSCRIBE] * self._options.uses_subscribe
        way = self._rng.choice(ways)
        if way == F.SUBSCRIBE:  # who subscribes gets whole topics
            chosen = {sibling for log in chosen for sibling in _siblings(log)}
        return Ask(way, logs=tuple(sorted(chosen)))

    def _micro_op(self) -> MicroOp:
        return self._send() if self._rng.random() < 0.5 else Poll()

    def _send(self) -> Send:
        index = _doubling(self._rng, len(self._active))
        log = self._active[index]
        self._value += 1
        count = self._sends_count[log] = self._sends_count.get(log, 0) + 1
        if count == self._options.sends_per_log_max:
            del self._active[index]
            self._active.append(self._next_log)
            self._next_log += 1
        return Send(log, self._value)

    def completed(self, op: Op) -> None:
        if op.f in (F.ASSIGN, F.SUBSCRIBE) and op.type is not Type.OK:
            self._known.discard(op.process)
        for micro_op in op.micro_ops:
            if isinstance(micro_op, Send):
                if op.type is Type.OK and micro_op.offset != UNKNOWN:
                    _raise_to(self._sent, micro_op.log, micro_op.offset)
            else:
                for log, records in micro_op.records.items():
                    if records:
                        _raise_to(self._polled, log, max(record.offset for record in records))

    def final(self) -> Ask:
        """Reads all logs from their beginnings to beyond every offset of which it is known that it was written."""
        ends = {log: self._sent.get(log, self._polled.get(log, UNKNOWN)) + 1 for log in self._sends_count}
        for log, offset in self._polled.items():
            ends[log] = max(ends.get(log, 0), offset + 1)
        return Ask(F.POLL, (Poll(),), tuple(sorted(ends)), dict(sorted(ends.items())), {"final": True})


def _tagged(micro_ops: Sequence[MicroOp]) -> Ask:
    sends = [isinstance(micro_op, Send) for micro_op in micro_ops]
    f = F.SEND if all(sends) else F.TXN if any(sends) else F.POLL
    return Ask(f, tuple(micro_ops), ext={"commits": True} if f == F.POLL else {})


def _siblings(log: int) -> range:
    first = log - log % PARTITIONS_PER_TOPIC
    return range(first, first + PARTITIONS_PER_TOPIC)


def _doubling(rng: random.Random, count: int) -> int:
    """Each index twice as often as the one before."""
    return rng.randrange(1, 2**count).bit_length() - 1


def _raise_to(highest: dict[int, int], log: int, offset: int) -> None:
    if offset > highest.get(log, UNKNOWN):
        highest[log] = offset
