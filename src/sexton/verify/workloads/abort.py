"""Jepsen's abort: where does a consumer stand after the transaction that it polled in was aborted?

Each process has a log of its own, first fills it, and then polls and sends in transactions: the first is committed, two
are aborted, the last is committed again. Nobody rewinds the consumer. Kafka does not say what must come (KAFKA-17582):
the client may read on (*advance*), may go back to what the aborted transaction polled (*rewind*), or further back
(*rewind-further*). This only counts what happens, by whether the group was rebalanced meanwhile.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sexton.history.op import F, Log, Op, Poll, Type
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, Values

FILL: int = 16
"""Records that a log has before anybody polls it. A poll gives four of them."""

POLL_RECORDS: int = 4
GROUPS: int = 2
ENDINGS = ("commit", "abort", "abort", "commit")
TRIES_MAX = 50
"""Of a transaction that was given nothing to read, before the process begins anew: a group may be rebalancing."""


@dataclass(slots=True)
class _Script:
    """What one process is at."""

    log: int
    is_member: bool
    filled: int = 0
    reads: bool = False
    done: int = 0
    """Number of transactions that are done."""
    tries: int = 0
    aborted_from: int | None = None
    """Where the last aborted transaction began to read, and where it ended."""
    aborted_to: int = 0
    is_rebalanced: bool = field(default=False)


class Abort:
    uses_subscribe = True

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._scripts: dict[int, _Script] = {}
        self._logs_count = 0
        self._values = Values()
        self._ends = Ends()
        self._counts: Counter[tuple[str, bool]] = Counter()

    @property
    def logs(self) -> Mapping[int, Log]:
        return {log: self.log(log) for log in range(self._logs_count)}

    def log(self, log: int) -> Log:
        return Log(f"abort{log}", 0)

    def topic(self, log: int) -> Topic:
        return Topic(1)

    def needs(self, process: int) -> Needs:
        """A few share a group, as all do in Jepsen's: each has its own topic, and whoever comes or goes rebalances all,
        in the middle of whatever they are at."""
        return Needs(f"-abort-{process % GROUPS}", {"max.poll.records": POLL_RECORDS})

    def next(self, process: int) -> Ask:
        script = self._scripts.get(process)
        if script is None:
            script = self._scripts[process] = _Script(self._logs_count, self._rng.random() < 0.5)
            self._ends.add(self._logs_count)
            self._logs_count += 1
        if script.filled < FILL:
            script.filled += 1
            return Ask(F.SEND, (self._values.send(script.log),))
        if not script.reads:
            script.reads = True
            return Ask(F.SUBSCRIBE if script.is_member else F.ASSIGN, logs=(script.log,))
        ext: dict[str, int | bool] = {"transaction": True, "stays": True}
        if ENDINGS[script.done] == "abort":
            ext["abort_after"] = 2
        return Ask(F.TXN, (Poll(), self._values.send(script.log)), ext=ext)

    def completed(self, op: Op) -> None:
        self._ends.completed(op)
        script = self._scripts.get(op.process)
        if script is None:
            return
        if op.type is Type.INFO:
            del self._scripts[op.process]
        elif op.f in (F.ASSIGN, F.SUBSCRIBE) and op.type is Type.FAIL:
            script.reads = False
        elif op.f == F.TXN:
            self._transaction(op, script)
            if script.done == len(ENDINGS) or script.tries > TRIES_MAX:
                del self._scripts[op.process]

    def _transaction(self, op: Op, script: _Script) -> None:
        """One that was given nothing, or ended otherwise than it was told to, tells nothing."""
        script.is_rebalanced |= script.log in op.rebalanced
        script.tries += 1
        offsets = [
            record.offset
            for each in op.micro_ops
            if isinstance(each, Poll)
            for record in each.records.get(script.log, ())
        ]
        is_intended = "abort_after" in op.ext and op.type is Type.FAIL
        if not offsets or not (op.type is Type.OK or is_intended):
            return
        if script.aborted_from is not None:
            self._counts[_where(offsets[0], script), script.is_rebalanced] += 1
        script.is_rebalanced = False
        script.aborted_from = offsets[0] if is_intended else None
        script.aborted_to = offsets[-1] + 1
        script.tries = 0
        script.done += 1

    @property
    def seen(self) -> Mapping[str, int]:
        """How often the next poll after an abort was where."""
        return {
            f"{where}, {'rebalanced' if is_rebalanced else 'not rebalanced'}": count
            for (where, is_rebalanced), count in sorted(self._counts.items())
        }

    def final(self) -> Ask:
        return self._ends.final(F.TABLE)


def _where(offset: int, script: _Script) -> str:
    """A control record lies between what was aborted and what comes next."""
    assert script.aborted_from is not None
    if offset >= script.aborted_to:
        return "advance"
    if offset == script.aborted_from:
        return "rewind"
    return "rewind-further" if offset < script.aborted_from else "other"
