"""What a broker remembers of its replicas' compactions. All but the leftovers is in memory only."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sexton.broker.compaction.leftovers import KeptLeftovers
from sexton.broker.compaction.patience import Patience
from sexton.broker.compaction.uncleanable import UncleanableReplicas
from sexton.compaction.contract import Committed
from sexton.compaction.due import Leftovers
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.replication.local_replica import LocalReplica
from sexton.types import PartitionId


@dataclass(slots=True)
class Totals:
    """Counts since this broker process started."""

    committed_count: int = 0
    adopted_count: int = 0
    refused_count: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCompaction:
    """The last compaction of a replica that this process has seen committed."""

    log: uuid.UUID
    """Incarnation of the log."""
    number: int = 0
    """Its number among all compactions that this process has seen committed."""
    made_ms: int = 0
    """When it was planned, by the clock of the broker that made it."""
    how: str = ""
    """"compacted", or the broker from which it was adopted."""
    finished_ms: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_saved: int = 0
    """Bytes saved by all compactions of the replica since this broker process started."""


class Memory:
    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._clock = clock
        self.totals = Totals()
        self.count = 0
        """Number of compactions that this process has seen committed."""
        self.leftovers = KeptLeftovers(disk)
        self.uncleanable = UncleanableReplicas()
        self.patience = Patience()
        self.requested: dict[PartitionId, None] = {}
        """Partitions whose compaction an operator has requested."""
        self.due_since_ms: dict[PartitionId, int] = {}
        self.held_back_since_ms: dict[PartitionId, int] = {}
        """Since when, as far as this leader has looked, some replica has kept MTRO or MXRO from rising."""
        self._last: dict[PartitionId, LastCompaction] = {}

    def last(self, replica: LocalReplica) -> LastCompaction | None:
        """Of the partition here, perhaps of a former log."""
        return self._last.get((replica.topic_id, replica.partition))

    def last_of_log(self, replica: LocalReplica) -> LastCompaction:
        log, found = replica.coordination.watermarks.incarnation, self.last(replica)
        return found if found is not None and found.log == log else LastCompaction(log=log)

    async def keep(self, replica: LocalReplica, bound: int, leftovers: Leftovers | None) -> None:
        """Records a compaction that has just been swapped in, own or adopted. Nothing else is swapped in before this
        ends: a compaction that went less far would end up below an MCCO that is about to be written."""
        await self.leftovers.keep(replica, leftovers, self._clock.now_ms())
        await replica.coordination.committed(bound)

    def compacted(self, replica: LocalReplica, made_ms: int, how: str, committed: Committed) -> None:
        """Called after a compaction was committed, own or adopted, and kept."""
        key, log = (replica.topic_id, replica.partition), replica.coordination.watermarks.incarnation
        before = self._last.get(key)
        self.count += 1
        self._last[key] = LastCompaction(
            log=log,
            number=self.count,
            made_ms=made_ms,
            how=how,
            finished_ms=self._clock.now_ms(),
            bytes_before=committed.bytes_before,
            bytes_after=committed.bytes_after,
            bytes_saved=committed.bytes_before - committed.bytes_after + (before.bytes_saved if before else 0),
        )
        totals = self.totals
        totals.bytes_before += committed.bytes_before
        totals.bytes_after += committed.bytes_after
        self.uncleanable.succeeded(log)
        self.no_longer_wanted(key)

    def no_longer_wanted(self, key: PartitionId) -> None:
        """It was compacted, or cannot be."""
        self.requested.pop(key, None)
        self.no_longer_due(key)

    def no_longer_due(self, key: PartitionId) -> None:
        self.due_since_ms.pop(key, None)
        self.patience.forget(key)

    def prune(self, replicas: Sequence[LocalReplica]) -> None:
        """Topics are deleted and replicas move: drops what is remembered of others than these."""
        logs = {one.coordination.watermarks.incarnation for one in replicas}
        keys = {(one.topic_id, one.partition) for one in replicas}
        self.uncleanable.keep_only(logs)
        self.leftovers.keep_only(logs)
        for by_key in (self._last, self.requested, self.due_since_ms, self.held_back_since_ms):
            for key in by_key.keys() - keys:
                del by_key[key]
        self.patience.keep_only(keys)
