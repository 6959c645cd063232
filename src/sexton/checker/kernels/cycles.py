"""The graph of `checker.cycles` as arrays. The search in it is the reference's: it looks only at what is in a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexton.checker.cycles import RT, WR, WW, Edges, Kinds
from sexton.checker.kernels import scc
from sexton.checker.kernels.arrays import Bools, Ints, Longs, Rows
from sexton.checker.kernels.columns import Columns, is_f, starts_of, unique
from sexton.history.op import READS_AND_WRITES, Type

_WHOLE = (WW, WR, RT)


@dataclass(frozen=True)
class Dependencies:
    """Edges of one kind between calls, and what each is there for: a value that the call at its end sent or polled, and
    for a ww edge the value before it."""

    start: Ints
    end: Ints
    log: Ints
    value: Longs
    before: Longs

    @staticmethod
    def none() -> Dependencies:
        numbers, values = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return Dependencies(numbers, numbers, numbers, values, values)

    @staticmethod
    def of(parts: Sequence[Dependencies]) -> Dependencies:
        """Of several bundles."""
        if len(parts) == 1:
            return parts[0]
        names = ("start", "end", "log", "value", "before")
        return Dependencies(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def only(self, rows: Bools | Longs) -> Dependencies:
        return Dependencies(self.start[rows], self.end[rows], self.log[rows], self.value[rows], self.before[rows])

    def first(self) -> Dependencies:
        """By both ends, each once: of several, the first log's smallest value."""
        order = np.lexsort((self.value, self.log, self.end, self.start))
        return self.only(order[starts_of(self.start[order], self.end[order])])


@dataclass(frozen=True)
class Ends:
    """Of edges of one kind, what the order in time does not tell anyway: both calls."""

    start: Ints
    end: Ints

    @staticmethod
    def of(parts: Sequence[Ends]) -> Ends:
        """Of several bundles."""
        return Ends(np.concatenate([it.start for it in parts]), np.concatenate([it.end for it in parts]))


def untold_ends(columns: Columns, of: Dependencies) -> Ends:
    """Whoever is read from, or written after, has mostly completed when the other begins. Then what is reachable, and
    so what is in a cycle, does not depend on the edge; and there is one for each record that was polled."""
    begin_index = np.ascontiguousarray(columns.calls["begin_index"])
    rows = np.flatnonzero(~(columns.is_ok[of.start] & (columns.index[of.start] < begin_index[of.end])))
    return Ends(of.start[rows], of.end[rows])


@dataclass(frozen=True)
class Core:
    """Calls that are in a cycle of some kind, sorted, and a number that those in the same have in common."""

    call: Longs
    component: Ints

    def within(self, of: Dependencies) -> Dependencies:
        """Edges within a component, each once."""
        start, end = (np.searchsorted(self.call, it) for it in (of.start, of.end))
        known, component = np.append(self.call, -1), np.append(self.component, -1)
        is_in = (known[start] == of.start) & (known[end] == of.end) & (component[start] == component[end])
        return of.only(is_in).first()


def read_dependencies(columns: Columns) -> Dependencies:
    sender = columns.sender_of[columns.polls.vid]
    return _dependencies(columns, sender, columns.polls.call, columns.polls.vid, columns.polls.vid)


def write_dependencies(columns: Columns) -> Dependencies:
    order = columns.order
    vid = np.flatnonzero(order.index_of > 0)
    index = order.index_of[vid]
    is_after = order.log[index - 1] == order.log[index]
    vid, before = vid[is_after], order.head[index[is_after] - 1]
    return _dependencies(columns, columns.sender_of[before], columns.sender_of[vid], vid, before)


def _dependencies(columns: Columns, start: Longs, end: Longs, vid: Longs, before: Longs) -> Dependencies:
    rows = np.flatnonzero((start >= 0) & (end >= 0) & (start != end))
    log, value = columns.logs[columns.log_of[vid[rows]]], columns.value_of[vid[rows]]
    return Dependencies(
        start=start[rows].astype(np.int32),
        end=end[rows].astype(np.int32),
        log=log.astype(np.int32),
        value=value,
        before=value if before is vid else columns.value_of[before[rows]],
    )


