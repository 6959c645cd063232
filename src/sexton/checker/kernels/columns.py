"""A flat history, prepared for judging: calls, what they sent and polled, and the order of each log, as arrays.

The twin of `checker.view`, which has the definitions. Calls are rows of `calls`, by index; logs are numbered by rank,
and so is each value of each log (a *vid*): both in rising order, so that comparing numbers compares logs and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sexton.checker.kernels.arrays import Bools, Ints, Longs, Rows
from sexton.history.flat import FlatHistory, Kind
from sexton.history.lines import TOMBSTONE
from sexton.history.op import NEMESIS, READS_AND_WRITES, UNKNOWN, F, Type

FS: Final = (*F, "")
"""By number, what a call asked for; the last is whatever else."""
NUMBER_OF: Final = {str(f): number for number, f in enumerate(FS)}

CALLS: Final = np.dtype(
    [
        ("index", np.int64),
        ("begin_ns", np.int64),
        ("begin_index", np.int64),
        ("end_ns", np.int64),
        ("time_ns", np.int64),
        ("process", np.int64),
        ("row", np.int32),
        ("type", np.int8),
        ("f", np.int8),
    ],
    align=True,
)
"""As `view.Call`; `row` is its completion's in `ops`, `time_ns` the completion's own."""


def calls_of(flat: FlatHistory) -> Rows:
    """Needs pairs."""
    ops = flat.ops
    is_completion = (ops["type"] != Type.INVOKE) & (ops["process"] != NEMESIS)
    is_unfinished = (ops["type"] == Type.INVOKE) & (ops["process"] >= 0) & (ops["pair"] == UNKNOWN)
    rows = np.flatnonzero(is_completion | is_unfinished)
    calls = np.zeros(len(rows), CALLS)
    calls["row"] = rows
    for name in ("index", "time_ns", "process", "type"):
        calls[name] = ops[name][rows]
    calls["f"] = np.array([NUMBER_OF.get(text, len(FS) - 1) for text in flat.strings], np.int8)[ops["f"][rows]]
    begun = np.where(is_unfinished[rows], calls["index"], ops["pair"][rows])
    is_begun = begun != UNKNOWN
    calls["begin_index"] = begun
    calls["begin_ns"] = UNKNOWN
    calls["begin_ns"][is_begun] = ops["time_ns"][np.searchsorted(ops["index"], begun[is_begun])]
    end_ns = int(ops["time_ns"].max()) if len(ops) else 0
    calls["end_ns"] = np.where(is_unfinished[rows], end_ns, calls["time_ns"])
    calls["type"][is_unfinished[rows]] = Type.INFO
    return calls


def is_f(calls: Rows, *wanted: str) -> Bools:
    numbers = np.zeros(len(FS), np.bool_)
    numbers[[NUMBER_OF[f] for f in wanted]] = True
    found: Bools = numbers[calls["f"]]
    return found


def unique(numbers: Longs | Ints) -> Longs:
    """As NumPy's, which hashes before it sorts, and is slower for it where most are unique."""
    found = np.sort(numbers).astype(np.int64)
    return found[starts_of(found)]


def ranks(*columns: Longs) -> tuple[Longs, Longs]:
    """Numbers rows by their columns, in rising order. Also returns the first row of each number."""
    order = sort_by(*columns)
    starts = starts_of(*(column[order] for column in columns))
    is_new = np.zeros(len(order), np.int64)
    is_new[starts[1:]] = 1
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new)
    return number, order[starts]


def sort_by(*columns: Longs) -> Longs:
    """Stable."""
    packed = _packed(columns)
    order: Longs = np.argsort(packed, kind="stable") if packed is not None else np.lexsort(columns[::-1])
    return order


