"""What happened, in order: readable at its end, and as one hash from its beginning.

Two runs of one seed are the same run if their hashes are equal: every line and every byte that was delivered goes in.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque

from sexton.simulate.loop import MS, SimulatedLoop

LINES_KEPT = 5_000
"""Enough to see what led to a failure; a whole run may have millions."""

_DELIVERY = struct.Struct(">qi")


class Trace:
    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: deque[tuple[int, str, str]] = deque(maxlen=LINES_KEPT)
        self.lines_count = 0

    def note(self, who: str, what: str) -> None:
        now_ns = self._loop.now_ns
        self._lines.append((now_ns, who, what))
        self.lines_count += 1
        self._hash.update(f"{now_ns}|{who}|{what}\n".encode())

    def remark(self, who: str, what: str) -> None:
        """For people alone: what brokers log may name things by their place in memory, and is not hashed."""
        self._lines.append((self._loop.now_ns, who, what))

    def delivered(self, source: str, target: str, data: bytes) -> None:
        """Too many to tell one by one; the hash has them all."""
        self._hash.update(_DELIVERY.pack(self._loop.now_ns, len(data)))
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def tail(self, count: int) -> list[str]:
        """The last lines, one event each: seconds of virtual time, who, what."""
        lines = list(self._lines)[-count:]
        return [f"{ns // MS / 1000:10.3f}  {who:<12} {what}" for ns, who, what in lines]
