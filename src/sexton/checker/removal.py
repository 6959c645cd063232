"""From when on a record may be gone from its log, by what clients know: the judge accuses nobody before that time.

A record of a compacted log may be gone

- as soon as a newer record of its key may have been sent: one that is certain and lies behind it, or one of which
  nobody knows whether and where it is in the log (never accuse on doubt);
- if it is a tombstone, `delete.retention.ms` after it was sent, less what clocks may be wrong. Counted from the
  invocation: a broker counts from when it wrote the record, which may be long before the acknowledgement;
- if its transaction is not certain to have been committed: at once.

A record of any log may be gone as soon as somebody asked for it to be deleted (DeleteRecords), and where retention is
in force, since the last look at which the log still began at or below it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from sexton.history.op import UNKNOWN, Ext, Log, Send

if TYPE_CHECKING:
    from sexton.checker.view import Call, View

NEVER_NS: Final = 1 << 62
"""Later than anything in a history."""

AT_ONCE_NS: Final = -NEVER_NS


@dataclass(frozen=True, slots=True)
class Written:
    """A record that is certainly in the log, or was."""

    offset: int
    send: Send
    call: Call

    @property
    def value(self) -> int:
        return self.send.value


class Removal:
    """Of one log."""

    def __init__(self, view: View, log: int) -> None:
        self._log = view.run.logs.get(log, Log("", 0))
        self._skew_ns = view.run.clock_skew_ms * 1_000_000
        self.certain: dict[int, list[Written]] = defaultdict(list)
        """By key, by offset: what was certainly sent and has an offset."""
        self.doubtful: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By key: what may have been written, as when at the earliest, and its offset or UNKNOWN."""
        self._collect(view, log)
        self._since_ns: dict[int, int] = {}
        if self._log.is_compacted:
            for key, records in self.certain.items():
                self._superseded(key, records)
        self._deleted: list[tuple[int, int]] = []
        self._starts: list[tuple[int, int]] = []
        self._look_at_log_start(view, log)
        self.is_cut_at_its_start = self._log.is_retained or bool(self._deleted)
        self._is_kept_for_ever = not (self._log.is_compacted or self.is_cut_at_its_start)
        self._is_certain = {record.value for records in self.certain.values() for record in records}
        self._offset_of = view.order(log).offset_of

    def since_ns(self, value: int) -> int:
        if self._is_kept_for_ever:
            return NEVER_NS
        if value not in self._is_certain:
            return AT_ONCE_NS
        return min(self._since_ns.get(value, NEVER_NS), self._cut_since_ns(self._offset_of(value)))

    def _cut_since_ns(self, offset: int) -> int:
        since_ns = min((begin_ns for begin_ns, below in self._deleted if offset < below), default=NEVER_NS)
        if self._log.is_retained:
            still_there = [begin_ns for begin_ns, start in self._starts if start <= offset]
            since_ns = min(since_ns, max(still_there, default=AT_ONCE_NS))
        return since_ns

    def may_be_gone(self, value: int, now_ns: int) -> bool:
        return self.since_ns(value) <= now_ns

    def may_be_cut(self, offset: int, now_ns: int) -> bool:
        """Whether by then the log may have begun behind this offset: whatever was there is gone, and what it had
        superseded went before."""
        return self._cut_since_ns(offset) <= now_ns

    def may_have_newer(self, key: int, offset: int, now_ns: int) -> bool:
        """Whether by then there may have been a record of this key at this offset or behind it."""
        return any(
            record.offset >= offset and record.call.begin_ns <= now_ns for record in self.certain.get(key, ())
        ) or any(begin_ns <= now_ns and (at >= offset or at == UNKNOWN) for begin_ns, at in self.doubtful.get(key, ()))

    def newest_below(self, key: int, end_offset: int) -> Written | None:
        records = self.certain.get(key, [])
        place = bisect_left(records, end_offset, key=lambda record: record.offset)
        return records[place - 1] if place else None

    def _collect(self, view: View, log: int) -> None:
        order = view.order(log)
        for call, send in view.sends_to.get(log, ()):
            offset = order.offset_of(send.value)
            if view.is_certain(call) and offset != UNKNOWN:
                self.certain[send.key].append(Written(offset, send, call))
            elif not call.is_certain_not or (log, send.value) in view.readers_of:
                self.doubtful[send.key].append((call.begin_ns, offset))
        for records in self.certain.values():
            records.sort(key=lambda record: record.offset)

    def _superseded(self, key: int, records: list[Written]) -> None:
        begins_ns = [record.call.begin_ns for record in records]
        next_ns = [*list(accumulate(reversed(begins_ns), min))[-2::-1], NEVER_NS]
        doubtful = self.doubtful.get(key, ())
        for record, since_ns in zip(records, next_ns, strict=True):
            for begin_ns, offset in doubtful:
                if offset == UNKNOWN or offset > record.offset:
                    since_ns = min(since_ns, begin_ns)
            if record.send.is_tombstone:
                retention_ns = self._log.delete_retention_ms * 1_000_000
                since_ns = min(since_ns, record.call.begin_ns + retention_ns - self._skew_ns)
            self._since_ns[record.value] = since_ns

    def _look_at_log_start(self, view: View, log: int) -> None:
        for call in view.deletions:
            if log in call.op.offsets:
                offset = call.op.offsets[log]
                self._deleted.append((call.begin_ns, NEVER_NS if offset == UNKNOWN else offset))
        for call in view.probes if self._log.is_retained else ():
            starts = view.by_log(call, Ext.LOG_STARTS)
            if log in starts:
                self._starts.append((call.begin_ns, starts[log]))
