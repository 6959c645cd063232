"""From when on each record may be gone: the twin of `checker.removal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, ranks
from sexton.checker.removal import AT_ONCE_NS, NEVER_NS
from sexton.history.op import UNKNOWN, Log, Run
from sexton.jit import kernel


@dataclass(frozen=True)
class LogStarts:
    """By log: from when on somebody may have deleted records below an offset, and where the log began when brokers were
    asked, as time and offset each."""

    deleted: Mapping[int, Sequence[tuple[int, int]]]
    seen: Mapping[int, Sequence[tuple[int, int]]]


class Cuts(NamedTuple):
    """What may have gone from the starts of logs, by rank; each log's rows by offset."""

    is_retained: Bools
    deleted_start: Longs
    below: Longs
    deleted_ns: Longs
    """The first time at which records below this or a higher offset may have been deleted."""
    seen_start: Longs
    start: Longs
    seen_ns: Longs
    """The last time at which the log was seen to begin here or at a lower offset."""


@kernel
def cut_since_one_ns(cuts: Cuts, log: int, offset: int) -> int:
    """Twin of `Removal._cut_since_ns`."""
    first, end = cuts.deleted_start[log], cuts.deleted_start[log + 1]
    place = first + np.searchsorted(cuts.below[first:end], offset, "right")
    since_ns = cuts.deleted_ns[place] if place < end else NEVER_NS
    if cuts.is_retained[log]:
        first, end = cuts.seen_start[log], cuts.seen_start[log + 1]
        place = first + np.searchsorted(cuts.start[first:end], offset, "right")
        since_ns = min(since_ns, cuts.seen_ns[place - 1] if place > first else AT_ONCE_NS)
    return since_ns


@kernel
def cut_since_ns(cuts: Cuts, log: Longs, offset: Longs) -> Longs:
    found = np.empty(len(log), np.int64)
    for row in range(len(log)):
        found[row] = cut_since_one_ns(cuts, log[row], offset[row])
    return found


def _running(function: np.ufunc, times_ns: list[int]) -> Longs:
    found: Longs = function.accumulate(np.array(times_ns, np.int64))
    return found


def _starts(counts: list[int]) -> Longs:
    return np.append(0, np.cumsum(counts, dtype=np.int64))


