"""A cluster with cloud topics for tests: two brokers, a compactor, and a look at all tables after every operation."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sexton.adapters.metastore.cloud.checks import CloudTables, read_tables, step_violations, violations
from sexton.adapters.metastore.store import SqlMetastore
from sexton.ports.cloud import (
    CLOUD,
    STORAGE_MODE,
    AbortedRow,
    Claimed,
    CloudPartitionRow,
    Extent,
    Gather,
    Level,
    LeveledPartition,
    ObjectId,
    ObjectState,
    Outcome,
    Owner,
    Replacement,
    Run,
    WrittenObject,
    hash_of_settings,
)
from sexton.ports.metastore import Metastore, Storage, TopicRow
from sexton.ports.work_queue import CompactorRow
from sexton.types import CompactionEpoch, LeaderEpoch, PartitionId, ProducerId
from tests.adapters.metastore.rows import broker, partitions, topic

NOW_MS = 1_000_000
RUN_BYTES = 100
COMPACTOR = uuid.UUID(int=0xCC)
SETTINGS = {STORAGE_MODE: CLOUD}
TOPIC = topic("orders", 7)
A: PartitionId = (TOPIC.topic_id, 0)
B: PartitionId = (TOPIC.topic_id, 1)
ACCEPTED, FENCED, GONE = Outcome.ACCEPTED, Outcome.FENCED, Outcome.GONE
MISPLACED, LOST, SKIPPED = Outcome.MISPLACED, Outcome.LOST, Outcome.SKIPPED


def run(
    key: PartitionId, base: int, end: int, *, epoch: int = 1, position: int = 0, stable: int | None = None, **more: Any
) -> Run:
    return Run(
        topic_id=key[0],
        partition=key[1],
        writer_epoch=LeaderEpoch(epoch),
        base_offset=base,
        end_offset=end,
        position=position,
        size_bytes=more.pop("size_bytes", RUN_BYTES),
        first_timestamp_ms=more.pop("first_timestamp_ms", base * 10),
        max_timestamp_ms=more.pop("max_timestamp_ms", end * 10),
        records_count=end - base,
        stable_offset=end if stable is None else stable,
        **more,
    )


def marker(key: PartitionId, base: int, *, epoch: int = 1, **more: Any) -> Run:
    data = b"marker at %d" % base
    return run(key, base, base + 1, epoch=epoch, inline=data, size_bytes=len(data), **more)


def gather(object_id: ObjectId | None, *runs: Run, released: Sequence[ObjectId] = ()) -> Gather:
    """Runs one after the other in the object, as they come."""
    placed = [replace(one, position=number * RUN_BYTES) for number, one in enumerate(runs)]
    return Gather(object_id=object_id, size_bytes=len(runs) * RUN_BYTES, runs=placed, released=released)


def l1(base: int, end: int, object_id: ObjectId, *, position: int = 0, size_bytes: int = 50) -> Extent:
    return Extent(base, end, Level.L1, object_id, position, size_bytes, base * 10, end * 10, end - base)


def leveled(key: PartitionId, *extents: Extent) -> LeveledPartition:
    base, end = extents[0].base_offset, extents[-1].end_offset
    return LeveledPartition(topic_id=key[0], partition=key[1], base_offset=base, end_offset=end, extents=extents)


def aborts(marker_offset: int, first_offset: int, producer_id: int = 5) -> AbortedRow:
    return AbortedRow(ProducerId(producer_id), first_offset, marker_offset, marker_offset + 1)


class World:
    """Every operation through `do` is followed by a look at the tables, before and after."""

    def __init__(self, store: Metastore) -> None:
        assert isinstance(store, SqlMetastore)
        self.store = store
        self._made_count = 0
        self.brokers: dict[int, Owner] = {}
        self.compactor = Owner.compactor(COMPACTOR)
        self._seen: CloudTables | None = None
        self._gone: set[ObjectId] = set()

    async def start(self, partitions_count: int = 2) -> World:
        for broker_id in (1, 2):
            await self.register(broker_id)
        await self.store.register_compactor(CompactorRow(COMPACTOR, "c", 15_000, 0))
        await self.make_topic(TOPIC, partitions_count)
        await self.check()
        return self

    async def register(self, broker_id: int) -> Owner:
        """Anew: an earlier registration of the broker is replaced."""
        row = await self.store.register_broker(broker(broker_id), await self.store.read_broker(broker_id))
        self.brokers[broker_id] = Owner.broker(broker_id, row.epoch)
        return self.brokers[broker_id]

    async def fence(self, broker_id: int) -> None:
        await self.store.fence_broker(broker_id, self.brokers[broker_id].epoch, 0)

    async def make_topic(self, row: TopicRow, partitions_count: int) -> None:
        await self.store.create_topic(row, partitions(row, partitions_count, storage=Storage.CLOUD), SETTINGS)

    async def do(self, operation: str, *arguments: Any) -> Any:
        result = await getattr(self.store, operation)(*arguments)
        await self.check()
        return result

    async def check(self) -> CloudTables:
        tables = await self.store.run(read_tables)
        assert list(violations(tables)) == []
        if self._seen is not None:
            assert list(step_violations(self._seen, tables)) == []
            assert not self._gone & tables.objects.keys(), "C1: an id was used again"
            self._gone |= self._seen.objects.keys() - tables.objects.keys()
        self._seen = tables
        return tables

    # What is there

    async def row(self, key: PartitionId = A) -> CloudPartitionRow:
        return (await self.check()).partitions[key]

    async def extents(self, key: PartitionId = A) -> list[tuple[int, int, str]]:
        found = (await self.check()).extents.get(key, ())
        return [(extent.base_offset, extent.end_offset, extent.level.name) for extent in found]

    async def state(self, object_id: ObjectId) -> ObjectState | None:
        row = (await self.check()).objects.get(object_id)
        return None if row is None else row.state

    # What happens often

    def id(self) -> ObjectId:
        self._made_count += 1
        return uuid.UUID(int=self._made_count)

    async def pending(self, owner: Owner | None = None, level: Level = Level.L0) -> ObjectId:
        object_id = self.id()
        await self.do("register_objects", owner or self.brokers[1], level, [object_id])
        return object_id

    async def claim(self, broker_id: int, epoch: int, *keys: PartitionId) -> list[Claimed | Outcome]:
        wanted = [(key, LeaderEpoch(epoch)) for key in keys or (A, B)]
        claimed: list[Claimed | Outcome] = await self.do(
            "claim_partitions", broker_id, self.brokers[broker_id].epoch, wanted
        )
        return claimed

    async def commit(self, *gathers: Gather, broker_id: int = 1) -> list[list[Outcome]]:
        told: list[list[Outcome]] = await self.do("commit_l0", self.brokers[broker_id], gathers, NOW_MS)
        return told

    async def write(self, key: PartitionId, base: int, end: int, *, broker_id: int = 1, **more: Any) -> ObjectId:
        object_id = await self.pending(self.brokers[broker_id])
        assert await self.commit(gather(object_id, run(key, base, end, **more)), broker_id=broker_id) == [[ACCEPTED]]
        return object_id

    async def level(self, *parts: LeveledPartition) -> list[Outcome]:
        told: list[Outcome] = await self.do("commit_level", self.compactor, objects_of(*parts), parts, NOW_MS)
        return told

    async def leveled_to(self, key: PartitionId, base: int, *ends: int) -> list[ObjectId]:
        """L1 with an extent, and an object of its own, up to each end."""
        ids = [await self.pending(self.compactor, Level.L1) for _ in ends]
        bases = [base, *ends]
        parts = [l1(*span, id_) for span, id_ in zip(zip(bases, ends, strict=False), ids, strict=True)]
        assert await self.level(leveled(key, *parts)) == [ACCEPTED]
        return ids

    async def replace(self, key: PartitionId, inputs: Sequence[Extent], *outputs: Extent, **more: Any) -> Outcome:
        change = await self.replacement(key, inputs, *outputs, **more)
        sizes = {extent.object_id: 0 for extent in outputs if extent.object_id is not None}
        for extent in outputs:
            assert extent.object_id is not None
            sizes[extent.object_id] = max(sizes[extent.object_id], extent.position + extent.size_bytes)
        written = [WrittenObject(*item) for item in sizes.items()]
        return await self.commit_replacement(written, change)

    async def commit_replacement(self, written: Sequence[WrittenObject], change: Replacement) -> Outcome:
        told: list[Outcome] = await self.do("commit_compactions", self.compactor, written, [change], NOW_MS)
        return told[0]

    async def replacement(
        self, key: PartitionId, inputs: Sequence[Extent], *outputs: Extent, bound: int | None = None, **more: Any
    ) -> Replacement:
        epoch = more.pop("epoch", None)
        if epoch is None:
            epoch = (await self.row(key)).compaction_epoch
        return Replacement(
            topic_id=key[0],
            partition=key[1],
            compaction_epoch=CompactionEpoch(epoch),
            settings_hash=more.pop("settings_hash", hash_of_settings(SETTINGS)),
            inputs=inputs,
            outputs=outputs,
            bound=outputs[-1].end_offset if bound is None else bound,
            horizon_ms=more.pop("horizon_ms", 0),
        )

    async def l1_of(self, key: PartitionId) -> list[Extent]:
        return [extent for extent in (await self.check()).extents.get(key, ()) if extent.level is Level.L1]


def objects_of(*parts: LeveledPartition) -> list[WrittenObject]:
    sizes: dict[ObjectId, int] = {}
    for part in parts:
        for extent in part.extents:
            assert extent.object_id is not None
            sizes[extent.object_id] = max(sizes.get(extent.object_id, 0), extent.position + extent.size_bytes)
    return [WrittenObject(*item) for item in sizes.items()]
