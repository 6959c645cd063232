"""The twin of `checker.writes`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexton.checker.evidence import Case
from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, Moved, ranks, starts_of, unique
from sexton.checker.kernels.found import Cases, Found
from sexton.checker.kernels.removal import Removals
from sexton.checker.removal import NEVER_NS
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


def aborted_read(columns: Columns, evidence_max: int) -> Found:
    polls = columns.polls
    sender = columns.sender_of[polls.vid]
    is_case = columns.is_ok[polls.call] & (sender != UNKNOWN) & columns.is_fail[sender]
    found = polls.only(is_case)
    cases = Cases(log=found.log, ops=(sender[is_case], found.call), values=(found.vid,))
    return cases.found(columns, evidence_max)


def own_reads(columns: Columns) -> Longs:
    """What calls polled of what they had sent themselves: call, log and value, sorted."""
    sends, polls, vid_count = columns.sends, columns.polls, max(columns.vid_count, 1)
    is_own = columns.sender_of[polls.vid] == polls.call
    if len(sends.vid) > np.count_nonzero(columns.sender_of != UNKNOWN):  # a value was sent twice
        is_own = np.isin(polls.call * vid_count + polls.vid, sends.call * vid_count + sends.vid)
    own = unique(polls.call[is_own] * vid_count + polls.vid[is_own])
    call, vid = own // vid_count, own % vid_count
    return np.stack([call, columns.logs[columns.log_of[vid]], columns.value_of[vid]], axis=1)


def precommitted_read(index: Longs, own: Longs) -> Found:
    """By call, the smallest value of the smallest log. `index` is that of all calls."""
    own = own[np.lexsort(own.T[::-1])]
    first = own[starts_of(own[:, 0])].tolist()
    cases = [Case(log=log, values=(value,), ops=(int(index[call]),)) for call, log, value in first]
    return Found(len(cases), cases)


@dataclass(frozen=True)
class Lost:
    vid: Longs
    reader: Longs
    bound: Longs
    """An index; or UNKNOWN, where nobody was given anything."""

    def found(self, columns: Columns, evidence_max: int) -> Found:
        order = columns.order

        def detail(row: int) -> Mapping[str, Any]:
            first, bound = order.first[self.vid[row]], self.bound[row]
            highest = UNKNOWN if bound == UNKNOWN else order.within(np.array([bound]))[0]
            return {"index": int(order.within(np.array([first]))[0]), "highest-index": int(highest)}

        log, sender = columns.log_of[self.vid], columns.sender_of[self.vid]
        cases = Cases(log=log, ops=(sender, self.reader), values=(self.vid,), detail=detail)
        return cases.found(columns, evidence_max)


def lost_writes(columns: Columns, removals: Removals) -> Lost:
    order = columns.order
    bound = np.full(len(columns.logs), UNKNOWN)
    seen = np.flatnonzero(columns.is_seen & (order.first != UNKNOWN))
    np.maximum.at(bound, columns.log_of[seen], order.first[seen])
    sender = columns.sender_of
    is_missing = ~columns.is_seen & (order.last != UNKNOWN)
    is_missing &= (sender != UNKNOWN) & columns.is_certain[sender] if len(columns.calls) else False
    vid = np.flatnonzero(is_missing)
    vid = vid[~removals.may_be_gone(vid, columns.end_of_all_ns)]
    is_below = order.last[vid] <= bound[columns.log_of[vid]]
    reader = np.full(len(columns.logs), UNKNOWN)
    for rank in np.unique(columns.log_of[vid[is_below]]).tolist():
        at_bound = order.vid[order.start[bound[rank]] : order.start[bound[rank] + 1]]
        reader[rank] = columns.first_reader[at_bound[columns.is_polled[at_bound]][0]]
    passed_by = np.where(is_below, reader[columns.log_of[vid]], UNKNOWN)
    passed_by[~is_below] = _first_over(columns, vid[~is_below])
    is_lost = passed_by != UNKNOWN
    return Lost(vid[is_lost], passed_by[is_lost], bound[columns.log_of[vid[is_lost]]])


def _first_over(columns: Columns, vid: Longs) -> Longs:
    """The first ok call whose position moved over each of these, none of which an ok call was given; or UNKNOWN."""
    spans = columns.spans
    rows = np.flatnonzero(spans.is_trusted & columns.is_ok[spans.call]) if len(vid) else vid
    rows = rows[np.argsort(spans.log[rows], kind="stable")]
    starts = np.searchsorted(spans.log[rows], np.arange(len(columns.logs) + 1))
    found = np.full(columns.vid_count, len(columns.calls))
    _pass_over(
        *(columns.log_of[vid], vid, columns.order.offset_of(vid), np.full(len(vid), NEVER_NS), starts),
        *(spans.call[rows], spans.start_offset[rows], spans.end_offset[rows], columns.end_ns),
        *(np.zeros(0, np.int64), len(columns.calls), found),
    )
    return np.where(found[vid] < len(columns.calls), found[vid], UNKNOWN)


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
    is_case = _is_unseen(columns) & (sends.offset == UNKNOWN) & ~columns.is_polled[sends.vid]
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


# -- several sends of one call: they may be in several logs, so what one log shows is half of it


def torn_sends(columns: Columns, removals: Removals, lost: Lost, has_several: Bools, is_read: Bools) -> Longs:
    """Of calls that sent several records of which an ok call polled one: what no ok call polled, and is lost, or was
    passed without being given. Call, log, value, who passed it."""
    sends = columns.sends
    is_judged = has_several & is_read & (columns.is_fail | columns.is_certain)
    rows = np.flatnonzero(is_judged[sends.call] & ~columns.is_seen[sends.vid])
    passed_by = np.full(columns.vid_count, UNKNOWN)
    passed_by[lost.vid] = lost.reader
    rest = rows[passed_by[sends.vid[rows]] == UNKNOWN]
    missed_by = _missed(columns, removals, rest, has_several)
    passed_by[missed_by >= 0] = missed_by[missed_by >= 0]
    rows = rows[passed_by[sends.vid[rows]] != UNKNOWN]
    log, value = columns.logs[sends.log[rows]], columns.value_of[sends.vid[rows]]
    return np.stack([sends.call[rows], log, value, passed_by[sends.vid[rows]]], axis=1)


def seen_sends(columns: Columns, calls: Longs) -> Longs:
    """What an ok call polled of these calls' sends: call, its place among the sends (two numbers), value, reader."""
    rows, place = _sends_of(columns, calls)
    is_seen = columns.is_seen[columns.sends.vid[rows]]
    rows, place = rows[is_seen], place[is_seen]
    call, vid = columns.sends.call[rows], columns.sends.vid[rows]
    return np.column_stack([call, place, columns.value_of[vid], columns.first_ok_reader[vid]])


