"""Bounds the memory of requests in flight, over all connections of a broker (`queued.max.request.bytes`; below zero
there is no bound).

A connection whose request does not fit waits, first come first served, and stops reading meanwhile, so that TCP flow
control slows its client down. A request larger than the whole budget is granted when no other request holds any, so
none waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def take(self, who: object, size_bytes: int, granted: Callable[[], None]) -> bool:
        """Returns True if it was granted at once; otherwise `granted` is called when it is, unless `forget(who)` is
        called first."""
        if not self._waiting and self._fits(size_bytes):
            self.held_bytes += size_bytes
            return True
        self._waiting[who] = size_bytes, granted
        return False

    def take_over(self, size_bytes: int) -> None:
        """Counts memory that is in use already, so that refusing it would save nothing."""
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0
        self._grant()

    def forget(self, who: object) -> None:
        if self._waiting.pop(who, None) is not None:
            self._grant()

    def _fits(self, size_bytes: int) -> bool:
        is_unbounded = self.limit_bytes < 0
        return is_unbounded or self.held_bytes == 0 or self.held_bytes + size_bytes <= self.limit_bytes

    def _grant(self) -> None:
        while self._waiting:
            who, (size_bytes, granted) = next(iter(self._waiting.items()))
            if not self._fits(size_bytes):
                return
            del self._waiting[who]
            self.held_bytes += size_bytes
            granted()
