"""Cycles of operations, each of which must be before the next: 15, 16, 17, 19.

Between completions of operations that read or write there are three kinds of edges:

- **ww**: who sent a value -> who sent the next one in the log's order;
- **wr**: who sent a value -> everybody who polled it, whatever became of them;
- **rt**: an ok completion -> whoever was invoked after it.

No rw edges: Jepsen's docstring has them, its code has not, and a consumer that stops before the end of a log has not
missed what comes behind. Instead of n² edges, real time is a chain with a node for each ok completion: a call leads to
its node, each node to the next, and the last node before an invocation to the call.

What is found in a strongly connected component of the whole graph is what Elle finds in it, and is counted as Elle
counts it, once a component: `G0` if it has a cycle of ww edges; if not, `G1c` if it has one of ww and wr, and
`G0-realtime` if it has one of ww and rt; and `G1c-realtime` if it has neither. Each with the `...-cycle-exists` of its
level, as in Jepsen's results. Elle's `-process` cycles never come up there: real time contains each process's order.

`G1c-wr` is ours: the same without ww edges, always computed, so that one run answers what takes two in Jepsen (with and
without `--ww-deps`).

That a cycle exists is proven by the component. The search for the shortest one to show is bounded by a count of steps;
where that is spent, the case names the members only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sexton.checker.evidence import Case
from sexton.checker.view import Call, View
from sexton.history.op import READS_AND_WRITES, UNKNOWN

SHOWN_MAX: Final = 100
"""Components of one kind whose shortest cycle is looked for, smallest first."""

WW: Final = "ww"
WR: Final = "wr"
RT: Final = "rt"

Edges = Mapping[int, Sequence[int]]
Kinds = tuple[str, ...]


class Graph(Protocol):
    """Nodes below `call_count` are calls, the others are moments at which an ok call had completed."""

    @property
    def call_count(self) -> int: ...
    @property
    def node_count(self) -> int: ...
    def op(self, call: int) -> int:
        """The index of its completion."""

    def invocation(self, call: int) -> int: ...
    def relates_calls(self) -> bool: ...
    def components(self, kinds: Kinds) -> Iterator[list[int]]:
        """Strongly connected components of more than one node by edges of these kinds, each sorted, by their
        smallest."""

    def parts(self, component: Sequence[int], kinds: Kinds) -> list[list[int]]:
        """Those within one of the whole graph's."""

    def within(self, part: Sequence[int], kinds: Kinds) -> Edges:
        """Edges between nodes of a part, sorted."""

    def why(self, kind: str, start: int, end: int) -> Mapping[str, Any] | None:
        """What a ww or wr edge is there for: the log and the values, the first where there are several."""


@dataclass
class PlainGraph:
    calls: Sequence[Call]
    node_count: int = 0
    edges: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    reasons: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    _unions: dict[Kinds, Edges] = field(default_factory=dict)

    @property
    def call_count(self) -> int:
        return len(self.calls)

    def op(self, call: int) -> int:
        return self.calls[call].index

    def invocation(self, call: int) -> int:
        return self.calls[call].begin_index

    def relates_calls(self) -> bool:
        in_time = (node for successors in self.edges[RT].values() for node in successors)
        return bool(self.reasons) or any(node < len(self.calls) for node in in_time)

    def components(self, kinds: Kinds) -> Iterator[list[int]]:
        return components(self.node_count, self._union(kinds))

    def parts(self, component: Sequence[int], kinds: Kinds) -> list[list[int]]:
        return list(components(component, self.within(component, kinds)))

    def within(self, part: Sequence[int], kinds: Kinds) -> Edges:
        return within(part, self._union(kinds))

    def why(self, kind: str, start: int, end: int) -> Mapping[str, Any] | None:
        return self.reasons.get((kind, start, end))

    def _union(self, kinds: Kinds) -> Edges:
        if kinds not in self._unions:
            found: dict[int, set[int]] = defaultdict(set)
            for kind in kinds:
                for node, successors in self.edges[kind].items():
                    found[node].update(successors)
            self._unions[kinds] = {node: sorted(successors) for node, successors in found.items()}
        return self._unions[kinds]


