"""The metastore's port over SQL: every method is one operation, which a subclass executes (`run`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from sexton.adapters.metastore import migrations, operations, reading, work
from sexton.adapters.metastore.cloud import claiming, committing, moving, replacing, trimming
from sexton.adapters.metastore.cloud import objects as cloud_objects
from sexton.adapters.metastore.cloud import reading as cloud_reading
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import (
    Claimed,
    CloudPartitionRow,
    CollectionRow,
    Copied,
    Extent,
    ExtentsPage,
    Gather,
    Level,
    LeveledPartition,
    ObjectId,
    ObjectRow,
    ObjectsSum,
    ObjectState,
    Outcome,
    Owner,
    PinRow,
    Replacement,
    Run,
    StartAdvanced,
    WrittenObject,
)
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    Changes,
    ConfigRow,
    ConfigScope,
    ControllerRow,
    PartitionRow,
    TopicRow,
)
from sexton.ports.work_queue import CompactorRow, RunRow, WorkKey, WorkRow
from sexton.types import LeaderEpoch, PartitionId, Round

P = ParamSpec("P")
T = TypeVar("T")


class SqlMetastore:
    """Implements `sexton.ports.metastore.Metastore`."""

    async def run(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotImplementedError

    async def open_cluster(self, proposed: uuid.UUID) -> uuid.UUID:
        return await self.run(migrations.open_cluster, proposed)

    async def find_cluster(self) -> uuid.UUID:
        return await self.run(migrations.find_cluster)

    async def read_changes(self, after_revision: int) -> Changes:
        return await self.run(reading.read_changes, after_revision)

    async def read_broker(self, broker_id: int) -> BrokerRow | None:
        return await self.run(operations.read_broker, broker_id)

    async def read_leases(self) -> Mapping[int, tuple[int, int]]:
        return await self.run(operations.read_leases)

    async def register_broker(self, row: BrokerRow, replaces: BrokerRow | None) -> BrokerRow:
        return await self.run(operations.register_broker, row, replaces)

    async def renew_lease(self, broker_id: int, epoch: int) -> int:
        return await self.run(operations.renew_lease, broker_id, epoch)

    async def set_broker_status(self, broker_id: int, epoch: int, status: BrokerStatus) -> BrokerRow:
        return await self.run(operations.set_broker_status, broker_id, epoch, status)

    async def fence_broker(self, broker_id: int, epoch: int, renewals_count: int) -> None:
        await self.run(operations.fence_broker, broker_id, epoch, renewals_count)

    async def remove_broker(self, broker_id: int, epoch: int) -> None:
        await self.run(operations.remove_broker, broker_id, epoch)

    async def claim_controller(self, broker_id: int, broker_epoch: int, expected_term: int) -> ControllerRow:
        return await self.run(operations.claim_controller, broker_id, broker_epoch, expected_term)

    async def create_topic(
        self, topic: TopicRow, partitions: Sequence[PartitionRow], settings: Mapping[str, str]
    ) -> None:
        await self.run(operations.create_topic, topic, partitions, settings)

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        await self.run(operations.delete_topic, topic_id)

    async def add_partitions(
        self, topic_id: uuid.UUID, expected_count: int, partitions: Sequence[PartitionRow]
    ) -> None:
        await self.run(operations.add_partitions, topic_id, expected_count, partitions)

    async def update_partitions(
        self, rows: Sequence[PartitionRow], live: Mapping[int, int] | None = None
    ) -> Sequence[PartitionRow | None]:
        return await self.run(operations.update_partitions, rows, live)

    async def begin_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow, start_offset: int
    ) -> PartitionRow | None:
        return await self.run(moving.begin_move, broker_id, broker_epoch, row, start_offset)

    async def abandon_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow
    ) -> tuple[PartitionRow | None, bool]:
        return await self.run(moving.abandon_move, broker_id, broker_epoch, row)

    async def finish_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow, copied: Copied
    ) -> PartitionRow | None:
        return await self.run(moving.finish_move, broker_id, broker_epoch, row, copied)

    async def change_settings(
        self,
        scope: ConfigScope,
        name: str,
        changes: Mapping[str, str | None],
        expected: Mapping[str, str] | None = None,
    ) -> ConfigRow:
        return await self.run(operations.change_settings, scope, name, changes, expected)

    async def allocate_producer_ids(self, count: int) -> int:
        return await self.run(operations.allocate_producer_ids, count)

    async def publish_work(self, broker_id: int, broker_epoch: int, rows: Sequence[WorkRow]) -> None:
        await self.run(work.publish_work, broker_id, broker_epoch, rows)

    async def publish_cloud_work(self, rows: Sequence[WorkRow]) -> None:
        await self.run(work.publish_cloud_work, rows)

    async def request_cloud_work(self, rows: Sequence[WorkRow]) -> None:
        await self.run(work.request_cloud_work, rows)

    async def read_work(self) -> Sequence[WorkRow]:
        return await self.run(work.read_work)

    async def lease_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey]) -> Sequence[WorkKey]:
        return await self.run(work.lease_work, compactor_id, keys)

    async def end_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey], runs: Sequence[RunRow]) -> None:
        await self.run(work.end_work, compactor_id, keys, runs)

    async def register_compactor(self, row: CompactorRow) -> None:
        await self.run(work.register_compactor, row)

    async def renew_compactor(self, compactor_id: uuid.UUID) -> None:
        await self.run(work.renew_compactor, compactor_id)

    async def read_compactors(self) -> Sequence[CompactorRow]:
        return await self.run(work.read_compactors)

    async def remove_compactor(self, compactor_id: uuid.UUID, renewals_count: int) -> None:
        await self.run(work.remove_compactor, compactor_id, renewals_count)

    async def read_runs(self, limit: int, topic: str | None = None) -> Sequence[RunRow]:
        return await self.run(work.read_runs, limit, topic)

    async def register_objects(self, owner: Owner, level: Level, ids: Sequence[ObjectId]) -> None:
        await self.run(cloud_objects.register_objects, owner, level, ids)

    async def release_objects(self, owner: Owner, ids: Sequence[ObjectId]) -> None:
        await self.run(cloud_objects.release_objects, owner, ids)

    async def claim_partitions(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[tuple[PartitionId, LeaderEpoch]]
    ) -> Sequence[Claimed | Outcome]:
        return await self.run(claiming.claim_partitions, broker_id, broker_epoch, wanted)

    async def commit_l0(self, owner: Owner, gathers: Sequence[Gather], now_ms: int) -> Sequence[Sequence[Outcome]]:
        return await self.run(committing.commit_l0, owner, gathers, now_ms)

    async def commit_inline(self, owner: Owner, runs: Sequence[Run], now_ms: int) -> Sequence[Outcome]:
        return await self.run(committing.commit_inline, owner, runs, now_ms)

    async def read_extents(self, partition: PartitionId, from_offset: int, limit: int) -> ExtentsPage | None:
        return await self.run(cloud_reading.read_extents, partition, from_offset, limit)

    async def find_time(self, partition: PartitionId, timestamp_ms: int, from_offset: int = 0) -> Extent | None:
        return await self.run(cloud_reading.find_time, partition, timestamp_ms, from_offset)

    async def find_max_time(self, partition: PartitionId) -> Extent | None:
        return await self.run(cloud_reading.find_max_time, partition)

    async def advance_start(self, partition: PartitionId, writer_epoch: LeaderEpoch, offset: int) -> StartAdvanced:
        return await self.run(trimming.advance_start, partition, writer_epoch, offset)

    async def commit_level(
        self, owner: Owner, objects: Sequence[WrittenObject], partitions: Sequence[LeveledPartition], now_ms: int
    ) -> Sequence[Outcome]:
        return await self.run(replacing.commit_level, owner, objects, partitions, now_ms)

    async def commit_compactions(
        self, owner: Owner, objects: Sequence[WrittenObject], replacements: Sequence[Replacement], now_ms: int
    ) -> Sequence[Outcome]:
        return await self.run(replacing.commit_compactions, owner, objects, replacements, now_ms)

    async def expire_owners(self, limit: int) -> int:
        return await self.run(cloud_objects.expire_owners, limit)

    async def read_collection(self) -> CollectionRow:
        return await self.run(cloud_objects.read_collection)

    async def advance_round(self, seen: Round) -> Round:
        return await self.run(cloud_objects.advance_round, seen)

    async def collect(self, grace_rounds: int, limit: int) -> Sequence[ObjectRow]:
        return await self.run(cloud_objects.collect, grace_rounds, limit)

    async def forget_objects(self, ids: Sequence[ObjectId]) -> None:
        await self.run(cloud_objects.forget_objects, ids)

    async def find_unknown(self, ids: Sequence[ObjectId]) -> Sequence[ObjectId]:
        return await self.run(cloud_objects.find_unknown, ids)

    async def note_scrub(self, round: Round, now_ms: int) -> None:
        await self.run(cloud_objects.note_scrub, round, now_ms)

    async def pin(self, pin_id: uuid.UUID, owner: str, what: str, rounds: int) -> PinRow:
        return await self.run(cloud_objects.pin, pin_id, owner, what, rounds)

    async def renew_pin(self, pin_id: uuid.UUID, rounds: int) -> PinRow:
        return await self.run(cloud_objects.renew_pin, pin_id, rounds)

    async def unpin(self, pin_id: uuid.UUID) -> None:
        await self.run(cloud_objects.unpin, pin_id)

    async def read_pins(self) -> Sequence[PinRow]:
        return await self.run(cloud_objects.read_pins)

    async def find_purgeable(self, limit: int) -> Sequence[uuid.UUID]:
        return await self.run(trimming.find_purgeable, limit)

    async def purge_topic(self, topic_id: uuid.UUID, limit: int) -> bool:
        return await self.run(trimming.purge_topic, topic_id, limit)

    async def read_objects(
        self, states: Sequence[ObjectState], after: ObjectId | None, limit: int
    ) -> Sequence[ObjectRow]:
        return await self.run(cloud_objects.read_objects, states, after, limit)

    async def read_object(self, object_id: ObjectId) -> ObjectRow | None:
        return await self.run(cloud_objects.read_object, object_id)

    async def sum_objects(self) -> Sequence[ObjectsSum]:
        return await self.run(cloud_objects.sum_objects)

    async def find_references(self, object_id: ObjectId, limit: int) -> Sequence[tuple[PartitionId, Extent]]:
        return await self.run(cloud_reading.find_references, object_id, limit)

    async def read_cloud_partitions(self) -> Sequence[CloudPartitionRow]:
        return await self.run(cloud_reading.read_cloud_partitions)

    async def close(self) -> None:
        raise NotImplementedError
