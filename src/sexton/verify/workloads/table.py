"""Compacted topics as people use them: tables of keys, with deletions, that somebody reads from the beginning.

A few logs with few keys each, some much more often written than others, so that there is much to compact; sends by
producers with and without idempotence, and transactions over several keys and logs: committed, aborted, left until they
have timed out, and gone on with by a producer that has a successor. Readers of four kinds: who keeps a table up to date
by polling, who reads it anew from the start, who does so through one replica, and who reads everything at the end.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from sexton.history.op import F, Log, Op, Poll, Send, Type
from sexton.verify.generator import NTH_REPLICA, Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, abort_after

DELETE_RETENTION_MS: Final = (0, 2_000, 60_000)
SEGMENT_MS: Final = (500, 1_000, 3_000)
LATE_MS: Final = (1_100, 2_500)
"""Longer than a transaction may take. Brokers look for such every few seconds only, so either may come of it."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    logs: int = 4
    keys: int = 50
    is_transactional: bool = True
    """Whether some of the writing is done in transactions."""
    delete_p: float = 0.2
    transaction_p: float = 0.4
    abort_p: float = 0.1
    """That a transaction is aborted on purpose, at each of its steps."""
    late_p: float = 0.02
    """That one is to be committed after its time is over."""
    zombie_p: float = 0.04
    """That its producer gets a successor in the middle, and goes on nevertheless."""
    plain_p: float = 0.3
    """That a client's producer is not idempotent, and never sends anything twice."""
    micro_ops_max: int = 4
    table_p: float = 0.02
    """That a process reads one log from its start to its end, as who restores a table does."""
    reads_all_logs: bool = False
    """Who reads tables reads those of all logs, so that the parts of a transaction can be held against each other."""
    scan_p: float = 0.01
    """The same, through one replica."""
    poll_p: float = 0.3
    replicas: int = 3
    retained_p: float = 0.3
    """That `cleanup.policy` is compact,delete. What is deleted so is far older than a run; but the judge cannot know,
    and says less: not where a fault is to show what compaction does."""
    forgets_at_once: bool = False
    """Whether what is deleted is forgotten as soon as can be, whatever the seed says."""


class Table:
    uses_subscribe = False
    seen: Mapping[str, int] = {}

    def __init__(self, options: TableOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._weights = list(accumulate(1 / rank for rank in range(1, options.keys + 1)))
        self._value = 0
        self._known: set[int] = set()
        self._logs = tuple(range(options.logs))
        self._ends = Ends(self._logs)
        self._is_retained = rng.random() < options.retained_p and not options.forgets_at_once
        self._settings = {
            "cleanup.policy": "compact,delete" if self._is_retained else "compact",
            "delete.retention.ms": str(rng.choice(DELETE_RETENTION_MS) * (not options.forgets_at_once)),
            "segment.ms": str(min(SEGMENT_MS) if options.forgets_at_once else rng.choice(SEGMENT_MS)),
            "min.cleanable.dirty.ratio": "0.0",
        }

    @property
    def logs(self) -> dict[int, Log]:
        return {log: self.log(log) for log in self._logs}

    def log(self, log: int) -> Log:
        retention_ms = int(self._settings["delete.retention.ms"])
        return Log("table", log, is_compacted=True, is_retained=self._is_retained, delete_retention_ms=retention_ms)

    def topic(self, log: int) -> Topic:
        return Topic(self._options.logs, self._settings)

    def needs(self, process: int) -> Needs:
        return Needs(has_plain_producer=self._rng.random() < self._options.plain_p)

    def next(self, process: int) -> Ask:
        if process not in self._known:
            self._known.add(process)
            return Ask(F.ASSIGN, logs=self._logs)
        options, rng = self._options, self._rng
        luck = rng.random()
        if luck < options.table_p:
            return Ask(F.TABLE, (Poll(),), self._logs if options.reads_all_logs else (rng.choice(self._logs),))
        luck -= options.table_p
        if luck < options.scan_p:
            logs = self._logs if options.reads_all_logs else (rng.choice(self._logs),)
            return Ask(F.SCAN, (Poll(),), logs, ext={NTH_REPLICA: rng.randrange(options.replicas)})
        luck -= options.scan_p
        if luck < options.poll_p:
            return Ask(F.POLL, (Poll(),))
        if not options.is_transactional or rng.random() >= options.transaction_p:
            return Ask(F.SEND, (self._send(),))
        sends = tuple(self._send() for _ in range(rng.randint(1, options.micro_ops_max)))
        ext = {"transaction": True, **abort_after(rng, len(sends), options.abort_p)}
        luck = rng.random()
        if luck < options.late_p:
            ext["late_ms"] = rng.choice(LATE_MS)
        elif luck < options.late_p + options.zombie_p:
            ext["succeeded_after"] = rng.randint(1, len(sends))
        return Ask(F.TXN, sends, ext=ext)

    def _send(self) -> Send:
        self._value += 1
        log = self._rng.randrange(self._options.logs)
        key = bisect(self._weights, self._rng.random() * self._weights[-1])
        return Send(log, self._value, key=key, is_tombstone=self._rng.random() < self._options.delete_p)

    def completed(self, op: Op) -> None:
        if op.f == F.ASSIGN and op.type is not Type.OK:
            self._known.discard(op.process)
        self._ends.completed(op)

    def final(self) -> Ask:
        return self._ends.final(F.TABLE)
