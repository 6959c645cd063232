"""Limits the replication traffic, in bytes per second, of replicas outside the ISR, so that reassignments leave room
for clients (KIP-73).

Kafka's configs and meanings: a topic lists its throttled replicas (`leader.replication.throttled.replicas`,
`follower.replication.throttled.replicas`; partition:broker, or *), brokers set the rates. A leader that has used up its
rate sends nothing to a throttled follower until there is room again; a follower that has used up its rate sends no
fetches for throttled partitions. In-sync replicas are never delayed: `acks=all` waits for them.

The rate is a token bucket that holds one second's worth of bytes. A send may exceed what is left, because batches are
sent whole; the bucket then goes negative, so that the rate holds over time whatever the size of batches.

Deviation from Kafka: traffic to in-sync replicas does not count against the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from sexton.ports.clock import Clock

BURST_S: Final = 1
EVERY_REPLICA: Final = "*"

PAUSE_MS: Final = (20, 500)
"""Shortest and longest pause. The longest is short enough to notice soon that the rate was raised."""


def is_throttled(replicas: Collection[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names this one."""
    return bool(replicas) and (EVERY_REPLICA in replicas or f"{partition}:{broker_id}" in replicas)


class Throttle:
    """The throttle of one direction (sending as leader or receiving as follower), shared by all partitions of a
    broker."""

    def __init__(self, bytes_per_second: Callable[[], int], clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._left_bytes: float = self._most
        self._filled_ms = clock.monotonic_ms()

    @property
    def _most(self) -> int:
        return self._bytes_per_second() * BURST_S

    def allowed_bytes(self) -> int:
        """Bytes that may be sent now; 0 if none."""
        now_ms = self._clock.monotonic_ms()
        gained = (now_ms - self._filled_ms) * self._bytes_per_second() / 1000
        self._left_bytes = min(self._most, self._left_bytes + gained)
        self._filled_ms = now_ms
        return max(0, int(self._left_bytes))

    def count(self, size_bytes: int) -> None:
        self.allowed_bytes()
        self._left_bytes -= size_bytes

    def pause_ms(self) -> int:
        """Milliseconds until something may be sent; 0 if that is now."""
        if self.allowed_bytes():
            return 0
        shortest, longest = PAUSE_MS
        rate = self._bytes_per_second()
        return longest if rate == 0 else max(shortest, min(longest, int((1 - self._left_bytes) * 1000 / rate)))


class Throttles(NamedTuple):
    """A broker's throttles, as leader and as follower."""

    leader: Throttle | None
    follower: Throttle | None


UNTHROTTLED: Final = Throttles(None, None)
