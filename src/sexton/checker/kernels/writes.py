"""The twin of `checker.writes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexton.checker.evidence import Case
from sexton.checker.kernels.columns import Columns, Moved, ranks, sort_by, starts_of
from sexton.checker.kernels.compiled import Bools, Longs, kernel
from sexton.checker.kernels.found import Cases, Found
from sexton.checker.kernels.removal import Removals
from sexton.history.op import UNKNOWN


def aborted_read(columns: Columns, evidence_max: int) -> Found:
    polls = columns.polls
    sender = columns.sender_of[polls.vid]
    is_case = columns.is_ok[polls.call] & (sender != UNKNOWN) & columns.is_fail[sender]
    found = polls.only(is_case)
    cases = Cases(log=found.log, ops=(sender[is_case], found.call), values=(found.vid,))
    return cases.found(columns, evidence_max)


def precommitted_read(columns: Columns, evidence_max: int) -> Found:
    """By call, the smallest value of the smallest log that it sent and polled."""
    vid_count = max(columns.vid_count, 1)
    sent = columns.sends.call * vid_count + columns.sends.vid
    polled = columns.polls.call * vid_count + columns.polls.vid
    own = np.intersect1d(sent[np.isin(sent, polled)], polled) if len(sent) and len(polled) else sent[:0]
    first = own[starts_of(own // vid_count)]
    call, vid = first // vid_count, first % vid_count
    return Cases(log=columns.log_of[vid], ops=(call,), values=(vid,)).found(columns, evidence_max)


@dataclass(frozen=True)
class Lost:
    vid: Longs
    reader: Longs
    bound: Longs
    """An index."""

    def found(self, columns: Columns, evidence_max: int) -> Found:
        order = columns.order

        def detail(row: int) -> Mapping[str, Any]:
            index = order.within(np.array([order.first[self.vid[row]], self.bound[row]]))
            return {"index": int(index[0]), "highest-index": int(index[1])}

        log, sender = columns.log_of[self.vid], columns.sender_of[self.vid]
        cases = Cases(log=log, ops=(sender, self.reader), values=(self.vid,), detail=detail)
        return cases.found(columns, evidence_max)


def lost_writes(columns: Columns, removals: Removals) -> Lost:
    order = columns.order
    bound = np.full(len(columns.logs), UNKNOWN)
    seen = np.flatnonzero(columns.is_seen & (order.first != UNKNOWN))
    np.maximum.at(bound, columns.log_of[seen], order.first[seen])
    sender = columns.sender_of
    is_lost = ~columns.is_seen & (order.last != UNKNOWN) & (order.last <= bound[columns.log_of])
    is_lost &= (sender != UNKNOWN) & columns.is_certain[sender] if len(columns.calls) else False
    vid = np.flatnonzero(is_lost)
    vid = vid[~removals.may_be_gone(vid, columns.end_of_all_ns)]
    reader = np.full(len(columns.logs), UNKNOWN)
    for rank in np.unique(columns.log_of[vid]).tolist():
        at_bound = order.vid[order.start[bound[rank]] : order.start[bound[rank] + 1]]
        reader[rank] = columns.first_reader[at_bound[columns.is_read[at_bound]][0]]
    return Lost(vid, reader[columns.log_of[vid]], bound[columns.log_of[vid]])


def unseen(columns: Columns, removals: Removals) -> Found:
    """A case a log."""
    sends = _unseen_sends(columns)
    sends = sends.only(~removals.may_be_gone(sends.vid, columns.end_of_all_ns))
    last_reader = np.full(len(columns.logs), UNKNOWN)
    is_ok = columns.is_ok[columns.polls.call]
    np.maximum.at(last_reader, columns.polls.log[is_ok], columns.polls.call[is_ok])
    cases = []
    for rank in np.unique(sends.log).tolist():
        vid = np.sort(sends.vid[sends.log == rank])
        reader = last_reader[rank]
        ops = (int(columns.index[reader]),) if reader != UNKNOWN else ()
        values = tuple(columns.value_of[vid].tolist())
        cases.append(Case(log=int(columns.logs[rank]), values=values, ops=ops, severity=len(vid)))
    return Found(len(cases), cases)


def _unseen_sends(columns: Columns) -> Moved:
    return columns.sends.only(_is_unseen(columns))


def _is_unseen(columns: Columns) -> Bools:
    """Of rows of `sends`: an ok call sent it, no ok call polled it."""
    found: Bools = columns.is_ok[columns.sends.call] & ~columns.is_seen[columns.sends.vid]
    return found


def acknowledged_nowhere(columns: Columns, removals: Removals, evidence_max: int) -> Found:
    sends = columns.sends
    is_case = _is_unseen(columns) & (sends.offset == UNKNOWN) & ~columns.is_read[sends.vid]
    is_case &= columns.begin_ns[sends.call] != UNKNOWN
    rows = np.flatnonzero(is_case)
    rows = rows[~removals.is_cut_at_its_start[sends.log[rows]]]
    vid = np.flatnonzero(columns.is_seen & (columns.sender_of != UNKNOWN))
    begin_ns, reader = columns.begin_ns[columns.sender_of[vid]], columns.first_reader[vid]
    is_known = begin_ns != UNKNOWN
    log, begin_ns, reader = columns.log_of[vid][is_known], begin_ns[is_known], reader[is_known]
    order = np.lexsort((reader, begin_ns, log))
    log, begin_ns, reader = log[order], begin_ns[order], reader[order]
    place = np.zeros(len(rows), np.int64)
    for rank in np.unique(sends.log[rows]).tolist():
        of_log = np.flatnonzero(sends.log[rows] == rank)
        start, end = np.searchsorted(log, (rank, rank + 1))
        after = start + np.searchsorted(begin_ns[start:end], columns.end_ns[sends.call[rows[of_log]]], "right")
        place[of_log] = np.where(after < end, after, UNKNOWN)
    rows, place = rows[place != UNKNOWN], place[place != UNKNOWN]
    if len(rows):
        is_case = ~removals.may_be_superseded(rows)
        rows, place = rows[is_case], place[is_case]
    cases = Cases(log=sends.log[rows], ops=(sends.call[rows], reader[place]), values=(sends.vid[rows],))
    return cases.found(columns, evidence_max)


@dataclass(frozen=True)
class Sent:
    """Rows of `sends` by call, and in it by log, in the order in which the call first sent to each."""

    row: Longs
    start: Longs
    """Of each call, its first row; and where the last ends."""

    @staticmethod
    def of(columns: Columns) -> Sent:
        sends = columns.sends
        number, first = ranks(sends.call, sends.log)
        row = sort_by(sends.call, first[number])
        return Sent(row, np.searchsorted(sends.call, np.arange(len(columns.calls) + 1)))


def torn_transaction(columns: Columns, removals: Removals, lost: Lost, sent: Sent) -> Found:
    sends = columns.sends
    has_several = np.diff(sent.start) > 1
    is_read = np.zeros(len(columns.calls), np.bool_)
    is_read[sends.call[columns.is_seen[sends.vid]]] = True
    is_torn = has_several & is_read & (columns.is_fail | columns.is_certain)
    rows = np.flatnonzero(is_torn[sends.call] & ~columns.is_seen[sends.vid])
    lost_to = dict(zip(lost.vid.tolist(), lost.reader.tolist(), strict=True))
    rest = np.array([row for row in rows.tolist() if int(sends.vid[row]) not in lost_to], np.int64)
    missed = _missed(columns, removals, rest, has_several)
    cases = []
    for row in rows.tolist():
        vid, call = int(sends.vid[row]), int(sends.call[row])
        passed_by = lost_to.get(vid, missed.get(vid))
        if passed_by is None:
            continue
        own = sends.vid[sent.row[sent.start[call] : sent.start[call + 1]]]
        read = int(own[columns.is_seen[own]][0])
        ops = columns.index[[call, passed_by, columns.first_ok_reader[read]]].tolist()
        values = columns.value_of[[vid, read]].tolist()
        cases.append(Case(log=int(columns.logs[sends.log[row]]), values=tuple(values), ops=tuple(ops)))
    return Found(len(cases), cases)


def _missed(columns: Columns, removals: Removals, rows: Longs, has_several: Bools) -> Mapping[int, int]:
    """By vid: the first call whose position moved over one of its offsets without its being given, though it may not be
    gone."""
    wanted = np.zeros(columns.vid_count, np.bool_)
    wanted[columns.sends.vid[rows]] = True
    sends = columns.sends
    sent = sends.only(wanted[sends.vid] & has_several[sends.call] & (sends.offset != UNKNOWN))
    if not len(sent.vid):
        return {}
    spans = columns.spans
    trusted = np.flatnonzero(spans.is_trusted)
    trusted = trusted[np.argsort(spans.log[trusted], kind="stable")]
    starts = np.searchsorted(spans.log[trusted], np.arange(len(columns.logs) + 1))
    given = columns.polls.only(wanted[columns.polls.vid])
    pairs = np.unique(given.vid * len(columns.calls) + given.call)
    is_failed = columns.is_fail[columns.sender_of[sent.vid]]
    since_ns = np.where(is_failed, np.int64(1) << 62, removals.since_ns[sent.vid])
    found = np.full(columns.vid_count, len(columns.calls))
    _pass_over(
        *(sent.log, sent.vid, sent.offset, since_ns, starts, spans.call[trusted], spans.start_offset[trusted]),
        *(spans.end_offset[trusted], columns.end_ns, pairs, len(columns.calls), found),
    )
    return {int(vid): int(found[vid]) for vid in np.flatnonzero(found < len(columns.calls))}


@kernel
def _pass_over(
    log: Longs,
    vid: Longs,
    offset: Longs,
    since_ns: Longs,
    span_starts: Longs,
    span_call: Longs,
    start_offset: Longs,
    end_offset: Longs,
    end_ns: Longs,
    given: Longs,
    call_count: int,
    found: Longs,
) -> None:
    for row in range(len(vid)):
        for span in range(span_starts[log[row]], span_starts[log[row] + 1]):
            call = span_call[span]
            if call >= found[vid[row]]:
                break
            if not start_offset[span] <= offset[row] < end_offset[span] or since_ns[row] <= end_ns[call]:
                continue
            pair = vid[row] * call_count + call
            place = np.searchsorted(given, pair)
            if place == len(given) or given[place] != pair:
                found[vid[row]] = call
                break


def fractured_read(columns: Columns, removals: Removals, sent: Sent, evidence_max: int) -> Found:
    spans, polls = columns.spans, columns.polls
    if not len(spans.call):
        return Found()
    span = columns.span_of(polls.call, polls.log)
    is_wanted = (span != UNKNOWN) & spans.is_trusted[span]
    sender = columns.sender_of[polls.vid]
    has_several = np.diff(sent.start) > 1
    given = np.flatnonzero(is_wanted)
    is_open = np.zeros(len(columns.calls), np.bool_)
    is_open[:] = has_several & columns.is_certain
    own = columns.sends.only(sent.row)
    trusted = np.flatnonzero(spans.is_trusted)
    found = _fractured(
        *(polls.call[given], polls.vid[given], np.where(is_open[sender[given]], sender[given], UNKNOWN)),
        *(sent.start, own.vid, own.log, columns.order.offset_of(own.vid), removals.since_ns),
        *(np.searchsorted(spans.call[trusted], np.arange(len(columns.calls) + 1)), spans.log[trusted]),
        *(spans.start_offset[trusted], spans.end_offset[trusted], columns.end_ns),
    )
    sender, call, vid, got = found.T
    cases = Cases(log=columns.log_of[vid], ops=(sender, call), values=(vid, got))
    return cases.found(columns, evidence_max)


@kernel
def _fractured(
    call: Longs,
    vid: Longs,
    sender: Longs,
    sent_start: Longs,
    sent_vid: Longs,
    sent_log: Longs,
    sent_offset: Longs,
    since_ns: Longs,
    span_start: Longs,
    span_log: Longs,
    start_offset: Longs,
    end_offset: Longs,
    end_ns: Longs,
) -> Longs:
    """Rows of what was given, by call. Returns sender, reader, what it was not given, and what it was."""
    given_to = np.full(len(since_ns), -1, np.int64)
    looked_at = np.full(len(end_ns), -1, np.int64)
    found = np.empty((16, 4), np.int64)
    count = 0
    start = 0
    while start < len(call):
        reader = call[start]
        end = start
        while end < len(call) and call[end] == reader:
            given_to[vid[end]] = reader
            end += 1
        for row in range(start, end):
            by = sender[row]
            if by < 0 or looked_at[by] == reader:
                continue
            looked_at[by] = reader
            got = -1
            first = count
            for place in range(sent_start[by], sent_start[by + 1]):
                is_passed = False
                for span in range(span_start[reader], span_start[reader + 1]):
                    if span_log[span] == sent_log[place]:
                        is_passed = start_offset[span] <= sent_offset[place] < end_offset[span]
                if not is_passed:
                    continue
                if given_to[sent_vid[place]] == reader:
                    if got < 0:
                        got = sent_vid[place]
                elif since_ns[sent_vid[place]] > end_ns[reader]:
                    if count == len(found):
                        larger = np.empty((2 * count, 4), np.int64)
                        larger[:count] = found
                        found = larger
                    found[count, 0] = by
                    found[count, 1] = reader
                    found[count, 2] = sent_vid[place]
                    count += 1
            if got < 0:
                count = first
            for row_found in range(first, count):
                found[row_found, 3] = got
        start = end
    return found[:count]