class Removals:
    """Of all logs."""

    def __init__(self, columns: Columns, run: Run, starts: LogStarts) -> None:
        self._columns = columns
        self._starts = starts
        facts = [run.logs.get(log, Log("", 0)) for log in columns.logs.tolist()]
        self.is_compacted: Bools = np.array([log.is_compacted for log in facts], np.bool_)
        self.is_retained: Bools = np.array([log.is_retained for log in facts], np.bool_)
        is_deleted = np.array([log in starts.deleted for log in columns.logs.tolist()], np.bool_)
        self.is_cut_at_its_start: Bools = self.is_retained | is_deleted
        self.is_kept_for_ever: Bools = ~(self.is_compacted | self.is_cut_at_its_start)
        retention_ns = np.array([log.delete_retention_ms * 1_000_000 for log in facts], np.int64)
        self.kept_ns: Longs = retention_ns - run.clock_skew_ms * 1_000_000
        """For how long a tombstone is there at the least."""

    def may_be_gone(self, vid: Longs, now_ns: Longs | int) -> Bools:
        found: Bools = self.since_ns[vid] <= now_ns
        return found

    @cached_property
    def since_ns(self) -> Longs:
        """By vid."""
        columns = self._columns
        since_ns = np.full(columns.vid_count, NEVER_NS)
        if self.is_kept_for_ever.all():
            return since_ns
        certain = columns.sends.vid[self.is_certain]
        is_certain = np.zeros(columns.vid_count, np.bool_)
        is_certain[certain] = True
        since_ns[~is_certain] = AT_ONCE_NS
        self._supersede(since_ns)
        for rank in np.flatnonzero(self.is_cut_at_its_start):
            self._cut(int(rank), since_ns, is_certain)
        since_ns[self.is_kept_for_ever[columns.log_of]] = NEVER_NS
        return since_ns

    @cached_property
    def is_certain(self) -> Bools:
        """Of rows of `sends`: certain, and with an offset."""
        sends = self._columns.sends
        found: Bools = self._columns.is_certain[sends.call] & (self._columns.order.last[sends.vid] != UNKNOWN)
        return found

    @cached_property
    def is_doubtful(self) -> Bools:
        sends = self._columns.sends
        is_possible = ~self._columns.is_fail[sends.call] | self._columns.is_polled[sends.vid]
        found: Bools = ~self.is_certain & is_possible
        return found

    def _supersede(self, since_ns: Longs) -> None:
        columns = self._columns
        is_wanted = self.is_compacted[columns.sends.log] & (self.is_certain | self.is_doubtful)
        rows = np.flatnonzero(is_wanted)
        if not len(rows):
            return
        sends, is_certain = columns.sends.only(rows), self.is_certain[rows]
        key, _ = ranks(sends.log, sends.key)
        # Where a value was sent twice, what was computed last stands: by when its key was first met.
        first_met = np.full(int(key.max()) + 1, len(rows))
        np.minimum.at(first_met, key[is_certain], np.flatnonzero(is_certain))
        offset = columns.order.offset_of(sends.vid)
        order = np.lexsort((is_certain, offset, first_met[key]))
        retention_ns = np.where(sends.is_tombstone, self.kept_ns[sends.log], NEVER_NS)
        _supersede(
            *(key[order], offset[order], is_certain[order], columns.begin_ns[sends.call[order]]),
            *(retention_ns[order], sends.vid[order], since_ns, NEVER_NS),
        )

    def _cut(self, rank: int, since_ns: Longs, is_certain: Bools) -> None:
        columns = self._columns
        vids = columns.vids_of(rank)
        vids = vids[is_certain[vids]]
        cut_ns = cut_since_ns(self.cuts, np.full(len(vids), rank), columns.order.offset_of(vids))
        since_ns[vids] = np.minimum(since_ns[vids], cut_ns)

    @cached_property
    def cuts(self) -> Cuts:
        logs = self._columns.logs.tolist()
        deleted = [sorted((below, begin_ns) for begin_ns, below in self._starts.deleted.get(log, ())) for log in logs]
        seen = [sorted((start, begin_ns) for begin_ns, start in self._starts.seen.get(log, ())) for log in logs]
        deleted_ns = [_running(np.minimum, [begin_ns for _, begin_ns in some][::-1])[::-1] for some in deleted]
        seen_ns = [_running(np.maximum, [begin_ns for _, begin_ns in some]) for some in seen]
        return Cuts(
            is_retained=self.is_retained,
            deleted_start=_starts([len(some) for some in deleted]),
            below=np.array([below for some in deleted for below, _ in some], np.int64),
            deleted_ns=np.concatenate([np.zeros(0, np.int64), *deleted_ns]),
            seen_start=_starts([len(some) for some in seen]),
            start=np.array([start for some in seen for start, _ in some], np.int64),
            seen_ns=np.concatenate([np.zeros(0, np.int64), *seen_ns]),
        )

    def may_be_superseded(self, rows: Longs) -> Bools:
        """Of rows of `sends`: whether another record of the key can have taken its place."""
        columns = self._columns
        sends = columns.sends
        key, _ = ranks(sends.log, sends.key)
        latest_ns = np.full(len(key) + 1, AT_ONCE_NS)
        np.maximum.at(latest_ns, key[self.is_certain], columns.end_ns[sends.call[self.is_certain]])
        doubts = np.bincount(key[self.is_doubtful], minlength=len(key) + 1)
        is_late = latest_ns[key[rows]] > columns.begin_ns[sends.call[rows]]
        found: Bools = self.is_compacted[sends.log[rows]] & (
            sends.is_tombstone[rows] | (doubts[key[rows]] > 1) | is_late
        )
        return found


@kernel
def _supersede(
    key: Longs,
    offset: Longs,
    is_certain: Bools,
    begin_ns: Longs,
    retention_ns: Longs,
    vid: Longs,
    since_ns: Longs,
    never_ns: int,
) -> None:
    """Rows by key and offset, the doubtful first where both are at one. Fills `since_ns`, by vid."""
    start = 0
    while start < len(key):
        end = start
        anywhere_ns = never_ns
        while end < len(key) and key[end] == key[start]:
            if not is_certain[end] and offset[end] < 0:
                anywhere_ns = min(anywhere_ns, begin_ns[end])
            end += 1
        next_ns = anywhere_ns
        found = np.empty(end - start, np.int64)
        for row in range(end - 1, start - 1, -1):
            found[row - start] = next_ns
            next_ns = min(next_ns, begin_ns[row])
        for row in range(start, end):
            if is_certain[row]:
                until_ns = found[row - start]
                if retention_ns[row] != never_ns:
                    until_ns = min(until_ns, begin_ns[row] + retention_ns[row])
                since_ns[vid[row]] = until_ns
        start = end
