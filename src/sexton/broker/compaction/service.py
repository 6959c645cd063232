"""A broker's part in compaction: its loop, and its parts.

| part         |                                                                                |
|--------------|--------------------------------------------------------------------------------|
| `publisher`  | which replicas are due, published for compactors                               |
| `plans`      | what a compactor gets when it asks, and the commit of what it hands back       |
| `memory`     | what is remembered of compactions: what was left, what failed, how many bytes  |
| `compactors` | how many compactors are alive                                                  |
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sexton.broker.compaction.compactors import LiveCompactors
from sexton.broker.compaction.memory import Memory
from sexton.broker.compaction.plans import Plans
from sexton.broker.compaction.publish import Publisher
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import Metastore
from sexton.replication.replicas import Replicas
from sexton.supervision import Supervisor


class CompactionService:
    def __init__(
        self,
        replicas: Replicas,
        disk: Disk,
        clock: Clock,
        metastore: Metastore,
        identity: Callable[[], tuple[int, int]],
        rng: random.Random,
        adopts: Callable[[], bool] = lambda: False,
        supervisor: Supervisor | None = None,
        can_renew: Callable[[], bool] = lambda: True,
    ) -> None:
        """`adopts` returns whether followers adopt their leader's compactions, `can_renew` whether the broker's lease
        is valid."""
        self._replicas = replicas
        self._identity = identity
        self.memory = Memory(disk, clock)
        self.publisher = Publisher(
            self.memory, replicas, clock, metastore, identity, adopts, supervisor or Supervisor()
        )
        self.plans = Plans(self.memory, self.publisher, replicas, disk, clock, identity, rng)
        self.compactors = LiveCompactors(metastore, clock, can_renew)

    @property
    def broker_id(self) -> int:
        return self._identity()[0]

    @property
    def broker_epoch(self) -> int:
        return self._identity()[1]

    async def look(self) -> None:
        """Publishes what is due, after plans that can never be committed are out of the way."""
        self.plans.collect()
        self.memory.prune(self._replicas.all())
        await self.publisher.look()
        await self.compactors.look()

    async def request(self, topic: str, partition: int | None) -> list[int]:
        """Requests a compaction of everything now, the active segment included. Returns the topic's partitions on this
        broker."""
        partitions = self.publisher.request(topic, partition)
        await self.look()
        return partitions
