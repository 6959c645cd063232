"""The replicas that are due for compaction, and the compactors that work on them: the part of the metastore that
compactors share. Cloud partitions belong to no broker: what is due of them compactors find out by themselves.

Brokers publish which of their replicas are due. Any number of compactors take work that no other one has. A compactor
holds its work for as long as it renews its own lease, by counting (see `ports.metastore`); one whose count does not
change is removed by any other compactor that notices, and its work is free again. Nothing here protects data: two
compactors on one replica waste work, and the broker accepts the result of one.

None of this is a change of the cluster: it has no revision, and brokers are not notified.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol


class CloudWork(IntEnum):
    """Kinds of work on a cloud partition, as the broker's id in their keys: it belongs to no broker."""

    COMPACT = -1
    LEVEL = -2
    MERGE = -3


class WorkKey(NamedTuple):
    """The key of a replica, or of one kind of work on a cloud partition."""

    broker_id: int
    """Or a `CloudWork`."""
    topic_id: uuid.UUID
    partition: int

    @property
    def is_cloud(self) -> bool:
        return self.broker_id < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow:
    key: WorkKey
    topic: str
    why: str
    dirty_ratio_ppm: int
    """In millionths: numbers in the database are integers."""
    dirty_bytes: int
    total_bytes: int
    overdue_ms: int
    """How long it has exceeded max.compaction.lag.ms: 0 if it has not."""
    is_requested: bool
    """Whether an operator requested it."""
    since_ms: int
    """When it became due, by its broker's clock."""
    holder: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class CompactorRow:
    compactor_id: uuid.UUID
    name: str
    lease_ms: int
    renewals_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The outcome of one compaction of one replica."""

    run_id: uuid.UUID
    finished_ms: int
    broker_id: int
    topic: str
    partition: int
    outcome: str
    bound: int
    bytes_before: int
    bytes_after: int
    duration_ms: int
    fates: Mapping[str, str] = field(default_factory=dict)
    """Number of records and markers that met each fate, by its name. Empty for an adopted compaction, where they are
    not counted."""
    first_dirty_offset: int = -1
    """Where the dirty section began, which ended at the bound; -1 if unknown."""


class WorkQueue(Protocol):
    async def publish_work(self, broker_id: int, broker_epoch: int, rows: Sequence[WorkRow]) -> None:
        """Replaces the published work of a broker by what is due now; compactors keep what they hold. Raises
        LeaseLostError if the broker is fenced or has another epoch."""
        ...

    async def publish_cloud_work(self, rows: Sequence[WorkRow]) -> None:
        """Replaces the published work on cloud partitions by what is due now, whoever found that out. What was due
        before keeps its time and its holder; what was requested stays until it is done."""
        ...

    async def request_cloud_work(self, rows: Sequence[WorkRow]) -> None:
        """Makes the work due because an operator asks for it."""
        ...

    async def read_work(self) -> Sequence[WorkRow]: ...

    async def lease_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey]) -> Sequence[WorkKey]:
        """Leases to this compactor the work that no other one holds. Returns its keys."""
        ...

    async def end_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey], runs: Sequence[RunRow]) -> None:
        """Removes work that is done or given up: it is not due until its broker publishes it again."""
        ...

    async def register_compactor(self, row: CompactorRow) -> None: ...

    async def renew_compactor(self, compactor_id: uuid.UUID) -> None:
        """Raises LeaseLostError if it was removed."""
        ...

    async def read_compactors(self) -> Sequence[CompactorRow]: ...

    async def remove_compactor(self, compactor_id: uuid.UUID, renewals_count: int) -> None:
        """Called by the compactor itself, or by another that saw its count unchanged. Raises StaleError if it was
        renewed meanwhile."""
        ...

    async def read_runs(self, limit: int, topic: str | None = None) -> Sequence[RunRow]:
        """Returns the newest first, of all topics or of one."""
        ...
