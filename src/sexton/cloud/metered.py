"""What a broker's requests to the store cost: how many there were, how long they took, how they ended.

All of them go through `MeteredStore`, so that nobody who makes one has to count it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from sexton.ports.clock import Clock
from sexton.ports.objects import (
    Buffer,
    DamagedObjectError,
    ListedObject,
    ObjectMissingError,
    ObjectStore,
    StoreRefusedError,
    StoreUnavailableError,
)

T = TypeVar("T")

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 1.0, 2.5, 10.0)


class Ended(StrEnum):
    OK = "ok"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    MISSING = "missing"
    DAMAGED = "damaged"


_ERRORS: Final = {
    StoreUnavailableError: Ended.UNAVAILABLE,
    StoreRefusedError: Ended.REFUSED,
    ObjectMissingError: Ended.MISSING,
    DamagedObjectError: Ended.DAMAGED,
}


@dataclass(slots=True)
class Timing:
    """Durations of requests that were answered."""

    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def took(self, seconds: float) -> None:
        self.seconds += seconds
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1


@dataclass(slots=True)
class CloudStats:
    requests: Counter[tuple[str, Ended]] = field(default_factory=Counter)
    """Number of requests, by operation and outcome."""
    hedged_puts_count: int = 0
    """PUTs that took long and were begun a second time."""
    put_bytes: int = 0
    got_bytes: int = 0
    puts: Timing = field(default_factory=Timing)
    gets: Timing = field(default_factory=Timing)
    commits: Timing = field(default_factory=Timing)
    """Of the metastore, from the first attempt to the answer."""
    cache_hits_count: int = 0
    cache_misses_count: int = 0
    lost_runs_count: int = 0
    """Runs that were missing or damaged when somebody read them (C12)."""


class MeteredStore:
    """Implements `ports.objects.ObjectStore`."""

    def __init__(self, store: ObjectStore, stats: CloudStats, clock: Clock) -> None:
        self._store = store
        self._stats = stats
        self._clock = clock

    @property
    def place(self) -> str:
        return self._store.place

    async def _ended(self, operation: str, call: Awaitable[T], timing: Timing | None = None) -> T:
        since_ms = self._clock.monotonic_ms()
        try:
            found = await call
        except tuple(_ERRORS) as error:
            self._stats.requests[operation, next(_ERRORS[kind] for kind in _ERRORS if isinstance(error, kind))] += 1
            raise
        self._stats.requests[operation, Ended.OK] += 1
        if timing is not None:
            timing.took((self._clock.monotonic_ms() - since_ms) / 1000)
        return found

    async def put(self, key: str, data: Buffer) -> None:
        await self._ended("put", self._store.put(key, data), self._stats.puts)
        self._stats.put_bytes += len(data)

    async def get(self, key: str, start: int, size_bytes: int) -> Buffer:
        data = await self._ended("get", self._store.get(key, start, size_bytes), self._stats.gets)
        self._stats.got_bytes += size_bytes
        return data

    async def size_bytes(self, key: str) -> int:
        return await self._ended("head", self._store.size_bytes(key))

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """Counted by object: each is a request of its own."""
        gone = await self._store.delete(keys)
        self._stats.requests["delete", Ended.OK] += len(gone)
        self._stats.requests["delete", Ended.UNAVAILABLE] += len(keys) - len(gone)
        return gone

    def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        self._stats.requests["list", Ended.OK] += 1
        return self._store.list(prefix)

    async def create_marker(self, key: str, data: bytes) -> bytes:
        return await self._ended("put", self._store.create_marker(key, data))

    async def read_marker(self, key: str) -> bytes | None:
        return await self._ended("get", self._store.read_marker(key))

    async def close(self) -> None:
        await self._store.close()