def cycles(view: View) -> dict[str, list[Case]]:
    """By anomaly."""
    return cycles_of(build(view), view.options.cycle_steps_max)


def cycles_of(graph: Graph, steps_max: int) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = defaultdict(list)
    if not graph.relates_calls():
        found["empty-transaction-graph"] = [Case()]
        return found
    search = _Search(graph, steps_max, found)
    for component in graph.components((WW, WR, RT)):
        if search.has_cycle(component, (WW,)):
            search.report(component, (WW,), "G0", "PL-1-cycle-exists")
            continue
        circular = search.has_cycle(component, (WW, WR))
        if circular:
            search.report(component, (WW, WR), "G1c", "PL-2-cycle-exists")
        if search.has_cycle(component, (WW, RT)):
            search.report(component, (WW, RT), "G0-realtime", "strong-PL-1-cycle-exists")
        elif not circular:
            search.report(component, (WW, WR, RT), "G1c-realtime", "strong-PL-2-cycle-exists")
    for component in graph.components((WR, RT)):
        if search.has_cycle(component, (WR,)):
            search.report(component, (WR,), "G1c-wr")
        else:
            search.report(component, (WR, RT), "G1c-wr-realtime")
    return found


def build(view: View) -> PlainGraph:
    calls = [call for call in view.calls if call.op.f in READS_AND_WRITES]
    node_of = {call.index: node for node, call in enumerate(calls)}
    graph = PlainGraph(calls, edges={WW: defaultdict(list), WR: defaultdict(list), RT: defaultdict(list)})
    if view.options.ww_deps:
        _link_writes(view, graph, node_of)
    for (log, value), readers in sorted(view.readers_of.items()):
        sender = view.sender_of.get((log, value))
        for reader in readers:
            if sender is not None:
                _link(graph, WR, node_of[sender.index], node_of[reader.index], {"log": log, "value": value})
    _link_time(graph)
    return graph


def _link_writes(view: View, graph: PlainGraph, node_of: Mapping[int, int]) -> None:
    for log, order in view.orders.items():
        for value, index in sorted(order.index_of.items()):
            before = order.values[index - 1][0] if index else None
            sender = view.sender_of.get((log, value))
            earlier = view.sender_of.get((log, before)) if before is not None else None
            if sender is not None and earlier is not None:
                why = {"log": log, "value": before, "next-value": value}
                _link(graph, WW, node_of[earlier.index], node_of[sender.index], why)


def _link(graph: PlainGraph, kind: str, start: int, end: int, why: dict[str, Any]) -> None:
    if start != end and (kind, start, end) not in graph.reasons:
        graph.edges[kind][start].append(end)
        graph.reasons[kind, start, end] = why


def _link_time(graph: PlainGraph) -> None:
    moments = [(call.index, node) for node, call in enumerate(graph.calls) if call.is_ok]
    first = len(graph.calls)
    graph.node_count = first + len(moments)
    for place, (_, node) in enumerate(moments):
        graph.edges[RT][node].append(first + place)
        if place + 1 < len(moments):
            graph.edges[RT][first + place].append(first + place + 1)
    for node, call in enumerate(graph.calls):
        if call.begin_index != UNKNOWN:
            before = bisect_left(moments, (call.begin_index, -1)) - 1
            if before >= 0:
                graph.edges[RT][first + before].append(node)