class ArrayGraph:
    """Takes ends of edges first; then, of what is in a cycle (`core`), all edges (`explain`)."""

    def __init__(self, calls: Rows, ww: Ends, wr: Ends, has_dependencies: bool) -> None:
        """Ends are rows of `calls`. Those that the order in time tells anyway may be left out."""
        is_node = is_f(calls, *READS_AND_WRITES)
        self._row_of = np.flatnonzero(is_node)
        self._index: Longs = calls["index"][self._row_of]
        self._begin_index: Longs = calls["begin_index"][self._row_of]
        self.call_count = len(self._row_of)
        moments = np.flatnonzero(calls["type"][self._row_of] == Type.OK)
        self.node_count = self.call_count + len(moments)
        self._node_of = np.cumsum(is_node, dtype=np.int32) - np.int32(1)
        in_time = self._in_time(moments)
        ends = [in_time, *((self._node_of[of.start], self._node_of[of.end]) for of in (ww, wr))]
        self._relates = has_dependencies or bool(np.any(in_time[1] < self.call_count))
        # What is in no cycle of all edges is in none of some.
        starts, successors = _compressed(ends, self.node_count)
        whole = scc.components(starts, successors)
        self._labels: dict[Kinds, Ints] = {_WHOLE: whole}
        self._ends = {RT: _within(whole, *in_time)}
        self._dependencies: dict[str, Dependencies] = {}
        self._unions: dict[Kinds, tuple[Longs, Ints]] = {}

    def core(self) -> Core:
        component = self._labels[_WHOLE][: self.call_count]
        nodes = np.flatnonzero(component >= 0)
        return Core(self._row_of[nodes], component[nodes])

    def explain(self, ww: Dependencies, wr: Dependencies) -> None:
        """All of the core, each edge once."""
        self._dependencies = {WW: ww, WR: wr}
        for kind, of in self._dependencies.items():
            self._ends[kind] = self._node_of[of.start].astype(np.int64), self._node_of[of.end].astype(np.int64)

    def _in_time(self, moments: Longs) -> tuple[Longs, Longs]:
        place = self.call_count + np.arange(len(moments))
        begun = np.flatnonzero(self._begin_index >= 0)
        before = np.searchsorted(self._index[moments], self._begin_index[begun]) - 1
        begun, before = begun[before >= 0], before[before >= 0]
        start = np.concatenate([moments, place[:-1], self.call_count + before])
        return start, np.concatenate([place, place[1:], begun])

    def _union(self, kinds: Kinds) -> tuple[Longs, Ints]:
        """What is in a cycle of the whole graph, with the successors of each node sorted."""
        if kinds not in self._unions:
            packed = unique(
                np.concatenate([start * self.node_count + end for start, end in (self._ends[kind] for kind in kinds)])
            )
            ends = [(packed // max(self.node_count, 1), packed % max(self.node_count, 1))]
            self._unions[kinds] = _compressed(ends, self.node_count)
        return self._unions[kinds]

    def _component_of(self, kinds: Kinds) -> Ints:
        if kinds not in self._labels:
            self._labels[kinds] = scc.components(*self._union(kinds))
        return self._labels[kinds]

    def op(self, call: int) -> int:
        return int(self._index[call])

    def invocation(self, call: int) -> int:
        return int(self._begin_index[call])

    def relates_calls(self) -> bool:
        return self._relates

    def components(self, kinds: Kinds) -> Iterator[list[int]]:
        return iter(self._grouped(np.arange(self.node_count), kinds))

    def parts(self, component: Sequence[int], kinds: Kinds) -> list[list[int]]:
        return self._grouped(np.array(component, np.int64), kinds)

    def _grouped(self, nodes: Longs, kinds: Kinds) -> list[list[int]]:
        """Nodes are sorted."""
        label = self._component_of(kinds)[nodes]
        nodes, label = nodes[label >= 0], label[label >= 0]
        order = np.argsort(label, kind="stable")
        nodes = nodes[order]
        starts = starts_of(label[order].astype(np.int64)) if len(nodes) else nodes
        return sorted(part.tolist() for part in np.split(nodes, starts[1:]) if len(part))

    def within(self, part: Sequence[int], kinds: Kinds) -> Edges:
        starts, ends = self._union(kinds)
        members = set(part)
        found = {node: ends[starts[node] : starts[node + 1]].tolist() for node in part}
        return {node: [end for end in successors if end in members] for node, successors in found.items() if successors}

    def why(self, kind: str, start: int, end: int) -> Mapping[str, Any] | None:
        if max(start, end) >= self.call_count:
            return None
        of = self._dependencies[kind]
        first, last = np.searchsorted(of.start, self._row_of[start] + np.arange(2))
        place = first + int(np.searchsorted(of.end[first:last], self._row_of[end]))
        if place == last or of.end[place] != self._row_of[end]:
            return None
        log, value, before = (int(column[place]) for column in (of.log, of.value, of.before))
        return {"log": log, "value": value} if kind == WR else {"log": log, "value": before, "next-value": value}


def _within(component: Ints, start: Longs, end: Longs) -> tuple[Longs, Longs]:
    is_core = (component[start] >= 0) & (component[start] == component[end])
    return start[is_core], end[is_core]


def _compressed(ends: Iterable[tuple[Longs, Longs]], node_count: int) -> tuple[Longs, Ints]:
    """Compressed rows: where each node's successors begin, and these, in the order of the edges."""
    all_ends = list(ends)
    counts = np.zeros(node_count, np.int64)
    for start, _ in all_ends:
        counts += np.bincount(start, minlength=node_count)
    starts = np.append(0, np.cumsum(counts))
    successors = np.empty(starts[-1], np.int32)
    free = starts[:-1].copy()
    for start, end in all_ends:
        scc.fill(start, end, free, successors)
    return starts, successors
