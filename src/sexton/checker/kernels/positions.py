"""The twin of `checker.positions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sexton.checker.evidence import Case
from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, Moved, is_f, ranks, sort_by, starts_of
from sexton.checker.kernels.found import Cases, Found
from sexton.checker.kernels.removal import Removals
from sexton.history.op import UNKNOWN, F
from sexton.jit import kernel


def wrong_span(columns: Columns, evidence_max: int) -> Found:
    spans, polls = columns.spans, columns.polls
    if not len(spans.call):
        return Found()
    span = columns.span_of(polls.call, polls.log)
    is_inside = (spans.start_offset[span] <= polls.offset) & (polls.offset < spans.end_offset[span])
    rows = np.flatnonzero((span != UNKNOWN) & spans.is_trusted[span] & ~is_inside)

    def detail(row: int) -> Mapping[str, Any]:
        of = span[rows[row]]
        moved_over = [int(spans.start_offset[of]), int(spans.end_offset[of])]
        return {"offset": int(polls.offset[rows[row]]), "span": moved_over}

    cases = Cases(log=polls.log[rows], ops=(polls.call[rows],), values=(polls.vid[rows],), detail=detail)
    return cases.found(columns, evidence_max)


def stuck(columns: Columns, removals: Removals, healed_ns: int, patience_ms: int) -> Found:
    cases = []
    for stand in _stands(columns, healed_ns):
        waited_ns = int(columns.begin_ns[stand.last] - columns.end_ns[stand.first])
        if waited_ns >= patience_ms * 1_000_000:
            cases += _stuck_at(columns, removals, stand, waited_ns)
    return Found(len(cases), cases)


class _Still(NamedTuple):
    log: int
    position: int
    first: int
    last: int


def _stands(columns: Columns, healed_ns: int) -> list[_Still]:
    """Polls of one process that found it at one position of a log, without an assign or subscribe between them."""
    spans = columns.spans
    process, _ = ranks(columns.calls["process"])
    assigns = np.flatnonzero(is_f(columns.calls, F.ASSIGN, F.SUBSCRIBE))
    placed = np.sort(process[assigns] * len(columns.calls) + assigns)
    is_wanted = columns.is_ok & (columns.begin_ns >= healed_ns) & (columns.calls["process"] != UNKNOWN)
    is_wanted[assigns] = False
    rows = np.flatnonzero(spans.is_trusted & is_wanted[spans.call])
    rows = rows[sort_by(process[spans.call[rows]], spans.log[rows], spans.call[rows])]
    call, log, position = spans.call[rows], spans.log[rows], spans.start_offset[rows]
    is_still = position == spans.end_offset[rows]
    epoch = np.searchsorted(placed, process[call] * len(columns.calls) + call)
    # A row that moved ends the one before: it belongs to no stand, and no stand goes on behind it.
    starts = starts_of(process[call], log, epoch, position, is_still.astype(np.int64)) if len(rows) else rows
    ends = np.append(starts[1:], len(rows))[: len(starts)] - 1
    return [
        _Still(*(int(it) for it in (log[start], position[start], call[start], call[end])))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if is_still[start]
    ]


def _stuck_at(columns: Columns, removals: Removals, stand: _Still, waited_ns: int) -> list[Case]:
    sends = columns.sends
    is_old = columns.is_ok[sends.call] & (columns.end_ns[sends.call] <= columns.begin_ns[stand.first])
    rows = np.flatnonzero((sends.log == stand.log) & (sends.offset >= max(stand.position, 0)) & is_old)
    rows = rows[~removals.may_be_gone(sends.vid[rows], columns.end_of_all_ns)]
    if not len(rows):
        return []
    row = rows[np.lexsort((sends.vid[rows], sends.offset[rows]))[0]]
    offset, ms = int(sends.offset[row]), waited_ns // 1_000_000
    return [
        Case(
            log=int(columns.logs[stand.log]),
            values=(int(columns.value_of[sends.vid[row]]),),
            ops=tuple(columns.index[[sends.call[row], stand.first, stand.last]].tolist()),
            severity=ms,
            detail={"position": stand.position, "offset": offset, "waited-ms": ms},
        )
    ]


def stale_read(columns: Columns, evidence_max: int) -> Found:
    sends, spans = columns.sends, columns.spans
    in_transaction = is_f(columns.calls, F.TXN, F.EOS)[sends.call]
    is_judged = np.ones(len(columns.logs), np.bool_)
    is_judged[sends.log[in_transaction]] = False
    is_read = is_f(columns.calls, F.TABLE) & columns.is_ok & (columns.begin_ns != UNKNOWN)
    reads = np.flatnonzero(spans.is_trusted & is_read[spans.call] & is_judged[spans.log])
    reads = reads[np.argsort(spans.log[reads], kind="stable")]
    rows = np.flatnonzero(columns.is_ok[sends.call] & (sends.offset != UNKNOWN) & is_judged[sends.log])
    rows = rows[np.lexsort((columns.end_ns[sends.call[rows]], sends.log[rows]))]
    ranks_of_logs = np.arange(len(columns.logs) + 1)
    starts, reads_start = (np.searchsorted(it, ranks_of_logs) for it in (sends.log[rows], spans.log[reads]))
    newest = np.full(len(reads), UNKNOWN)
    """Of each read, the row of the send with the highest offset that was acknowledged before."""
    for rank in np.unique(spans.log[reads]).tolist():
        of_log = rows[starts[rank] : starts[rank + 1]]
        highest = np.maximum.accumulate(sends.offset[of_log])
        at = np.arange(reads_start[rank], reads_start[rank + 1])
        begin_ns = columns.begin_ns[spans.call[reads[at]]]
        known = np.searchsorted(columns.end_ns[sends.call[of_log]], begin_ns)
        at, known = at[known > 0], known[known > 0]
        newest[at] = of_log[np.searchsorted(highest, highest[known - 1])]
    is_stale = newest != UNKNOWN
    is_stale[is_stale] = sends.offset[newest[is_stale]] >= spans.end_offset[reads[is_stale]]
    reads, newest = reads[is_stale], newest[is_stale]
    behind = sends.offset[newest] - spans.end_offset[reads]

    def detail(row: int) -> Mapping[str, Any]:
        return {"offset": int(sends.offset[newest[row]]), "end": int(spans.end_offset[reads[row]])}

    ops = sends.call[newest], spans.call[reads]
    cases = Cases(log=spans.log[reads], ops=ops, values=(sends.vid[newest],), severity=behind, detail=detail)
    return cases.found(columns, evidence_max)


class Lag(NamedTuple):
    """The worst: nanoseconds, call and log; of several the first."""

    lag_ns: int
    call: int
    log: int


def realtime_lag(columns: Columns) -> Found:
    lag = worst_lag(columns)
    if lag.lag_ns <= 0:
        return Found()
    call = columns.calls[lag.call]
    detail = {"lag-ns": lag.lag_ns, "process": int(call["process"]), "time-ns": int(call["begin_ns"])}
    case = Case(log=int(columns.logs[lag.log]), ops=(int(call["index"]),), severity=lag.lag_ns, detail=detail)
    return Found(1, [case])


def worst_lag(columns: Columns) -> Lag:
    call, log, offset = _highest(columns)
    known_start, known_end, known_ns = _known_ends(columns, call, log, offset)
    is_judged = columns.is_ok & (columns.calls["process"] != UNKNOWN) & (columns.begin_ns != UNKNOWN)
    polls = is_f(columns.calls, F.POLL, F.TXN, F.EOS) & is_judged
    assigns, subscribes = (is_f(columns.calls, f) & is_judged for f in (F.ASSIGN, F.SUBSCRIBE))
    kind = polls * 1 + assigns * 2 + subscribes * 3
    rows = np.flatnonzero(kind)
    rows = rows[np.argsort(columns.calls["process"][rows], kind="stable")]
    count = np.arange(len(columns.calls) + 1)
    found = _lag(
        *(rows, columns.calls["process"][rows], kind, columns.begin_ns),
        *(np.searchsorted(call, count), log, offset),
        *(np.searchsorted(columns.assigned.call, count), columns.assigned.log),
        *(known_start, known_end, known_ns, len(columns.logs)),
    )
    return Lag(*(int(it) for it in found))


def _highest(columns: Columns) -> tuple[Longs, Longs, Longs]:
    """By call and log, the highest offset. Not where there are sends without one only."""
    moved: Moved = columns.moved
    rows: Bools | Longs = ~moved.is_send | (moved.offset != UNKNOWN)
    group, offset = columns.pack(moved.call[rows], moved.log[rows]), moved.offset[rows]
    order = np.argsort(group, kind="stable")
    group, offset = group[order], offset[order]
    if not len(group):
        return group, group, offset
    starts = starts_of(group)
    group = group[starts]
    return group // len(columns.logs), group % len(columns.logs), np.maximum.reduceat(offset, starts)


def _known_ends(columns: Columns, call: Longs, log: Longs, offset: Longs) -> tuple[Longs, Longs, Longs]:
    """By log: offsets, rising, and when each was first known to exist."""
    rows = np.flatnonzero(~columns.is_fail[call] & (offset >= 0))
    rows = rows[np.argsort(log[rows], kind="stable")]
    rows = rows[_rising(log[rows], offset[rows])]
    starts = np.searchsorted(log[rows], np.arange(len(columns.logs) + 1))
    return starts, offset[rows], columns.end_ns[call[rows]]


@kernel
def _rising(log: Longs, offset: Longs) -> Bools:
    is_higher = np.zeros(len(log), np.bool_)
    highest = -1
    for row in range(len(log)):
        if row == 0 or log[row] != log[row - 1]:
            highest = -1
        if offset[row] > highest:
            is_higher[row] = True
            highest = offset[row]
    return is_higher


@kernel
def _known_after(known_end: Longs, known_ns: Longs, start: int, end: int, offset: int) -> int:
    """When it was first known that there is a higher offset; or never."""
    place = start + np.searchsorted(known_end[start:end], offset + 1)
    return int(known_ns[place]) if place < end else 1 << 62


@kernel
def _lag(
    calls: Longs,
    process: Longs,
    kind: Longs,
    begin_ns: Longs,
    highest_start: Longs,
    highest_log: Longs,
    highest_offset: Longs,
    assigned_start: Longs,
    assigned_log: Longs,
    known_start: Longs,
    known_end: Longs,
    known_ns: Longs,
    log_count: int,
) -> tuple[int, int, int]:
    """Calls by process. The place of a log in `followed` is -1 where the process does not follow it."""
    place_of = np.full(log_count, -1, np.int64)
    followed = np.empty(log_count, np.int64)
    offsets = np.empty(log_count, np.int64)
    stale_from = np.empty(log_count, np.int64)
    kept = np.empty(log_count, np.int64)
    count = 0
    worst_ns, worst_call, worst_log = 0, -1, -1
    for row in range(len(calls)):
        call = calls[row]
        if row == 0 or process[row] != process[row - 1]:
            for place in range(count):
                place_of[followed[place]] = -1
            count = 0
        if kind[call] > 1:
            for place in range(count):
                kept[followed[place]] = offsets[place]
            old_count = count
            old = followed[:count].copy()
            if kind[call] == 2:
                new_count = 0
                for at in range(assigned_start[call], assigned_start[call + 1]):
                    log = assigned_log[at]
                    if place_of[log] < -1:
                        continue
                    offset = kept[log] if place_of[log] >= 0 else -1
                    place_of[log] = -2 - new_count
                    followed[new_count] = log
                    offsets[new_count] = offset
                    new_count += 1
                for place in range(old_count):
                    if place_of[old[place]] >= 0:
                        place_of[old[place]] = -1
                count = new_count
                for place in range(count):
                    place_of[followed[place]] = place
            else:
                for place in range(count):
                    place_of[followed[place]] = -1
                count = 0
            for place in range(count):
                log = followed[place]
                stale_from[place] = _known_after(
                    known_end, known_ns, known_start[log], known_start[log + 1], offsets[place]
                )
            continue
        for at in range(highest_start[call], highest_start[call + 1]):
            log = highest_log[at]
            place = place_of[log]
            if place < 0:
                place = count
                place_of[log] = place
                followed[place] = log
                offsets[place] = -1
                count += 1
            offsets[place] = max(offsets[place], highest_offset[at])
            stale_from[place] = _known_after(
                known_end, known_ns, known_start[log], known_start[log + 1], offsets[place]
            )
        for place in range(count):
            lag_ns = begin_ns[call] - stale_from[place]
            if lag_ns < worst_ns or lag_ns <= 0:
                continue
            log = followed[place]
            if lag_ns > worst_ns or call < worst_call or (call == worst_call and log < worst_log):
                worst_ns, worst_call, worst_log = lag_ns, call, log
    return worst_ns, worst_call, worst_log
