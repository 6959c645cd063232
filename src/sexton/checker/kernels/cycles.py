"""The graph of `checker.cycles` as arrays. The search in it is the reference's: it looks only at what is in a cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexton.checker.cycles import RT, WR, WW, Edges, Kinds
from sexton.checker.kernels import scc
from sexton.checker.kernels.columns import Columns, is_f, starts_of
from sexton.checker.kernels.compiled import Ints, Longs, Rows
from sexton.history.op import READS_AND_WRITES, Type

_WHOLE = (WW, WR, RT)


@dataclass(frozen=True)
class Dependencies:
    """Edges of one kind between calls, by both ends, and what each is there for: a value that the call at its end sent
    or polled, and for a ww edge the value before it."""

    start: Longs
    end: Longs
    log: Longs
    value: Longs
    before: Longs

    @staticmethod
    def of(*parts: Dependencies) -> Dependencies:
        """Of several for one edge, the first log's smallest value."""
        columns = [np.concatenate(its) for its in zip(*(part.columns() for part in parts), strict=True)]
        order = np.lexsort((columns[3], columns[2], columns[1], columns[0]))
        first = order[starts_of(columns[0][order], columns[1][order])]
        return Dependencies(*(column[first] for column in columns))

    def columns(self) -> tuple[Longs, Longs, Longs, Longs, Longs]:
        return self.start, self.end, self.log, self.value, self.before


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


def _dependencies(columns: Columns, start: Longs, end: Longs, vid: Longs, other: Longs) -> Dependencies:
    rows = np.flatnonzero((start >= 0) & (end >= 0) & (start != end))
    return Dependencies.of(
        Dependencies(
            start=start[rows],
            end=end[rows],
            log=columns.logs[columns.log_of[vid[rows]]],
            value=columns.value_of[vid[rows]],
            before=columns.value_of[other[rows]],
        )
    )


class ArrayGraph:
    def __init__(self, calls: Rows, ww: Dependencies, wr: Dependencies) -> None:
        """Ends of dependencies are rows of `calls`."""
        is_node = is_f(calls, *READS_AND_WRITES)
        self._calls = calls[is_node]
        self.call_count = len(self._calls)
        node_of = np.cumsum(is_node) - 1
        self._dependencies = {WW: ww, WR: wr}
        self._row_of = np.flatnonzero(is_node)
        moments = np.flatnonzero(self._calls["type"] == Type.OK)
        self.node_count = self.call_count + len(moments)
        edges = {kind: (node_of[of.start], node_of[of.end]) for kind, of in self._dependencies.items()}
        edges[RT] = self._in_time(moments)
        self._packed = {kind: start * self.node_count + end for kind, (start, end) in edges.items()}
        self._relates = bool(len(ww.start) or len(wr.start) or np.any(edges[RT][1] < self.call_count))
        self._labels: dict[Kinds, Ints] = {}
        self._edges: dict[Kinds, tuple[Longs, Longs]] = {}
        self._keep_core()

    def _in_time(self, moments: Longs) -> tuple[Longs, Longs]:
        place = self.call_count + np.arange(len(moments))
        begun = np.flatnonzero(self._calls["begin_index"] >= 0)
        before = np.searchsorted(self._calls["index"][moments], self._calls["begin_index"][begun]) - 1
        begun, before = begun[before >= 0], before[before >= 0]
        start = np.concatenate([moments, place[:-1], self.call_count + before])
        return start, np.concatenate([place, place[1:], begun])

    def _keep_core(self) -> None:
        """What is in no cycle of all edges is in none of some."""
        whole = self._component_of(_WHOLE)
        for kind, packed in self._packed.items():
            start, end = whole[packed // self.node_count], whole[packed % self.node_count]
            self._packed[kind] = packed[(start >= 0) & (start == end)]
        self._edges.clear()

    def _union(self, kinds: Kinds) -> tuple[Longs, Longs]:
        """Compressed rows: where each node's successors begin, and these, sorted."""
        if kinds not in self._edges:
            packed = np.unique(np.concatenate([self._packed[kind] for kind in kinds]))
            starts = np.searchsorted(packed, np.arange(self.node_count + 1) * self.node_count)
            self._edges[kinds] = starts, packed % max(self.node_count, 1)
        return self._edges[kinds]

    def _component_of(self, kinds: Kinds) -> Ints:
        if kinds not in self._labels:
            starts, ends = self._union(kinds)
            self._labels[kinds] = scc.components(starts, ends.astype(np.int32))
        return self._labels[kinds]

    def op(self, call: int) -> int:
        return int(self._calls["index"][call])

    def invocation(self, call: int) -> int:
        return int(self._calls["begin_index"][call])

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
