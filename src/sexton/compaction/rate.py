"""A limit for how fast compaction may use a disk or the network."""

from __future__ import annotations


class ByteRate:
    """Computes how long to wait before reading a number of bytes, so that the average stays below the limit. Idle time
    gives no credit."""

    def __init__(self, bytes_per_second: int | None) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at_ms = 0

    def wait_ms(self, size_bytes: int, now_ms: int) -> int:
        if self.bytes_per_second is None:
            return 0
        start_ms = max(now_ms, self._free_at_ms)
        self._free_at_ms = start_ms + size_bytes * 1000 // self.bytes_per_second
        return start_ms - now_ms
