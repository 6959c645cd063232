"""Strongly connected components of a graph in compressed rows: Tarjan's, as a loop."""

from __future__ import annotations

import numpy as np

from sexton.checker.kernels.arrays import Ints, Longs
from sexton.jit import kernel


@kernel
def components(starts: Longs, ends: Ints) -> Ints:
    """The successors of a node are `ends[starts[node]:starts[node + 1]]`. Returns each node's component by number, -1
    if it is alone in it."""
    count = len(starts) - 1
    component = np.full(count, -1, np.int32)
    number = np.zeros(count, np.int32)  # 0: not met
    low = np.zeros(count, np.int32)
    is_done = np.zeros(count, np.bool_)
    stack = np.empty(count, np.int32)
    stack_size = 0
    path = np.empty(count, np.int32)
    place = starts[:-1].copy()
    met = 0
    found = 0
    for root in range(count):
        if number[root]:
            continue
        path[0] = root
        path_size = 1
        met += 1
        number[root] = low[root] = met
        stack[stack_size] = root
        stack_size += 1
        while path_size:
            node = path[path_size - 1]
            goes_deeper = False
            while place[node] < starts[node + 1]:
                successor = ends[place[node]]
                place[node] += 1
                if not number[successor]:
                    met += 1
                    number[successor] = low[successor] = met
                    stack[stack_size] = successor
                    stack_size += 1
                    path[path_size] = successor
                    path_size += 1
                    goes_deeper = True
                    break
                if not is_done[successor]:
                    low[node] = min(low[node], number[successor])
            if goes_deeper:
                continue
            path_size -= 1
            if path_size:
                before = path[path_size - 1]
                low[before] = min(low[before], low[node])
            if low[node] == number[node]:
                is_alone = stack[stack_size - 1] == node
                member = -1
                while member != node:
                    stack_size -= 1
                    member = stack[stack_size]
                    is_done[member] = True
                    if not is_alone:
                        component[member] = found
                found += not is_alone
    return component


@kernel
def fill(start: Longs, end: Longs, free: Longs, successors: Ints) -> None:
    """Puts edges where their starts have room, and moves that."""
    for row in range(len(start)):
        successors[free[start[row]]] = end[row]
        free[start[row]] += 1
