"""The twin of what `checker.tables` finds without tables: records that are gone from compacted logs, and those of any
log that were gone meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, ranks, sort_by, unique
from sexton.checker.kernels.found import Cases, Found
from sexton.checker.kernels.removal import Removals
from sexton.checker.removal import NEVER_NS
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


@dataclass(frozen=True, slots=True)
class Passed:
    """Certain records of compacted logs that somebody's position moved over without their being given."""

    row: Longs
    """In `sends`: of those that may not be gone."""
    call: Longs
    """Who passed it."""
    was_removed: bool
    """Whether there was any, gone for good reasons or not."""
    was_tombstone_removed: bool
    gone_ns: Longs
    """By vid: when at the latest a tombstone was gone; or never."""

    def lost_record(self, columns: Columns, evidence_max: int) -> Found:
        sends = columns.sends
        offset = columns.order.offset_of(sends.vid[self.row])

        def detail(row: int) -> Mapping[str, Any]:
            return {"offset": int(offset[row])}

        ops = (sends.call[self.row], self.call)
        cases = Cases(log=sends.log[self.row], ops=ops, values=(sends.vid[self.row],), detail=detail)
        return cases.found(columns, evidence_max)

    def tombstone_too_early(self, columns: Columns, evidence_max: int) -> Found:
        """Those whose last sender sent them as tombstones."""
        sends = columns.sends
        is_tombstone = np.zeros(columns.vid_count, np.bool_)
        is_tombstone[sends.vid[sends.is_tombstone & (columns.sender_of[sends.vid] == sends.call)]] = True
        wanted = is_tombstone[sends.vid[self.row]]
        some = replace(self, row=self.row[wanted], call=self.call[wanted])
        return some.lost_record(columns, evidence_max)


def passed_without(columns: Columns, removals: Removals) -> Passed:
    spans, sends, polls = columns.spans, columns.sends, columns.polls
    rows = np.flatnonzero(removals.is_certain & removals.is_compacted[sends.log])
    is_look = spans.is_trusted & (columns.begin_ns[spans.call] != UNKNOWN) & removals.is_compacted[spans.log]
    looks = np.flatnonzero(is_look)
    if not len(rows) or not len(looks):
        return Passed(rows[:0], looks[:0], False, False, np.full(columns.vid_count, NEVER_NS))
    offset = columns.order.offset_of(sends.vid[rows])
    order = sort_by(sends.log[rows], offset)
    rows, offset = rows[order], offset[order]
    given = unique(polls.vid * len(columns.calls) + polls.call)
    was_removed = np.zeros(2, np.bool_)
    gone_ns = np.full(columns.vid_count, NEVER_NS)
    asked = (
        *(spans.log[looks], spans.call[looks], spans.start_offset[looks], spans.end_offset[looks]),
        *(np.searchsorted(sends.log[rows], np.arange(len(columns.logs) + 1)), offset, sends.vid[rows]),
        *(sends.is_tombstone[rows], removals.since_ns, columns.end_ns, given, was_removed, gone_ns),
    )
    count = _passed_without(*asked, np.empty((0, 2), np.int64))
    found = np.empty((count, 2), np.int64)
    if count:
        _passed_without(*asked, found)
    return Passed(rows[found[:, 0]], found[:, 1], bool(was_removed[0]), bool(was_removed[1]), gone_ns)


@kernel
def _passed_without(
    log: Longs,
    call: Longs,
    start_offset: Longs,
    end_offset: Longs,
    record_start: Longs,
    offset: Longs,
    vid: Longs,
    is_tombstone: Bools,
    since_ns: Longs,
    end_ns: Longs,
    given: Longs,
    was_removed: Bools,
    gone_ns: Longs,
    found: Longs,
) -> int:
    """Records by log and offset. Returns how many may not be gone, and fills in record and look as far as there is
    room."""
    count = 0
    for look in range(len(call)):
        start, end = record_start[log[look]], record_start[log[look] + 1]
        by = call[look]
        row = start + np.searchsorted(offset[start:end], start_offset[look])
        while row < end and offset[row] < end_offset[look]:
            pair = vid[row] * len(end_ns) + by
            place = np.searchsorted(given, pair)
            if place == len(given) or given[place] != pair:
                was_removed[0] = True
                if is_tombstone[row]:
                    was_removed[1] = True
                    gone_ns[vid[row]] = min(gone_ns[vid[row]], end_ns[by])
                if since_ns[vid[row]] > end_ns[by]:
                    if count < len(found):
                        found[count, 0] = row
                        found[count, 1] = by
                    count += 1
            row += 1
    return count


