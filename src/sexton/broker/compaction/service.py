"""A broker's part in compaction: its loop, and its parts.

| part         |                                                                                |
|--------------|--------------------------------------------------------------------------------|
| `publisher`  | which replicas are due, published for compactors                               |
| `plans`      | what a compactor gets when it asks, and the commit of what it hands back       |
| `memory`     | what is remembered of compactions: what was left, what failed, how many bytes  |
| `compactors` | how many compactors are alive                                                  |
"""

from __future__ import annotations

from sexton.broker.compaction.compactors import LiveCompactors
from sexton.broker.compaction.host import Host
from sexton.broker.compaction.memory import Memory
from sexton.broker.compaction.plans import Plans
from sexton.broker.compaction.publish import Publisher


class CompactionService:
    def __init__(
        self,
        host: Host,
    ) -> None:
        self._host = host
        self.memory = Memory(host.disk, host.clock)
        self.publisher = Publisher(self.memory, host)
        self.plans = Plans(self.memory, self.publisher, host)
        self.compactors = LiveCompactors(host.metastore, host.clock, host.lease_is_valid)

    @property
    def broker_id(self) -> int:
        return self._host.identity[0]

    @property
    def broker_epoch(self) -> int:
        return self._host.identity[1]

    async def look(self) -> None:
        """Publishes what is due, after plans that can never be committed are out of the way."""
        self.plans.collect()
        self.memory.prune(self._host.replicas.all())
        await self.publisher.look()
        await self.compactors.look()

    async def request(self, topic: str, partition: int | None) -> list[int]:
        """Requests a compaction of everything now, the active segment included. Returns the topic's partitions on this
        broker."""
        partitions = self.publisher.request(topic, partition)
        await self.look()
        return partitions
