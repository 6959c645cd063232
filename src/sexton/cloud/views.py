"""How old what a leader knows of L1 is.

It was not the leader who leveled and compacted: it learns of it as of all changes, by asking the metastore what
changed, for all its partitions at once. A map of L1 that is older than `cloud.view.age.max.ms` is not used (C8): what
it names may have been compacted since, and a tombstone may have gone that an old value needs. No delete horizon is
shorter than twice that.
"""

from __future__ import annotations

from sexton.ports.clock import Clock


class Views:
    def __init__(self, clock: Clock, age_max_ms: int) -> None:
        self._clock = clock
        self._age_max_ms = age_max_ms
        self._as_of_ms = clock.monotonic_ms()

    def note(self, asked_ms: int) -> None:
        """An answer is at least as new as the question was."""
        self._as_of_ms = max(self._as_of_ms, asked_ms)

    def is_fresh(self, as_of_ms: int) -> bool:
        """Of a partition that was claimed at that time."""
        return self._clock.monotonic_ms() - max(self._as_of_ms, as_of_ms) <= self._age_max_ms
