"""What is due to be compacted, and by whom it is being compacted: the part of the metastore that compactors share.

Brokers publish which of their replicas are due. Compactors, any number, take what nobody works on. A compactor holds
what it took for as long as it renews its own lease, by counting (see `ports.metastore`); one whose count stands still
is removed by whoever notices, and what it held is free again. Nothing here protects data: two compactors on one replica
cost work, and the broker takes the result of one.

None of this is a change of the cluster: no revision counts it, no broker is told of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class WorkKey(NamedTuple):
    """A replica."""

    broker_id: int
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class WorkRow:
    key: WorkKey
    topic: str
    why: str
    dirty_ratio_ppm: int
    """Millionths: numbers in the database are whole."""
    dirty_bytes: int
    total_bytes: int
    overdue_ms: int
    """How long beyond max.compaction.lag.ms: 0 if it is not."""
    is_requested: bool
    """Somebody asked for it by name."""
    since_ms: int
    """When it became due, by its broker's clock."""
    holder: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class CompactorRow:
    compactor_id: uuid.UUID
    name: str
    lease_ms: int
    renewals_count: int


@dataclass(frozen=True, slots=True)
class RunRow:
    """What became of one compaction of one replica."""

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
    """How many records and markers met each fate, by its name. Empty for what was adopted: nobody counted."""
    first_dirty_offset: int = -1
    """Where the dirty section began, which ended at the bound; -1 if that is not known."""


class WorkQueue(Protocol):
    async def publish_work(self, broker_id: int, broker_epoch: int, rows: Sequence[WorkRow]) -> None:
        """All that is due on a broker, in place of what it published before; who works on it goes on. LeaseLostError if
        the broker is fenced or has another epoch."""
        ...

    async def read_work(self) -> Sequence[WorkRow]: ...

    async def lease_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey]) -> Sequence[WorkKey]:
        """Those of them that nobody else holds are this compactor's now."""
        ...

    async def end_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey], runs: Sequence[RunRow]) -> None:
        """They are done, or given up: they are no longer due until their broker says so again."""
        ...

    async def register_compactor(self, row: CompactorRow) -> None: ...

    async def renew_compactor(self, compactor_id: uuid.UUID) -> None:
        """LeaseLostError if it was removed."""
        ...

    async def read_compactors(self) -> Sequence[CompactorRow]: ...

    async def remove_compactor(self, compactor_id: uuid.UUID, renewals_count: int) -> None:
        """By itself, or by another that saw its count stand still. StaleError if it was renewed meanwhile."""
        ...

    async def read_runs(self, limit: int, topic: str | None = None) -> Sequence[RunRow]:
        """The newest first, of all topics or of one."""
        ...
