"""The twin of `checker.steps`: neighbours as differences of indexes.

Between a process's calls, an *epoch* of a process and a log is the number of completed assigns and subscribes so far
that made the process forget the log: those that do not name it, or begin anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, Moved, is_f, ranks, sort_by, starts_of, unique
from sexton.checker.kernels.found import Cases, Found
from sexton.checker.kernels.removal import Removals
from sexton.history.op import UNKNOWN, F
from sexton.jit import kernel


@dataclass(frozen=True)
class Steps:
    """A row for each two neighbours that are not one apart."""

    value: Longs
    """As vids."""
    other: Longs
    delta: Longs
    calls: tuple[Longs, ...]
    since_ns: Longs | None
    """From when on each vid may be gone, where what may be gone is no skip."""

    def where(self, wanted: Bools) -> Steps:
        calls = tuple(call[wanted] for call in self.calls)
        return Steps(self.value[wanted], self.other[wanted], self.delta[wanted], calls, self.since_ns)

    def found(self, columns: Columns, evidence_max: int) -> Found:
        def detail(row: int) -> Mapping[str, Any]:
            delta = int(self.delta[row])
            return {"delta": delta, "skipped": self._skipped(columns, row)} if delta > 1 else {"delta": delta}

        cases = Cases(
            log=columns.log_of[self.value],
            ops=self.calls,
            values=(self.value, self.other),
            severity=np.abs(self.delta),
            detail=detail,
        )
        return cases.found(columns, evidence_max)

    def _skipped(self, columns: Columns, row: int) -> list[int]:
        order = columns.order
        between = order.head[order.index_of[self.value[row]] + 1 : order.index_of[self.other[row]]]
        if self.since_ns is not None:
            between = between[self.since_ns[between] > columns.end_ns[self.calls[-1][row]]]
        skipped: list[int] = columns.value_of[between].tolist()
        return skipped


def steps(columns: Columns, removals: Removals, assigns: Assigns, evidence_max: int) -> Iterator[tuple[str, Found]]:
    """By anomaly."""
    between = _between(columns, _visits(columns, columns.polls, (F.POLL, F.TXN, F.EOS)), assigns, columns.is_ok)
    within = _within(columns, columns.polls, columns.pack(columns.rebalanced.call, columns.rebalanced.log))
    for prefix, polls in (("", between), ("int-", within)):
        found = _steps(columns, *polls, removals.since_ns)
        yield f"{prefix}poll-skip", found.where(found.delta > 1).found(columns, evidence_max)
        yield f"{prefix}nonmonotonic-poll", found.where(found.delta < 1).found(columns, evidence_max)
    found = _steps(columns, *_within(columns, columns.sends, np.zeros(0, np.int64)))
    yield "int-send-skip", found.where(found.delta > 1).found(columns, evidence_max)
    yield "int-nonmonotonic-send", found.where(found.delta < 1).found(columns, evidence_max)
    known = columns.sends.only(~columns.is_fail[columns.sends.call])
    everyone = np.ones(len(columns.calls), np.bool_)
    found = _steps(columns, *_between(columns, _visits(columns, known), assigns, everyone))
    yield "nonmonotonic-send", found.where(found.delta < 1).found(columns, evidence_max)


def _steps(
    columns: Columns, value: Longs, other: Longs, calls: tuple[Longs, ...], since_ns: Longs | None = None
) -> Steps:
    order = columns.order
    start, end = order.index_of[value], order.index_of[other]
    delta = np.where((start == UNKNOWN) | (end == UNKNOWN), 1, end - start)
    found = Steps(value, other, delta, calls, since_ns).where(delta != 1)
    if since_ns is None or not len(found.delta):
        return found
    end_ns = columns.end_ns[found.calls[-1]]
    _leave_out(order.index_of[found.value], order.index_of[found.other], end_ns, order.head, since_ns, found.delta)
    return found.where(found.delta != 1)


@kernel
def _leave_out(start: Longs, end: Longs, end_ns: Longs, head: Longs, since_ns: Longs, delta: Longs) -> None:
    """What may be gone."""
    for row in range(len(delta)):
        for index in range(start[row] + 1, end[row]):
            delta[row] -= since_ns[head[index]] <= end_ns[row]


def _within(columns: Columns, moved: Moved, left_out: Longs) -> tuple[Longs, Longs, tuple[Longs, ...]]:
    """Neighbours within a call and log."""
    group = columns.pack(moved.call, moved.log)
    if len(left_out):
        is_wanted = ~np.isin(group, left_out)
        moved, group = moved.only(is_wanted), group[is_wanted]
    order = np.argsort(group, kind="stable")
    group, vid = group[order], moved.vid[order]
    is_pair = group[1:] == group[:-1]
    return vid[:-1][is_pair], vid[1:][is_pair], (moved.call[order][1:][is_pair],)


@dataclass(frozen=True)
class Visits:
    """A row for each call and log, by these: the first and the last value."""

    call: Longs
    log: Longs
    first: Longs
    last: Longs


def _visits(columns: Columns, moved: Moved, fs: tuple[str, ...] = ()) -> Visits:
    """Not of calls of an unknown process."""
    is_wanted = columns.calls["process"] != UNKNOWN
    if fs:
        is_wanted &= is_f(columns.calls, *fs)
    rows = np.flatnonzero(is_wanted[moved.call])
    group = columns.pack(moved.call[rows], moved.log[rows])
    order = np.argsort(group, kind="stable")
    rows, group = rows[order], group[order]
    starts = starts_of(group)
    ends = np.append(starts[1:], len(group))[: len(starts)] - 1
    return Visits(moved.call[rows[starts]], moved.log[rows[starts]], moved.vid[rows[starts]], moved.vid[rows[ends]])


class Assigns:
    """Completed assigns and subscribes, in all logs: few."""

    def __init__(self, columns: Columns, begins_anew: Bools) -> None:
        """`begins_anew`: of each call."""
        calls = columns.calls
        self._columns = columns
        self.begins_anew = begins_anew
        self.process, _ = ranks(calls["process"])
        """Of each call, its rank."""
        is_wanted = is_f(calls, F.ASSIGN, F.SUBSCRIBE) & ~columns.is_fail
        self._all = np.sort(self._place(np.flatnonzero(is_wanted)))
        named = columns.assigned
        keeps = (is_wanted & ~begins_anew)[named.call]
        self._keeping = np.unique(self._place(named.call[keeps], named.log[keeps]))

    @property
    def call(self) -> Longs:
        """By process, in order."""
        return self._all % max(len(self._columns.calls), 1)

    @property
    def named(self) -> Longs:
        """What assigns name: call and log, packed, sorted."""
        assigned = self._columns.assigned
        return unique(self._columns.pack(assigned.call, assigned.log))

    def before(self, call: Longs) -> tuple[Longs, Longs]:
        """Rows of `call`: the first of this call's process, and the first that is not before it."""
        first = np.searchsorted(self._all, self.process[call] * len(self._columns.calls))
        return first, np.searchsorted(self._all, self._place(call))

    def _place(self, call: Longs, log: Longs | None = None) -> Longs:
        process = self.process[call]
        if log is not None:
            process = process * len(self._columns.logs) + log
        return process * len(self._columns.calls) + call

    def epoch(self, call: Longs, log: Longs) -> Longs:
        """Grows with each assign; within a process and log, comparable."""
        first, end = self.before(call)
        place = self._place(call, log)
        kept = np.searchsorted(self._keeping, place) - np.searchsorted(self._keeping, place - call)
        epoch: Longs = end - first - kept
        return epoch


def _between(
    columns: Columns, visits: Visits, assigns: Assigns, remembers: Bools
) -> tuple[Longs, Longs, tuple[Longs, ...]]:
    """From the last visit of a process that is remembered to each."""
    order = sort_by(columns.calls["process"][visits.call], visits.log, visits.call)
    call, log = visits.call[order], visits.log[order]
    process = columns.calls["process"][call]
    epoch = assigns.epoch(call, log)
    place = np.arange(len(call))
    newest = np.maximum.accumulate(np.where(remembers[call], place, UNKNOWN))
    before = np.append(UNKNOWN, newest[:-1])[: len(call)]
    is_step = before != UNKNOWN
    is_step &= (process[before] == process) & (log[before] == log) & (epoch[before] == epoch)
    after, before = place[is_step], before[is_step]
    return visits.last[order[before]], visits.first[order[after]], (call[before], call[after])
