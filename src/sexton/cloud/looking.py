"""What those who look after a cluster ask of its cloud topics: how much is there, and what an object is for. Reads the
metastore and the store, and changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.ports.cloud import (
    CLOUD,
    STORAGE_MODE,
    CloudPartitionRow,
    Extent,
    ObjectId,
    ObjectRow,
    ObjectsSum,
    ObjectState,
)
from sexton.ports.metastore import ConfigScope, Metastore, Storage
from sexton.ports.object_names import ObjectName, object_id_time_ms
from sexton.ports.objects import ObjectMissingError, ObjectStore
from sexton.records.objects import Level
from sexton.types import PartitionId, Round

PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Status:
    sums: Sequence[ObjectsSum]
    partitions: Sequence[CloudPartitionRow]
    round: Round
    topics: Mapping[uuid.UUID, str]
    storage: Mapping[PartitionId, Storage]
    """Of the partitions of topics that are in the store, or on their way there."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of one object."""

    object_id: ObjectId
    row: ObjectRow | None
    made_ms: int
    references: Sequence[tuple[PartitionId, Extent]]
    round: Round
    size_bytes: int | None
    """In the store; None if it is not there."""
    topics: Mapping[uuid.UUID, str]

    @property
    def why(self) -> str:
        if self.row is None:
            if self.size_bytes is None:
                return "nobody knows it: it was deleted, or never was"
            return "nobody knows it, and it is in the store: it was put after it had been deleted. Nothing refers to it"
        if self.row.state is ObjectState.PENDING:
            put = "not put yet" if self.size_bytes is None else "put, and not committed yet"
            return f"registered by {self._owner}, {put}. It becomes garbage when that registration ends"
        if self.row.state is ObjectState.LIVE:
            lost = "" if self.size_bytes is not None else ". IT IS NOT IN THE STORE: what refers to it is lost"
            return f"{self.row.refs_count} extents refer to it{lost}"
        return (
            f"nothing refers to it since round {self.row.round}, and this is round {self.round}: it goes after "
            "cloud.delete.delay.ms, counted in rounds"
        )

    @property
    def _owner(self) -> str:
        assert self.row is not None
        owner = self.row.owner
        return f"{owner.kind.name.lower()} {owner.id}, registration {owner.epoch}"


async def read_status(metastore: Metastore) -> Status:
    known = await metastore.read_changes(0)
    in_cloud = {
        one.name for one in known.configs if one.scope is ConfigScope.TOPIC and one.settings.get(STORAGE_MODE) == CLOUD
    }
    topics = {topic.topic_id: topic.name for topic in known.topics}
    return Status(
        await metastore.sum_objects(),
        await metastore.read_cloud_partitions(),
        (await metastore.read_collection()).round,
        topics,
        {(row.topic_id, row.partition): row.storage for row in known.partitions if topics[row.topic_id] in in_cloud},
    )


async def read_topics(metastore: Metastore) -> dict[uuid.UUID, str]:
    return {topic.topic_id: topic.name for topic in (await metastore.read_changes(0)).topics}


async def explain(metastore: Metastore, store: ObjectStore, cluster_id: uuid.UUID, object_id: ObjectId) -> Explanation:
    row = await metastore.read_object(object_id)
    size_bytes = None
    for level in Level if row is None else (Level(int(row.level)),):
        try:
            size_bytes = await store.size_bytes(ObjectName(cluster_id, level, object_id).key)
        except ObjectMissingError:
            continue
    return Explanation(
        object_id=object_id,
        row=row,
        made_ms=object_id_time_ms(object_id),
        references=await metastore.find_references(object_id, PAGE),
        round=(await metastore.read_collection()).round,
        size_bytes=size_bytes,
        topics=await read_topics(metastore),
    )


async def objects_of(metastore: Metastore, states: Sequence[ObjectState]) -> AsyncIterator[ObjectRow]:
    after: ObjectId | None = None
    while rows := await metastore.read_objects(states, after, PAGE):
        for row in rows:
            yield row
        after = rows[-1].object_id
