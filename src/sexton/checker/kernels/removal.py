"""From when on each record may be gone: the twin of `checker.removal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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


class Removals:
    """Of all logs."""

    def __init__(self, columns: Columns, run: Run, starts: LogStarts) -> None:
        self._columns = columns
        self._skew_ns = run.clock_skew_ms * 1_000_000
        self._starts = starts
        facts = [run.logs.get(log, Log("", 0)) for log in columns.logs.tolist()]
        self.is_compacted: Bools = np.array([log.is_compacted for log in facts], np.bool_)
        self.is_retained: Bools = np.array([log.is_retained for log in facts], np.bool_)
        is_deleted = np.array([log in starts.deleted for log in columns.logs.tolist()], np.bool_)
        self.is_cut_at_its_start: Bools = self.is_retained | is_deleted
        self.is_kept_for_ever: Bools = ~(self.is_compacted | self.is_cut_at_its_start)
        self._retention_ns: Longs = np.array([log.delete_retention_ms * 1_000_000 for log in facts], np.int64)

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
    def _is_doubtful(self) -> Bools:
        sends = self._columns.sends
        is_possible = ~self._columns.is_fail[sends.call] | self._columns.is_polled[sends.vid]
        found: Bools = ~self.is_certain & is_possible
        return found

    def _supersede(self, since_ns: Longs) -> None:
        columns = self._columns
        is_wanted = self.is_compacted[columns.sends.log] & (self.is_certain | self._is_doubtful)
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
        retention_ns = np.where(sends.is_tombstone, self._retention_ns[sends.log] - self._skew_ns, NEVER_NS)
        _supersede(
            *(key[order], offset[order], is_certain[order], columns.begin_ns[sends.call[order]]),
            *(retention_ns[order], sends.vid[order], since_ns, NEVER_NS),
        )

    def _cut(self, rank: int, since_ns: Longs, is_certain: Bools) -> None:
        columns = self._columns
        log = int(columns.logs[rank])
        vids = np.flatnonzero((columns.log_of == rank) & is_certain)
        offset = columns.order.offset_of(vids)
        for begin_ns, below in self._starts.deleted.get(log, ()):
            since_ns[vids] = np.where(offset < below, np.minimum(since_ns[vids], begin_ns), since_ns[vids])
        if self.is_retained[rank]:
            still_there = np.full(len(vids), AT_ONCE_NS)
            for begin_ns, start in self._starts.seen.get(log, ()):
                still_there = np.where(start <= offset, np.maximum(still_there, begin_ns), still_there)
            since_ns[vids] = np.minimum(since_ns[vids], still_there)

    def may_be_superseded(self, rows: Longs) -> Bools:
        """Of rows of `sends`: whether another record of the key can have taken its place."""
        columns = self._columns
        sends = columns.sends
        key, _ = ranks(sends.log, sends.key)
        latest_ns = np.full(len(key) + 1, AT_ONCE_NS)
        np.maximum.at(latest_ns, key[self.is_certain], columns.end_ns[sends.call[self.is_certain]])
        doubts = np.bincount(key[self._is_doubtful], minlength=len(key) + 1)
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