def _packed(columns: tuple[Longs, ...]) -> Longs | None:
    """All columns in one, if they fit."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    packed = np.zeros(len(columns[0]), np.int64)
    size = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        size *= high - low + 1
        if size >= 1 << 62:
            return None
        packed *= high - low + 1
        packed += column - low if low else column
    return packed


def starts_of(*columns: Longs | Ints) -> Longs:
    """Where a new group begins, in columns that are sorted."""
    is_new = np.zeros(len(columns[0]), np.bool_)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_new)


@dataclass(frozen=True)
class Moved:
    """What calls did to records: a row for each record sent or polled, in the order of the history."""

    call: Longs
    log: Longs
    """Its rank."""
    vid: Longs
    offset: Longs
    key: Longs
    mop: Longs
    """The place of its micro-operation in the call."""
    is_tombstone: Bools
    is_send: Bools

    def only(self, rows: Bools | Longs) -> Moved:
        return Moved(
            call=self.call[rows],
            log=self.log[rows],
            vid=self.vid[rows],
            offset=self.offset[rows],
            key=self.key[rows],
            mop=self.mop[rows],
            is_tombstone=self.is_tombstone[rows],
            is_send=self.is_send[rows],
        )

    def by_log(self, log_count: int) -> Callable[[int], Moved]:
        """By rank, what there is of each log. Sorted once: looking through all rows for each log would take as long as
        there are rows, times logs."""
        order = np.argsort(self.log, kind="stable")
        start = np.searchsorted(self.log[order], np.arange(log_count + 1))
        return lambda rank: self.only(order[start[rank] : start[rank + 1]])


@dataclass(frozen=True)
class Spans:
    """By call and log."""

    call: Longs
    log: Longs
    start_offset: Longs
    end_offset: Longs
    is_trusted: Bools


@dataclass(frozen=True)
class Named:
    """What an operation names beside records: a row for each log."""

    call: Longs
    log: Longs
    offset: Longs


class Columns:
    """Of some logs or of all: rows of `mops` and `spans` of others are not there."""

    def __init__(
        self, calls: Rows, end_ns: int, mops: Rows, spans: Rows, is_read: Bools | None = None, sent: Rows | None = None
    ) -> None:
        """`end_ns`: of the whole history. `is_read`: of calls, if known from all logs. `sent`: see `exts.SENT`."""
        self.calls = calls
        self.end_of_all_ns = end_ns
        self._is_read = is_read
        self.index: Longs = np.ascontiguousarray(calls["index"])
        self.type = np.ascontiguousarray(calls["type"])
        self.is_ok: Bools = self.type == Type.OK
        self.is_fail: Bools = self.type == Type.FAIL
        self.begin_ns: Longs = np.ascontiguousarray(calls["begin_ns"])
        self.end_ns: Longs = np.ascontiguousarray(calls["end_ns"])
        mop_rows, call = _of_calls(mops["op"], self.index)
        span_rows, span_call = _of_calls(spans["op"], self.index)
        mop_log, span_log = mops["log"][mop_rows], spans["log"][span_rows]
        sent = mops[:0] if sent is None else sent
        sent_rows, sent_call = _of_calls(sent["op"], self.index)
        sent_log = sent["log"][sent_rows]
        self.logs = unique(np.concatenate([unique(mop_log), unique(span_log), unique(sent_log)]))
        """By rank, what the history calls them."""
        log = np.searchsorted(self.logs, mop_log)
        self._set_records(mops, mop_rows, call, log)
        kind = mops["kind"][mop_rows]
        self.assigned, self.offsets, self.rebalanced = (
            Named(call[wanted], log[wanted], mops["offset"][mop_rows[wanted]])
            for wanted in (kind == Kind.LOG, kind == Kind.OFFSET, kind == Kind.REBALANCED)
        )
        self.sent = Named(sent_call, np.searchsorted(self.logs, sent_log), sent["offset"][sent_rows])
        self._set_spans(spans, span_rows, span_call, np.searchsorted(self.logs, span_log))

    def _set_records(self, mops: Rows, rows: Longs, call: Longs, log: Longs) -> None:
        kind = mops["kind"][rows]
        is_record = ((kind == Kind.SEND) | (kind == Kind.POLL)) & is_f(self.calls, *READS_AND_WRITES)[call]
        rows, call, log, kind = rows[is_record], call[is_record], log[is_record], kind[is_record]
        value = mops["value"][rows]
        vid, first = ranks(log, value)
        self.log_of: Longs = log[first]
        """By vid."""
        self.value_of: Longs = value[first]
        self.moved = Moved(
            call=call,
            log=log,
            vid=vid,
            offset=mops["offset"][rows],
            key=mops["key"][rows],
            mop=mops["mop"][rows].astype(np.int64),
            is_tombstone=mops["flags"][rows] & TOMBSTONE != 0,
            is_send=kind == Kind.SEND,
        )
        self.sends = self.moved.only(self.moved.is_send)
        self.polls = self.moved.only(~self.moved.is_send)

    def _set_spans(self, spans: Rows, rows: Longs, call: Longs, log: Longs) -> None:
        order = sort_by(call, log)
        rows, call, log = rows[order], call[order], log[order]
        self.spans = Spans(
            call=call,
            log=log,
            start_offset=spans["start_offset"][rows],
            end_offset=spans["end_offset"][rows],
            is_trusted=~np.isin(self.pack(call, log), self.pack(self.rebalanced.call, self.rebalanced.log)),
        )

    @property
    def vid_count(self) -> int:
        return len(self.log_of)

    def pack(self, call: Longs, log: Longs) -> Longs:
        return call * len(self.logs) + log

    def span_of(self, call: Longs, log: Longs) -> Longs:
        """The row in `spans`, or UNKNOWN."""
        packed, wanted = self.pack(self.spans.call, self.spans.log), self.pack(call, log)
        place = np.searchsorted(packed, wanted)
        place[place == len(packed)] = 0
        return np.where(packed[place] == wanted, place, UNKNOWN) if len(packed) else np.full(len(call), UNKNOWN)

    # -- by vid

    @cached_property
    def _vid_start(self) -> Longs:
        """Of each log; and where the last ends."""
        return np.searchsorted(self.log_of, np.arange(len(self.logs) + 1))

    def vids_of(self, rank: int) -> Longs:
        """All of a log."""
        return np.arange(self._vid_start[rank], self._vid_start[rank + 1])

    @cached_property
    def sender_of(self) -> Longs:
        """The last call that sent it, or UNKNOWN."""
        found = np.full(self.vid_count, UNKNOWN)
        np.maximum.at(found, self.sends.vid, self.sends.call)
        return found

    @cached_property
    def first_reader(self) -> Longs:
        """Or the number of calls."""
        return self._first(self.polls)

    @cached_property
    def first_ok_reader(self) -> Longs:
        return self._first(self.polls.only(self.is_ok[self.polls.call]))

    def _first(self, polls: Moved) -> Longs:
        found = np.full(self.vid_count, len(self.calls))
        np.minimum.at(found, polls.vid, polls.call)
        return found

    @cached_property
    def is_polled(self) -> Bools:
        return self.first_reader < len(self.calls)

    @cached_property
    def is_seen(self) -> Bools:
        return self.first_ok_reader < len(self.calls)

    # -- by call

    @cached_property
    def is_read(self) -> Bools:
        """Whether an ok call polled a value that it sent."""
        if self._is_read is not None:
            return self._is_read
        found = np.zeros(len(self.calls), np.bool_)
        found[self.sends.call[self.is_seen[self.sends.vid]]] = True
        return found

    @cached_property
    def is_certain(self) -> Bools:
        found: Bools = self.is_ok | ((self.type == Type.INFO) & self.is_read)
        return found

    @cached_property
    def is_certainly_sent(self) -> Bools:
        """By vid: whether its sender is certain."""
        found = np.zeros(self.vid_count, np.bool_)
        is_sent = self.sender_of != UNKNOWN
        found[is_sent] = self.is_certain[self.sender_of[is_sent]]
        return found

    # -- the order of each log

    @cached_property
    def order(self) -> Order:
        is_told = self.moved.offset != UNKNOWN
        is_told &= ~self.moved.is_send | self.is_certain[self.moved.call]
        rows = np.flatnonzero(is_told)
        log, offset, vid = self.moved.log[rows], self.moved.offset[rows], self.moved.vid[rows]
        _, first = ranks(log, offset, vid)
        log, offset, vid = log[first], offset[first], vid[first]
        return _order(log, offset, vid, self.vid_count, len(self.logs))


@dataclass(frozen=True)
class Order:
    """Of all logs, one after the other: as `view.Order`, but an index counts through all logs."""

    log: Longs
    """Of each index."""
    offset: Longs
    start: Longs
    """Of each index: its first row in `vid`; and where the last ends."""
    vid: Longs
    """What was seen at each index, the smallest first."""
    head: Longs
    """Of each index: the vid that stands for it."""
    log_start: Longs
    """Of each log, its first index; and where the last ends."""
    index_of: Longs
    """By vid, or UNKNOWN; so are the next two."""
    first: Longs
    last: Longs

    def within(self, index: Longs) -> Longs:
        """Counted from the start of its log."""
        return index - self.log_start[self.log[index]]

    def offset_of(self, vid: Longs) -> Longs:
        last = self.last[vid]
        return np.where(last == UNKNOWN, UNKNOWN, self.offset[last] if len(self.offset) else UNKNOWN)


def _order(log: Longs, offset: Longs, vid: Longs, vid_count: int, log_count: int) -> Order:
    """Rows are unique and sorted."""
    start = starts_of(log, offset)
    index = np.zeros(len(log), np.int64)
    index[start[1:]] = 1
    index = np.cumsum(index)
    head = vid[start]
    index_of, first, last = (np.full(vid_count, UNKNOWN, np.int64) for _ in range(3))
    np.maximum.at(index_of, head, np.arange(len(head)))
    np.maximum.at(last, vid, index)
    first[vid[::-1]] = index[::-1]
    return Order(
        log=log[start],
        offset=offset[start],
        start=np.append(start, len(vid)),
        vid=vid,
        head=head,
        log_start=np.searchsorted(log[start], np.arange(log_count + 1)),
        index_of=index_of,
        first=first,
        last=last,
    )


def _of_calls(op: Longs, index: Longs) -> tuple[Longs, Longs]:
    """Rows of calls, and these: not those of invocations that completed, nor of a nemesis."""
    place = np.searchsorted(index, op)
    place[place == len(index)] = 0
    rows = np.flatnonzero(index[place] == op) if len(index) else place[:0]
    return rows, place[rows]
