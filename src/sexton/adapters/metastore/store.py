"""The metastore's port over SQL: every method is one operation, which a subclass executes (`run`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from sexton.adapters.metastore import migrations, operations, reading, work
from sexton.adapters.metastore.session import Session
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

P = ParamSpec("P")
T = TypeVar("T")


class SqlMetastore:
    """Implements `sexton.ports.metastore.Metastore`."""

    async def run(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotImplementedError

    async def open_cluster(self, proposed: uuid.UUID) -> uuid.UUID:
        return await self.run(migrations.open_cluster, proposed)

    async def read_changes(self, after_revision: int) -> Changes:
        return await self.run(reading.read_changes, after_revision)

    async def read_broker(self, broker_id: int) -> BrokerRow | None:
        return await self.run(operations.read_broker, broker_id)

    async def read_leases(self) -> Mapping[int, tuple[int, int]]:
        return await self.run(operations.read_leases)

    async def register_broker(self, row: BrokerRow, replaces: BrokerRow | None) -> BrokerRow:
        return await self.run(operations.register_broker, row, replaces)

    async def renew_lease(self, broker_id: int, epoch: int) -> None:
        await self.run(operations.renew_lease, broker_id, epoch)

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

    async def close(self) -> None:
        raise NotImplementedError
