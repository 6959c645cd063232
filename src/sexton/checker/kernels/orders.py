"""The twin of `checker.orders`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from sexton.checker.evidence import Case
from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, sort_by, starts_of
from sexton.checker.kernels.found import Found


class Witnesses:
    """Who sent or polled a value, and at which offset."""

    def __init__(self, columns: Columns, vids: Longs) -> None:
        """Of some vids."""
        self._columns = columns
        moved = columns.moved
        is_wanted = np.zeros(columns.vid_count, np.bool_)
        is_wanted[vids] = True
        rows = moved.only(is_wanted[moved.vid])
        order = sort_by(rows.vid, rows.call)
        self._rows = rows.only(order)

    def told(self, vid: int) -> list[tuple[bool, int, int]]:
        """Whether it is a send, call, offset; by call."""
        start, end = np.searchsorted(self._rows.vid, (vid, vid + 1))
        rows = self._rows.only(np.arange(start, end))
        return list(zip(rows.is_send.tolist(), rows.call.tolist(), rows.offset.tolist(), strict=True))

    def ops(self, vids: Longs, offsets: list[int]) -> tuple[int, ...]:
        """As the reference's `_witnesses`."""
        found: set[int] = set()
        for vid in vids.tolist():
            told = self.told(vid)
            sender = int(self._columns.sender_of[vid])
            found.update(call for is_send, call, at in told if is_send and call == sender and at in offsets)
            for offset in offsets:
                readers = (call for is_send, call, at in told if not is_send and at == offset)
                found.update([call] if (call := next(readers, None)) is not None else [])
        return tuple(self._columns.index[sorted(found)].tolist())


def inconsistent_offsets(columns: Columns) -> Found:
    order = columns.order
    indexes = np.flatnonzero(np.diff(order.start) > 1)
    if not len(indexes):
        return Found()
    is_there = np.repeat(np.diff(order.start) > 1, np.diff(order.start))
    witnesses = Witnesses(columns, order.vid[is_there])
    cases = []
    for index, within in zip(indexes.tolist(), order.within(indexes).tolist(), strict=True):
        vids = order.vid[order.start[index] : order.start[index + 1]]
        offset = int(order.offset[index])
        cases.append(
            Case(
                log=int(columns.logs[order.log[index]]),
                values=tuple(columns.value_of[vids].tolist()),
                ops=witnesses.ops(vids, [offset]),
                severity=len(vids),
                detail={"offset": offset, "index": within},
            )
        )
    return Found(len(cases), cases)


def _repeated(columns: Columns) -> Iterator[tuple[int, list[int]]]:
    """Vids that were seen at several offsets, and these."""
    order = columns.order
    index = np.repeat(np.arange(len(order.head)), np.diff(order.start))
    is_repeated: Bools = order.first[order.vid] != order.last[order.vid]
    vid, index = order.vid[is_repeated], index[is_repeated]
    rows = sort_by(vid, index)
    vid, offset = vid[rows], order.offset[index[rows]]
    starts = starts_of(vid) if len(vid) else vid
    for start, end in pairwise([*starts.tolist(), len(vid)]):
        yield int(vid[start]), offset[start:end].tolist()


def duplicate(columns: Columns) -> Found:
    repeated = list(_repeated(columns))
    witnesses = Witnesses(columns, np.array([vid for vid, _ in repeated], np.int64))
    cases = [
        Case(
            log=int(columns.logs[columns.log_of[vid]]),
            values=(int(columns.value_of[vid]),),
            ops=witnesses.ops(np.array([vid]), offsets),
            severity=len(offsets),
            detail={"offsets": offsets},
        )
        for vid, offsets in repeated
    ]
    return Found(len(cases), cases)


def moved(columns: Columns, is_compacted: Bools) -> Found:
    vids = [vid for vid, _ in _repeated(columns) if is_compacted[columns.log_of[vid]]]
    witnesses = Witnesses(columns, np.array(vids, np.int64))
    cases: list[Case] = []
    for vid in vids:
        by_offset: dict[int, list[int]] = {}
        for is_send, call, offset in witnesses.told(vid):
            if not is_send:
                by_offset.setdefault(offset, []).append(call)
        looks = sorted((int(columns.end_ns[calls].max()), offset) for offset, calls in by_offset.items())
        for (end_ns, before), (_, after) in pairwise(looks):
            if columns.begin_ns[by_offset[after]].min() > end_ns:
                ops = columns.index[[by_offset[before][0], by_offset[after][0]]].tolist()
                common: Any = {"log": int(columns.logs[columns.log_of[vid]]), "values": (int(columns.value_of[vid]),)}
                cases.append(Case(**common, ops=tuple(ops), detail={"offsets": [before, after]}))
    return Found(len(cases), cases)


def unwritten_read(columns: Columns) -> Found:
    vids = np.flatnonzero(columns.is_polled & (columns.sender_of < 0))
    witnesses = Witnesses(columns, vids)
    cases = []
    for vid in vids.tolist():
        readers = [call for _, call, _ in witnesses.told(vid)]
        cases.append(
            Case(
                log=int(columns.logs[columns.log_of[vid]]),
                values=(int(columns.value_of[vid]),),
                ops=tuple(columns.index[sorted(set(readers))].tolist()),
                severity=len(readers),
            )
        )
    return Found(len(cases), cases)
