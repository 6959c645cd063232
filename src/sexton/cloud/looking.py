"""What those who look after a cluster ask of its cloud topics: how much is there, and what an object is for. Reads the
metastore and the store, and changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.cloud.collector import CollectorSettings
from sexton.ports.cloud import (
    CLOUD,
    STORAGE_MODE,
    CloudPartitionRow,
    Extent,
    ObjectId,
    ObjectRow,
    ObjectsSum,
    ObjectState,
    PinRow,
)
from sexton.ports.metastore import ConfigScope, Metastore, Storage
from sexton.ports.object_names import ObjectName, object_id_time_ms
from sexton.ports.objects import ObjectMissingError, ObjectStore
from sexton.records.objects import Level
from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.layers import CLUSTER_DEFAULT
from sexton.types import PartitionId, Round

PAGE: Final = 1_000
DEFAULT_GRACE: Final = CollectorSettings(round_ms=60_000, delay_ms=900_000)


@dataclass(frozen=True, slots=True)
class Status:
    sums: Sequence[ObjectsSum]
    partitions: Sequence[CloudPartitionRow]
    round: Round
    pins: Sequence[PinRow]
    """What holds deletions back."""
    topics: Mapping[uuid.UUID, str]
    storage: Mapping[PartitionId, Storage]
    """Of the partitions of topics that are in the store, or on their way there."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one object, as `sexton cloud` prints it."""

    object_id: ObjectId
    row: ObjectRow | None
    made_ms: int
    references: Sequence[tuple[PartitionId, Extent]]
    round: Round
    size_bytes: int | None
    """Size in the store; None if the object is not there."""
    topics: Mapping[uuid.UUID, str]
    pins: Sequence[PinRow] = ()
    grace: CollectorSettings = DEFAULT_GRACE
    """By what is set for all brokers at run time; what one has in its file is not known here."""

    @property
    def why(self) -> str:
        if self.row is None:
            if self.size_bytes is None:
                return "unknown: it was deleted, or never existed"
            return "unknown, and in the store: it was put again after it had been deleted. Nothing refers to it"
        if self.row.state is ObjectState.PENDING:
            put = "not put yet" if self.size_bytes is None else "put, and not committed yet"
            return f"registered by {self._owner}, {put}. It becomes garbage when that registration ends"
        if self.row.state is ObjectState.LIVE:
            lost = "" if self.size_bytes is not None else ". IT IS NOT IN THE STORE: what refers to it is lost"
            return f"{self.row.refs_count} extents refer to it{lost}"
        since, now = self.row.round, self.round
        return f"nothing refers to it since round {since}, and this is round {now}: {self._goes}"

    @property
    def _goes(self) -> str:
        """When the bytes of a garbage object are deleted."""
        assert self.row is not None
        oldest = min(self.pins, key=lambda pin: pin.round, default=None)
        if oldest is not None and oldest.round <= self.row.round:
            return f"it stays for {oldest.owner} ({oldest.what}), until round {oldest.until_round} at the longest"
        left = self.row.round + self.grace.grace_rounds - self.round
        if left <= 0:
            return "the controller deletes it with its next step, if the store answers"
        due = f"in {left} rounds of cloud.gc.round.ms, about {left * self.grace.round_ms / 60_000:.1f} minutes"
        return f"it goes {due} (cloud.delete.delay.ms has passed by then)"

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
        sums=await metastore.sum_objects(),
        partitions=await metastore.read_cloud_partitions(),
        round=(await metastore.read_collection()).round,
        pins=await metastore.read_pins(),
        topics=topics,
        storage={
            (row.topic_id, row.partition): row.storage for row in known.partitions if topics[row.topic_id] in in_cloud
        },
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
        pins=await metastore.read_pins(),
        grace=await _grace(metastore),
    )


async def _grace(metastore: Metastore) -> CollectorSettings:
    known = (await metastore.read_changes(0)).configs
    common = (one.settings for one in known if (one.scope, one.name) == (ConfigScope.BROKER, CLUSTER_DEFAULT))
    settings = next(common, {})

    def value(name: str, default: int) -> int:
        return int(BROKER_SETTINGS[name].parse(settings[name])) if name in settings else default

    return CollectorSettings(
        value("cloud.gc.round.ms", DEFAULT_GRACE.round_ms), value("cloud.delete.delay.ms", DEFAULT_GRACE.delay_ms)
    )


async def objects_of(metastore: Metastore, states: Sequence[ObjectState]) -> AsyncIterator[ObjectRow]:
    after: ObjectId | None = None
    while rows := await metastore.read_objects(states, after, PAGE):
        for row in rows:
            yield row
        after = rows[-1].object_id