class _Search:
    def __init__(self, graph: Graph, steps_max: int, found: dict[str, list[Case]]) -> None:
        self._graph = graph
        self._steps_max = steps_max
        self._found = found

    def has_cycle(self, component: Sequence[int], kinds: Kinds) -> bool:
        return bool(self._graph.parts(component, kinds))

    def report(self, component: Sequence[int], kinds: Kinds, *names: str) -> None:
        """The shortest cycle of the smallest part; and for the level's name, its members."""
        part = min(self._graph.parts(component, kinds), key=lambda part: (len(part), part))
        members = tuple(self._graph.op(node) for node in part if node < self._graph.call_count)
        cycle: Sequence[int] = ()
        if len(self._found[names[0]]) < SHOWN_MAX:
            cycle, was_given_up = self._shortest(part, kinds)
            if was_given_up:
                self._found["cycle-search-timeout"].append(Case(ops=members, detail={"name": names[0]}))
        if cycle:
            ops = tuple(self._graph.op(node) for node in cycle)
            steps = [self._explain(start, end, kinds) for start, end in _pairs(cycle)]
            self._found[names[0]].append(Case(ops=ops, severity=-len(ops), detail={"steps": steps}))
        else:
            self._found[names[0]].append(Case(ops=members, severity=-self._graph.node_count))
        for name in names[1:]:
            self._found[name].append(Case(ops=members, severity=-len(members)))

    def _shortest(self, part: Sequence[int], kinds: Kinds) -> tuple[Sequence[int], bool]:
        """A search from each call in turn; a step into a moment costs nothing."""
        edges = self._graph.within(part, kinds)
        best: Sequence[int] = ()
        steps = 0
        for start in part:
            if start >= self._graph.call_count:
                continue
            came_from: dict[int, int] = {}
            distance = {start: 0}
            queue = deque([start])
            while queue:
                node = queue.popleft()
                if best and distance[node] + 1 >= len(best):
                    break
                for successor in edges.get(node, ()):
                    steps += 1
                    if steps > self._steps_max:
                        return best, True
                    if successor == start:
                        best = self._walk(came_from, start, node)
                        queue.clear()
                        break
                    is_call = successor < self._graph.call_count
                    if successor not in distance:
                        distance[successor] = distance[node] + is_call
                        came_from[successor] = node
                        (queue.append if is_call else queue.appendleft)(successor)
            if len(best) == 2:
                break
        return best, False

    def _walk(self, came_from: Mapping[int, int], start: int, node: int) -> Sequence[int]:
        nodes = []
        while node != start:
            nodes.append(node)
            node = came_from[node]
        return [start, *(node for node in reversed(nodes) if node < self._graph.call_count)]

    def _explain(self, start: int, end: int, kinds: Kinds) -> dict[str, Any]:
        for kind in (WW, WR):
            why = self._graph.why(kind, start, end) if kind in kinds else None
            if why is not None:
                return {"type": kind, **why}
        return {"type": RT, "completed": self._graph.op(start), "invoked": self._graph.invocation(end)}


def within(nodes: Iterable[int], edges: Edges) -> Edges:
    members = set(nodes)
    return {node: [successor for successor in edges[node] if successor in members] for node in members if node in edges}


def components(nodes: int | Sequence[int], edges: Edges) -> Iterator[list[int]]:
    """Strongly connected components of more than one node, each sorted, by their smallest: Tarjan's, as a loop."""
    found = []
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(nodes) if isinstance(nodes, int) else nodes:
        if root in number:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        node: int | None = root
        while node is not None or path:
            if node is not None:
                number[node] = low[node] = len(number)
                stack.append(node)
                on_stack.add(node)
                path.append((node, iter(edges.get(node, ()))))
            top, successors = path[-1]
            node = next((successor for successor in successors if _is_new(successor, top, number, low, on_stack)), None)
            if node is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[top])
                if low[top] == number[top]:
                    component = [stack.pop()]
                    while component[-1] != top:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
    return iter(sorted(found))


def _is_new(successor: int, top: int, number: Mapping[int, int], low: dict[int, int], on_stack: set[int]) -> bool:
    if successor not in number:
        return True
    if successor in on_stack:
        low[top] = min(low[top], number[successor])
    return False


def _pairs(cycle: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(cycle, [*cycle[1:], cycle[0]], strict=True)
