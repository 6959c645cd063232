"""Who waits for a log: requests for its high watermark to rise, and others to be called when something has changed."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable


class CommitWaiters:
    """Futures of what is appended and not committed yet. They complete in the order of their offsets, and those of one
    offset in the order in which they came."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    @property
    def first_offset(self) -> int | None:
        """The lowest that somebody waits for."""
        return self._heap[0][0] if self._heap else None

    def wait_for(self, end_offset: int) -> asyncio.Future[None]:
        """Completes once everything below `end_offset` is committed, or fails if it may never be."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._heap, (end_offset, self._count, future))
        return future

    def reached(self, offset: int, error: Exception | None = None) -> None:
        """Everything below `offset` is committed; whoever waits for that gets `error` if there is one."""
        heap = self._heap
        while heap and heap[0][0] <= offset:
            _complete(heapq.heappop(heap)[2], error)

    def fail(self, error: Exception) -> None:
        """All of them."""
        waiting, self._heap = self._heap, []
        for _, _, future in waiting:
            _complete(future, error)


def _complete(future: asyncio.Future[None], error: Exception | None) -> None:
    """A request that has timed out has cancelled its future."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class Watchers:
    """Callbacks, called in the order in which they came."""

    __slots__ = ("_callbacks", "_count")

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that removes it."""
        self._count += 1
        key = self._count
        self._callbacks[key] = callback

        def cancel() -> None:
            self._callbacks.pop(key, None)

        return cancel

    def wake(self) -> None:
        """One that is called may add and remove others."""
        for callback in list(self._callbacks.values()):
            callback()
