"""Deadlines by name, in a heap: thousands of them cost nothing until one expires.

A heartbeat moves a deadline some ten times before it would expire. So setting a later deadline only changes a number
here, and the heap is updated when the old time comes: one entry per name, however often it is moved.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class Now(NamedTuple):
    """Two clocks: the wall clock may jump and is for recorded timestamps, the monotonic clock is for timeouts."""

    wall_ms: int
    monotonic_ms: int


@dataclass(slots=True)
class Timers(Generic[K]):
    _due: dict[K, tuple[int, int]] = field(default_factory=dict)
    """(deadline, number of its heap entry) by name."""
    _heap: list[tuple[int, int, K]] = field(default_factory=list)
    _entries_count: int = 0

    def __contains__(self, timer: K) -> bool:
        return timer in self._due

    def __len__(self) -> int:
        return len(self._due)

    def deadline_ms(self, timer: K) -> int | None:
        entry = self._due.get(timer)
        return None if entry is None else entry[0]

    def set(self, timer: K, deadline_ms: int) -> None:
        old = self._due.get(timer)
        if old is not None and old[0] <= deadline_ms:
            self._due[timer] = (deadline_ms, old[1])
            return
        self._push(timer, deadline_ms)

    def cancel(self, timer: K) -> None:
        self._due.pop(timer, None)

    def next_deadline_ms(self) -> int | None:
        """When to check again. May be early (a deadline has moved), never late."""
        self._drop_moved()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """Removes and returns the timer that has been due longest; None if none is due."""
        self._drop_moved()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        timer = heapq.heappop(self._heap)[2]
        del self._due[timer]
        return timer

    def _drop_moved(self) -> None:
        """Brings the top of the heap in line with `_due`."""
        while self._heap:
            deadline_ms, number, timer = self._heap[0]
            entry = self._due.get(timer)
            if entry is None or entry[1] != number:
                heapq.heappop(self._heap)
            elif entry[0] != deadline_ms:
                heapq.heapreplace(self._heap, (entry[0], number, timer))
            else:
                return

    def _push(self, timer: K, deadline_ms: int) -> None:
        self._entries_count += 1
        self._due[timer] = (deadline_ms, self._entries_count)
        heapq.heappush(self._heap, (deadline_ms, self._entries_count, timer))
