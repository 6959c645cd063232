"""Jepsen's list-append: a log is a list. Records are appended, and whole lists are read by consumers of their own.

Every read of a list must be a beginning of every longer one, so no two of them may disagree about any place; and what
was acknowledged before a read began is in it, unless a transaction is open in front of it. With transactions, one
appends to several lists at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from sexton.history.op import F, Log, Op, Poll
from sexton.verify.generator import Ask, Needs, Topic
from sexton.verify.workloads.common import Ends, Values


@dataclass(frozen=True, slots=True)
class AppendOptions:
    is_transactional: bool = False
    lists: int = 3
    """That are in use."""
    appends_per_list_max: int = 256
    """Then a new list takes its place: reading one whole again and again takes longer and longer."""
    micro_ops_max: int = 4
    read_p: float = 0.3
    abort_p: float = 0.1


class Append:
    uses_subscribe = False
    seen: Mapping[str, int] = {}

    def __init__(self, options: AppendOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._lists = list(range(options.lists))
        self._counts = dict.fromkeys(self._lists, 0)
        self._values = Values()
        self._ends = Ends(self._lists)

    @property
    def logs(self) -> Mapping[int, Log]:
        return {log: self.log(log) for log in self._counts}

    def log(self, log: int) -> Log:
        return Log(f"list{log}", 0)

    def topic(self, log: int) -> Topic:
        return Topic(1)

    def needs(self, process: int) -> Needs:
        return Needs()

    def next(self, process: int) -> Ask:
        options, rng = self._options, self._rng
        if rng.random() < options.read_p:
            read = rng.sample(self._lists, rng.randint(1, len(self._lists)))
            return Ask(F.TABLE, (Poll(),), tuple(sorted(read)))
        if not options.is_transactional:
            return Ask(F.SEND, (self._values.send(self._list()),))
        sends = tuple(self._values.send(self._list()) for _ in range(rng.randint(1, options.micro_ops_max)))
        ext: dict[str, int | bool] = {"transaction": True}
        if rng.random() < options.abort_p:
            ext["abort_after"] = rng.randint(0, len(sends))
        return Ask(F.TXN, sends, ext=ext)

    def _list(self) -> int:
        place = self._rng.randrange(len(self._lists))
        log = self._lists[place]
        self._counts[log] += 1
        if self._counts[log] == self._options.appends_per_list_max:
            self._lists[place] = new = len(self._counts)
            self._counts[new] = 0
            self._ends.add(new)
        return log

    def completed(self, op: Op) -> None:
        self._ends.completed(op)

    def final(self) -> Ask:
        return self._ends.final(F.TABLE)
