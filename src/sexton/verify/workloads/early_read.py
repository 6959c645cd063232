"""Bufstream's finding: each transaction sends to one log, waits, and polls it.

Nobody may be given what is not committed. Where somebody is, two transactions that are open at the same time read each
other's records: a cycle of nothing but reads (G1c-wr), or a transaction reads its own (precommitted-read).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from sexton.history.op import F, Log, Op, Poll, Type
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, Values

LOG = 0


@dataclass(frozen=True, slots=True)
class EarlyReadOptions:
    sleep_max_ms: int = 200
    """Between the send and the poll, at most: less than a transaction may take."""
    abort_p: float = 0.1


class EarlyRead:
    uses_subscribe = False
    seen: Mapping[str, int] = {}

    def __init__(self, options: EarlyReadOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._known: set[int] = set()
        self._values = Values()
        self._ends = Ends([LOG])

    @property
    def logs(self) -> Mapping[int, Log]:
        return {LOG: self.log(LOG)}

    def log(self, log: int) -> Log:
        return Log("early", log)

    def topic(self, log: int) -> Topic:
        return Topic(1)

    def needs(self, process: int) -> Needs:
        return Needs()

    def next(self, process: int) -> Ask:
        if process not in self._known:
            self._known.add(process)
            return Ask(F.ASSIGN, logs=(LOG,))
        ext: dict[str, int | bool] = {"transaction": True, "sleep_ms": self._rng.randint(0, self._options.sleep_max_ms)}
        if self._rng.random() < self._options.abort_p:
            ext["abort_after"] = 2
        return Ask(F.TXN, (self._values.send(LOG), Poll()), ext=ext)

    def completed(self, op: Op) -> None:
        if op.f == F.ASSIGN and op.type is not Type.OK:
            self._known.discard(op.process)
        self._ends.completed(op)

    def final(self) -> Ask:
        return self._ends.final(F.POLL)
