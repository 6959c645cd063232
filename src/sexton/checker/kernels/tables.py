"""The twin of what `checker.tables` says of logs that are not compacted: a record that was gone meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, ranks, unique
from sexton.checker.kernels.found import Cases, Found
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


def reappeared(columns: Columns, is_wanted: Bools, evidence_max: int) -> Found:
    """Of some logs, by rank."""
    spans, polls = columns.spans, columns.polls
    looks = np.flatnonzero(spans.is_trusted & (columns.begin_ns[spans.call] != UNKNOWN) & is_wanted[spans.log])
    span = columns.span_of(polls.call, polls.log)
    is_look = np.zeros(len(spans.call) + 1, np.bool_)
    is_look[looks] = True
    given = polls.only(np.flatnonzero(is_look[span]))
    if not len(given.vid):
        return Found()
    looks = looks[np.lexsort((spans.call[looks], columns.end_ns[spans.call[looks]], spans.log[looks]))]
    record, first_row = ranks(given.log, given.offset, given.vid)
    record_count = len(first_row)
    first, last = _ends(record, given.call, columns.begin_ns, columns.end_ns, record_count)
    pairs = unique(given.vid * len(columns.calls) + given.call)
    record_log, record_offset, record_vid = (column[first_row] for column in (given.log, given.offset, given.vid))
    is_told = columns.end_ns[first] < columns.begin_ns[last]
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


def _ends(record: Longs, call: Longs, begin_ns: Longs, end_ns: Longs, count: int) -> tuple[Longs, Longs]:
    """By record: who was given it first, by when that ended, and last, by when that began."""
    ended = np.lexsort((call, end_ns[call], record))
    begun = np.lexsort((call, begin_ns[call], record))
    starts = np.searchsorted(record[ended], np.arange(count + 1))
    return call[ended[starts[:-1]]], call[begun[starts[1:] - 1]]


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
