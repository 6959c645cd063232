"""What those who look after a cluster ask of its cloud topics: how much is there, what an object is for, whether all of
it is still there. Reads the metastore and the store; changes nothing but for a pin, which holds deletions back.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sexton.errors import DamagedObjectError, UnsupportedFormatError
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
from sexton.ports.object_names import ObjectName, is_claimed, object_id_time_ms
from sexton.ports.objects import ObjectMissingError, ObjectStore
from sexton.records.objects import Level, check_object
from sexton.types import PartitionId, Round

PAGE: Final = 1_000
AT_ONCE: Final = 16
"""Requests to the store in flight."""
PIN_ROUNDS: Final = 60
"""An hour of the default: longer than a check takes. It is given back at the end."""


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


@dataclass(slots=True)
class Found:
    """By a check. `lost` are objects that extents refer to and that are not there, or are not what they were."""

    objects_count: int = 0
    bytes_count: int = 0
    lost: list[tuple[ObjectId, str]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What is wrong with the map: offsets that no extent has, or two."""
    is_marked: bool = True
    """Whether the store says that it is this cluster's."""

    @property
    def is_right(self) -> bool:
        return not self.lost and not self.gaps and self.is_marked


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


async def check(metastore: Metastore, store: ObjectStore, cluster_id: uuid.UUID, *, is_deep: bool) -> Found:
    """Every live object is there with its size; deep: every byte is what its checksums say, and what the extents say
    of it is what its footer says."""
    found = Found()
    pin_id = uuid.uuid4()
    await metastore.pin(pin_id, "sexton cloud check", "what is being looked at stays", PIN_ROUNDS)
    try:
        found.is_marked = await is_claimed(store, cluster_id)
        await _check_maps(metastore, found)
        some: list[ObjectRow] = []
        async for row in objects_of(metastore, [ObjectState.LIVE]):
            some.append(row)
            if len(some) == AT_ONCE:
                await _check_some(metastore, store, cluster_id, some, found, is_deep)
                some = []
        await _check_some(metastore, store, cluster_id, some, found, is_deep)
    finally:
        await metastore.unpin(pin_id)
    return found


async def _check_maps(metastore: Metastore, found: Found) -> None:
    topics = await read_topics(metastore)
    for row in await metastore.read_cloud_partitions():
        if row.topic_id not in topics:
            continue  # deleted, and being purged
        name, expected = f"{topics[row.topic_id]}-{row.partition}", -1
        at = row.start_offset
        while page := await metastore.read_extents((row.topic_id, row.partition), at, PAGE):
            for extent in page.extents:
                if extent.base_offset != expected and expected >= 0:
                    found.gaps.append(f"{name}: extents end at {expected} and go on at {extent.base_offset}")
                expected = extent.end_offset
            if len(page.extents) < PAGE:
                if page.extents and expected != page.row.end_offset:
                    found.gaps.append(f"{name}: extents end at {expected}, the log at {page.row.end_offset}")
                break
            at = expected


async def _check_some(
    metastore: Metastore,
    store: ObjectStore,
    cluster_id: uuid.UUID,
    rows: Sequence[ObjectRow],
    found: Found,
    is_deep: bool,
) -> None:
    told = await asyncio.gather(*(_wrong(metastore, store, cluster_id, row, is_deep) for row in rows))
    for row, wrong in zip(rows, told, strict=True):
        found.objects_count += 1
        found.bytes_count += row.size_bytes
        if wrong is not None:
            found.lost.append((row.object_id, wrong))


async def _wrong(
    metastore: Metastore, store: ObjectStore, cluster_id: uuid.UUID, row: ObjectRow, is_deep: bool
) -> str | None:
    key = ObjectName(cluster_id, Level(int(row.level)), row.object_id).key
    try:
        size_bytes = await store.size_bytes(key)
        if size_bytes != row.size_bytes:
            return f"it has {size_bytes} bytes, not {row.size_bytes}"
        if not is_deep:
            return None
        footer = check_object(await store.get(key, 0, size_bytes), f"{store.place}/{key}")
    except ObjectMissingError:
        return "it is not there"
    except (DamagedObjectError, UnsupportedFormatError) as error:
        return str(error.what)
    runs = {(run.topic_id, run.partition, run.base_offset): run for run in footer.runs}
    for (topic_id, partition), extent in await metastore.find_references(row.object_id, PAGE):
        run = runs.get((topic_id, partition, extent.base_offset))
        if run is None or (run.end_offset, run.position, run.size_bytes) != (
            extent.end_offset,
            extent.position,
            extent.size_bytes,
        ):
            return f"its footer does not know offsets {extent.base_offset} to {extent.end_offset - 1} of {partition}"
    return None