def _sends_of(columns: Columns, calls: Longs) -> tuple[Longs, Longs]:
    """Rows of `sends` of some calls, and the place of each among its call's: by when its log came first."""
    sends = columns.sends
    is_wanted = np.zeros(len(columns.calls), np.bool_)
    is_wanted[calls] = True
    rows = np.flatnonzero(is_wanted[sends.call])
    number, first = ranks(sends.call[rows], sends.log[rows])
    return rows, np.stack([sends.mop[rows[first[number]]], sends.mop[rows]], axis=1)


def torn_transaction(index: Longs, torn: Longs, seen: Longs) -> Found:
    seen = seen[np.lexsort(seen[:, 2::-1].T)]
    first = seen[starts_of(seen[:, 0])]
    read = {call: (value, reader) for call, _, _, value, reader in first.tolist()}
    cases = []
    for call, log, value, passed_by in torn.tolist():
        if call in read:
            ops = tuple(index[[call, passed_by, read[call][1]]].tolist())
            cases.append(Case(log=log, values=(value, read[call][0]), ops=ops))
    return Found(len(cases), cases)


def _missed(columns: Columns, removals: Removals, rows: Longs, has_several: Bools) -> Longs:
    """By vid, or UNKNOWN: the first call whose position moved over an offset of it without its being given, though it
    may not be gone."""
    wanted = np.zeros(columns.vid_count, np.bool_)
    wanted[columns.sends.vid[rows]] = True
    sends = columns.sends
    sent = sends.only(wanted[sends.vid] & has_several[sends.call] & (sends.offset != UNKNOWN))
    if not len(sent.vid):
        return np.full(columns.vid_count, UNKNOWN)
    spans = columns.spans
    trusted = np.flatnonzero(spans.is_trusted)
    trusted = trusted[np.argsort(spans.log[trusted], kind="stable")]
    starts = np.searchsorted(spans.log[trusted], np.arange(len(columns.logs) + 1))
    given = columns.polls.only(wanted[columns.polls.vid])
    pairs = unique(given.vid * len(columns.calls) + given.call)
    is_failed = columns.is_fail[columns.sender_of[sent.vid]]
    since_ns = np.where(is_failed, np.int64(1) << 62, removals.since_ns[sent.vid])
    found = np.full(columns.vid_count, len(columns.calls))
    _pass_over(
        *(sent.log, sent.vid, sent.offset, since_ns, starts, spans.call[trusted], spans.start_offset[trusted]),
        *(spans.end_offset[trusted], columns.end_ns, pairs, len(columns.calls), found),
    )
    return np.where(found < len(columns.calls), found, UNKNOWN)


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


