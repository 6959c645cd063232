"""Whether something may have become due since the last look. Cheap, because it is called twice a second.

A replica is published when it becomes due, not at the next round: a segment was closed, the last stable offset or MTRO
has moved, a lag or a delete horizon has passed.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable

from sexton.compaction.due import Due, Leftovers, looks_different_ms
from sexton.ports.clock import Clock
from sexton.replication.local_replica import LocalReplica


class Lookout:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_at: dict[uuid.UUID, tuple[object, int]] = {}
        """By incarnation: the state that the last look was based on, and the time until which its result holds."""

    def looked(self, replica: LocalReplica, due: Due, leftovers: Leftovers | None) -> None:
        summaries, now_ms = replica.log.summaries(), self._clock.now_ms()
        until_ms = looks_different_ms(due, summaries, leftovers, now_ms, replica.config)
        self._looked_at[replica.coordination.watermarks.incarnation] = _based_on(replica), until_ms

    def has_news(self, replicas: Iterable[LocalReplica]) -> bool:
        now_ms = self._clock.now_ms()
        for replica in replicas:
            if not replica.config.compacts or replica.log.failure is not None:
                continue
            based_on, until_ms = self._looked_at.get(replica.coordination.watermarks.incarnation, (None, 0))
            if now_ms >= until_ms or based_on != _based_on(replica):
                return True
        return False

    def keep_only(self, logs: Collection[uuid.UUID]) -> None:
        self._looked_at = {log: one for log, one in self._looked_at.items() if log in logs}


def _based_on(replica: LocalReplica) -> object:
    watermarks = replica.coordination.watermarks
    active = replica.log.segments.active
    base_offset, is_empty = active.base_offset, active.size_bytes == 0
    reached = min(replica.last_stable_offset, base_offset)
    return base_offset, is_empty, reached, watermarks.compacted, watermarks.removable, replica.role, replica.config