def reappeared(columns: Columns, is_wanted: Bools, is_again: Bools, evidence_max: int) -> Found:
    """Of some logs, by rank. `is_again`: of rows of `polls`, whether it counts that the record was there again."""
    spans, polls = columns.spans, columns.polls
    looks = np.flatnonzero(spans.is_trusted & (columns.begin_ns[spans.call] != UNKNOWN) & is_wanted[spans.log])
    span = columns.span_of(polls.call, polls.log)
    is_look = np.zeros(len(spans.call) + 1, np.bool_)
    is_look[looks] = True
    rows = np.flatnonzero(is_look[span])
    given, is_again = polls.only(rows), is_again[rows]
    if not len(given.vid):
        return Found()
    looks = looks[np.lexsort((spans.call[looks], columns.end_ns[spans.call[looks]], spans.log[looks]))]
    record, first_row = ranks(given.log, given.offset, given.vid)
    first, last = _ends(record, given.call, is_again, columns, len(first_row))
    pairs = unique(given.vid * len(columns.calls) + given.call)
    record_log, record_offset, record_vid = (column[first_row] for column in (given.log, given.offset, given.vid))
    is_told = (last != UNKNOWN) & (columns.end_ns[first] < columns.begin_ns[last])
    rows = np.flatnonzero(is_told)
    found = _gone_between(
        *(spans.log[looks], spans.call[looks], spans.start_offset[looks], spans.end_offset[looks]),
        *(np.searchsorted(record_log[rows], np.arange(len(columns.logs) + 1)), record_offset[rows], record_vid[rows]),
        *(first[rows], last[rows], columns.begin_ns, columns.end_ns, pairs, columns.vid_count),
    )
    at, call = found.T
    at = rows[at]

    def detail(row: int) -> Mapping[str, Any]:
        return {"offset": int(record_offset[at[row]])}

    cases = Cases(log=record_log[at], ops=(first[at], call, last[at]), values=(record_vid[at],), detail=detail)
    return cases.found(columns, evidence_max)


def _ends(record: Longs, call: Longs, is_again: Bools, columns: Columns, count: int) -> tuple[Longs, Longs]:
    """By record: who was given it first, by when that ended, and again last, by when that began; or UNKNOWN."""
    ended = np.lexsort((call, columns.end_ns[call], record))
    first = call[ended[np.searchsorted(record[ended], np.arange(count))]]
    record, call = record[is_again], call[is_again]
    begun = np.lexsort((call, columns.begin_ns[call], record))
    last = np.full(count, UNKNOWN)
    last[record[begun]] = call[begun]
    return first, last


@kernel
def _gone_between(
    log: Longs,
    call: Longs,
    start_offset: Longs,
    end_offset: Longs,
    record_start: Longs,
    offset: Longs,
    vid: Longs,
    first: Longs,
    last: Longs,
    begin_ns: Longs,
    end_ns: Longs,
    given: Longs,
    vid_count: int,
) -> Longs:
    """Looks by log and when they ended; records by log and offset. Returns record and look."""
    found = np.empty((len(vid), 2), np.int64)
    is_found = np.zeros(vid_count, np.bool_)
    count = 0
    for look in range(len(call)):
        start, end = record_start[log[look]], record_start[log[look] + 1]
        by = call[look]
        row = start + np.searchsorted(offset[start:end], start_offset[look])
        while row < end and offset[row] < end_offset[look]:
            is_between = end_ns[first[row]] < begin_ns[by] and end_ns[by] < begin_ns[last[row]]
            if is_between and not is_found[vid[row]]:
                pair = vid[row] * len(begin_ns) + by
                place = np.searchsorted(given, pair)
                if place == len(given) or given[place] != pair:
                    is_found[vid[row]] = True
                    found[count, 0] = row
                    found[count, 1] = by
                    count += 1
            row += 1
    return found[:count]