def missing_reads(columns: Columns, removals: Removals, has_several: Bools) -> Longs:
    """Of certain calls that sent several records: what a consumer's position moved over without its being given, though
    it may not be gone. Sender, reader, log, value."""
    spans, sends = columns.spans, columns.sends
    sent = sends.only((has_several & columns.is_certain)[sends.call])
    offset = columns.order.offset_of(sent.vid)
    order = np.lexsort((sent.vid, offset, sent.log))
    sent, offset = sent.only(order), offset[order]
    trusted = np.flatnonzero(spans.is_trusted)
    polls = columns.polls
    given = polls.only(np.argsort(columns.pack(polls.call, polls.log), kind="stable"))
    group = columns.pack(given.call, given.log)
    wanted = columns.pack(spans.call[trusted], spans.log[trusted])
    found = _missing(
        *(spans.call[trusted], spans.log[trusted], spans.start_offset[trusted], spans.end_offset[trusted]),
        *(np.searchsorted(group, wanted), np.searchsorted(group, wanted, "right"), given.vid),
        *(np.searchsorted(sent.log, np.arange(len(columns.logs) + 1)), offset, sent.vid),
        *(removals.since_ns, columns.end_ns),
    )
    reader, place = found.T
    vid = sent.vid[place]
    log, value = columns.logs[columns.log_of[vid]], columns.value_of[vid]
    return np.stack([sent.call[place], reader, log, value], axis=1)


@kernel
def _missing(
    call: Longs,
    log: Longs,
    start_offset: Longs,
    end_offset: Longs,
    given_start: Longs,
    given_end: Longs,
    given: Longs,
    sent_start: Longs,
    offset: Longs,
    vid: Longs,
    since_ns: Longs,
    end_ns: Longs,
) -> Longs:
    """Spans, and what is sent to each log, by offset. Returns reader, and place in what is sent."""
    given_to = np.full(len(since_ns), -1, np.int64)
    found = np.empty((16, 2), np.int64)
    count = 0
    for span in range(len(call)):
        for row in range(given_start[span], given_end[span]):
            given_to[given[row]] = span
        start, end = sent_start[log[span]], sent_start[log[span] + 1]
        place = start + np.searchsorted(offset[start:end], start_offset[span])
        while place < end and offset[place] < end_offset[span]:
            if given_to[vid[place]] != span and since_ns[vid[place]] > end_ns[call[span]]:
                if count == len(found):
                    larger = np.empty((2 * count, 2), np.int64)
                    larger[:count] = found
                    found = larger
                found[count, 0] = call[span]
                found[count, 1] = place
                count += 1
            place += 1
    return found[:count]


def given_reads(columns: Columns, pairs: Longs) -> Longs:
    """Of senders and readers, what the reader was given: sender, reader, place among the sends (two numbers), value,
    whether the reader's position moved over it, whether nobody sent it later."""
    spans, polls = columns.spans, columns.polls
    is_reader = np.zeros(len(columns.calls), np.bool_)
    is_reader[pairs[:, 1]] = True
    got = polls.only(is_reader[polls.call])
    span = columns.span_of(got.call, got.log)
    is_trusted = np.append(spans.is_trusted, False)[span]
    got, span = got.only(is_trusted), span[is_trusted]
    offset = columns.order.offset_of(got.vid)
    is_passed = (spans.start_offset[span] <= offset) & (offset < spans.end_offset[span])
    wanted = set(map(tuple, pairs.tolist()))
    rows, place = _sends_of(columns, unique(pairs[:, 0]))
    sent: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row, (first, mop) in zip(rows.tolist(), place.tolist(), strict=True):
        sent[int(columns.sends.vid[row])].append((int(columns.sends.call[row]), first, mop))
    found = [
        (sender, reader, first, mop, int(columns.value_of[vid]), passed, columns.sender_of[vid] == sender)
        for reader, vid, passed in zip(got.call.tolist(), got.vid.tolist(), is_passed.tolist(), strict=True)
        for sender, first, mop in sent.get(vid, ())
        if (sender, reader) in wanted
    ]
    return np.array(found, np.int64).reshape(-1, 7)


def fractured_read(index: Longs, missing: Longs, given: Longs) -> Found:
    is_senders = {(sender, reader) for sender, reader, *_, is_last in given.tolist() if is_last}
    passed = given[given[:, 5] != 0]
    passed = passed[np.lexsort(passed[:, 3::-1].T)]
    first = passed[starts_of(passed[:, 0], passed[:, 1])].tolist()
    got = {(sender, reader): value for sender, reader, _, _, value, *_ in first if (sender, reader) in is_senders}
    cases = [
        Case(log=log, values=(value, got[sender, reader]), ops=tuple(index[[sender, reader]].tolist()))
        for sender, reader, log, value in missing.tolist()
        if (sender, reader) in got
    ]
    return Found(len(cases), cases)
