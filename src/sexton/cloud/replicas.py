"""The cloud partitions that a broker leads or may lead."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence

from sexton.cloud.host import CloudHost, CloudSettings
from sexton.cloud.replica import CloudParts, CloudReplica
from sexton.errors import SextonError
from sexton.ports.cloud import CloudPartitionRow
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import KafkaError
from sexton.types import PartitionId, TopicPartition

logger = logging.getLogger(__name__)


class CloudReplicas:
    def __init__(self, host: CloudHost, settings: CloudSettings) -> None:
        self._host = host
        self.parts = CloudParts.make(host, settings)
        self._by_key: dict[PartitionId, CloudReplica] = {}
        self._by_name: dict[TopicPartition, CloudReplica] = {}

    def get(self, topic: str, partition: int) -> CloudReplica | None:
        return self._by_name.get((topic, partition))

    @property
    def refusal(self) -> SextonError | None:
        """Why this broker cannot use the store, as far as is known."""
        return self._host.store_refusal

    def all(self) -> list[CloudReplica]:
        return list(self._by_key.values())

    def keys(self) -> list[PartitionId]:
        return list(self._by_key)

    def apply(self, rows: Iterable[tuple[str, PartitionRow]]) -> None:
        """Rows of partitions that name this broker, with their topics' names."""
        for topic, row in rows:
            key = row.topic_id, row.partition
            replica = self._by_key.get(key)
            if replica is None:
                replica = CloudReplica(topic, row, self.parts)
                self._by_key[key] = self._by_name[topic, row.partition] = replica
            replica.take(row)

    def remove(self, keys: Iterable[PartitionId]) -> None:
        for key in keys:
            replica = self._by_key.pop(key, None)
            if replica is not None:
                replica.resign()
                if self._by_name.get((replica.topic, replica.partition)) is replica:
                    del self._by_name[replica.topic, replica.partition]

    def remove_topics(self, topic_ids: Sequence[uuid.UUID]) -> None:
        self.remove([key for key in self._by_key if key[0] in topic_ids])
        for key in [key for key in self.parts.led if key[0] in topic_ids]:
            del self.parts.led[key]

    def stranded(self) -> list[PartitionId]:
        """Partitions that this broker should lead, in an epoch in which it cannot."""
        return [key for key, replica in self._by_key.items() if replica.is_stranded]

    def reconfigure(self, topic: str) -> None:
        for replica in self._by_key.values():
            if replica.topic == topic:
                replica.reconfigure(self._host.topic_config(topic))

    def note_leveled(self, asked_ms: int, rows: Iterable[CloudPartitionRow]) -> None:
        """What the metastore answered, who was asked at that time: what was leveled, compacted and trimmed (C8)."""
        for row in rows:
            replica = self._by_key.get((row.topic_id, row.partition))
            if replica is not None:
                replica.note_leveled(row)
        self.parts.views.note(asked_ms)

    async def run_retention(self, now_ms: int) -> None:
        for replica in self.all():
            try:
                await replica.retain(now_ms)
            except KafkaError as error:
                logger.info("%r: retention waits: %s", replica, error.message)
            except Exception as bug:
                self._host.supervisor.survived(bug, "retention", replica)

    async def stop(self) -> None:
        """What is not committed by now is dropped. Clients were told nothing, and send it to the next leader."""
        await self.parts.claims.stop()
        self.remove(self.keys())
        await self.parts.uploads.stop()
        await self.parts.cache.stop()
        await self._host.objects.close()

    def check_invariants(self) -> None:
        for replica in self.all():
            replica.check_invariants()
        self.parts.uploads.check_invariants()
        self.parts.cache.check_invariants()
