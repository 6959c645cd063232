"""The cluster's shared metadata: brokers and their leases, topics, partitions, configs, the controller, producer ids.

Every change is one transaction that names what it was based on (an expected epoch, term or count) and fails as a whole
with `StaleError` when that is no longer so. There is no lock to hold and nothing to clean up after a crash. Every
change takes the next number of one counter, the *revision*; `read_changes` returns what changed after a revision, so
that a broker follows the cluster with one cheap query.

**Leases need no common clock.** A broker renews its lease by adding one to a count. It trusts its lease for `lease_ms`
from the moment *before* it sent the renewal, by its own monotonic clock. A process that wants to take something from it
must have seen the count unchanged for longer than that by *its own* monotonic clock, and takes it by a compare-and-set
on that very count. Only the rates of two clocks need to agree, within LEASE_MARGIN.

Safety never depends on leases: epochs and compare-and-set protect the data. Leases bound how long a cut-off leader goes
on serving reads.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from sexton.errors import SextonError
from sexton.ports.cloud import CloudPartitionRow, CloudStore, Copied
from sexton.ports.work_queue import WorkQueue
from sexton.types import LeaderEpoch

LEASE_MARGIN = 1.1
"""How much longer than `lease_ms` a watcher waits: the rates of clocks may differ by a tenth."""


class StaleError(SextonError):
    """The row has changed since it was read. Read again, decide again."""


class AlreadyExistsError(SextonError):
    """A topic of that name, or another cluster's data, exists already."""


class LeaseLostError(SextonError):
    """The broker was fenced or replaced. It must stop serving and register again."""


class MetastoreUnavailableError(SextonError):
    """The metastore did not answer in time, or the connection broke. Whether the change was made is unknown: read
    before deciding again."""


class BrokerStatus(StrEnum):
    STARTING = "starting"
    """Registered, and not electable yet: it opens its logs, or it was fenced and has come back."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Shutting down: becomes leader of no more partitions, hands over those that it leads."""
    FENCED = "fenced"
    """Its lease has expired, or it has stopped."""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    broker_id: int
    epoch: int
    """New at each registration, and higher than any before it in the cluster: identifies the broker's process."""
    host: str
    port: int
    rack: str | None
    data_id: uuid.UUID
    """Id of its log directory (meta.properties directory.id). A registration with the same directory replaces the
    former one at once: the directory's lock proves that the former process is gone."""
    lease_ms: int
    renewals_count: int
    status: BrokerStatus
    start_id: str | None = None
    """Id that its process wrote into its log directory before it registered: a process that finds it there has the disk
    with which this registration was made, and not an older image of it."""

    @property
    def is_live(self) -> bool:
        return self.status is not BrokerStatus.FENCED


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic_id: uuid.UUID
    name: str
    is_internal: bool


class Storage(IntEnum):
    """Where a partition's records are. Only forward, but for a copy that is given up."""

    LOCAL = 0
    """In the logs of its replicas."""
    MOVING = 1
    """In the logs of its replicas, and its leader copies them to the object store (docs/decisions, 31)."""
    CLOUD = 2
    """In the object store alone."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]
    """In order of preference; during a reassignment the old and the new ones together."""
    isr: tuple[int, ...]
    leader: int
    leader_epoch: LeaderEpoch
    """Raised whenever the leader changes, or the same leader restarts."""
    partition_epoch: int
    """Raised with every change of the row: what compare-and-set compares."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    incarnations: Mapping[int, uuid.UUID] = field(default_factory=dict)
    """Id of the replica's log by broker id. New whenever the replica starts with an empty log."""
    generation: int = 0
    """Raised when an unclean election of a compacted partition is forced, which lowers its watermarks and wipes the
    other replicas."""
    storage: Storage = Storage.LOCAL

    @property
    def is_cloud(self) -> bool:
        return self.storage is Storage.CLOUD


@dataclass(frozen=True, slots=True)
class ControllerRow:
    broker_id: int
    broker_epoch: int
    term: int


class ConfigScope(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    """The name is the broker id, or empty for the cluster-wide default."""
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """All configs set on one resource. `settings` is empty after the last was removed."""

    scope: ConfigScope
    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that changed after the requested revision, whole; `deleted_topics` are gone with all their partitions.

    With `is_snapshot`, rows that are not in it do not exist: the reader discards what it had.
    """

    revision: int
    is_snapshot: bool
    brokers: Sequence[BrokerRow] = ()
    topics: Sequence[TopicRow] = ()
    partitions: Sequence[PartitionRow] = ()
    configs: Sequence[ConfigRow] = ()
    controller: ControllerRow | None = None
    deleted_topics: Sequence[uuid.UUID] = ()
    cloud_partitions: Sequence[CloudPartitionRow] = ()
    """Of leveling, compaction, retention. A commit of a leader is no change: its offsets here may be old."""


class Metastore(WorkQueue, CloudStore, Protocol):
    """Every method may raise MetastoreUnavailableError, within `timeout_ms` of the adapter."""

    async def open_cluster(self, proposed: uuid.UUID) -> uuid.UUID:
        """Creates the schema if there is none, and returns the cluster's id: the proposed one only if the cluster is
        new."""
        ...

    async def find_cluster(self) -> uuid.UUID:
        """Returns the cluster's id, for those who are no broker: nothing is made, nothing migrated. Raises
        MetastoreUnavailableError if there is no cluster yet or its schema is older than this build's (a broker of this
        build brings it up to date), and UnsupportedFormatError if it is newer."""
        ...

    async def read_changes(self, after_revision: int) -> Changes:
        """Returns the changes after a revision, in one consistent read. For 0, or a revision so old that later
        deletions are no longer known, returns a snapshot. A lease renewal is no change: `read_leases` shows those."""
        ...

    async def read_broker(self, broker_id: int) -> BrokerRow | None:
        """Returns the broker's registration, live or not; None if there is none."""
        ...

    async def read_leases(self) -> Mapping[int, tuple[int, int]]:
        """Returns (epoch, renewals_count) by broker id, of brokers that are not fenced."""
        ...

    async def register_broker(self, row: BrokerRow, replaces: BrokerRow | None) -> BrokerRow:
        """Registers the broker id, as STARTING, with a new epoch and zero renewals. `replaces` is the row as last read,
        None if there was none. Raises StaleError if it has changed (in epoch, renewals_count or status) meanwhile."""
        ...

    async def renew_lease(self, broker_id: int, epoch: int) -> int:
        """Returns how often this registration was renewed by now, more than after any renewal before. Raises
        LeaseLostError if the broker is fenced or has another epoch."""
        ...

    async def set_broker_status(self, broker_id: int, epoch: int, status: BrokerStatus) -> BrokerRow:
        """Called by the broker itself. Raises LeaseLostError like `renew_lease`; a fenced broker stays FENCED."""
        ...

    async def fence_broker(self, broker_id: int, epoch: int, renewals_count: int) -> None:
        """Called by the controller that saw the lease expire. Raises StaleError if it was renewed meanwhile."""
        ...

    async def remove_broker(self, broker_id: int, epoch: int) -> None:
        """Deletes the row of a fenced broker that will not come back. Raises StaleError if it has another epoch, is not
        fenced, or is a replica of any partition: without the row, an old image of its disk could not be told from the
        disk itself."""
        ...

    async def claim_controller(self, broker_id: int, broker_epoch: int, expected_term: int) -> ControllerRow:
        """Makes this broker the controller with the next term. Raises StaleError if the term has changed,
        LeaseLostError if the broker is fenced. It stays controller while its broker's lease lasts."""
        ...

    async def create_topic(
        self, topic: TopicRow, partitions: Sequence[PartitionRow], settings: Mapping[str, str]
    ) -> None:
        """Raises AlreadyExistsError if the name is taken. Row epochs are stored as given. Rows of cloud partitions get
        their cloud partitions, too."""
        ...

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        """Deletes the topic with its partitions and configs. Raises StaleError if there is no such topic."""
        ...

    async def add_partitions(
        self, topic_id: uuid.UUID, expected_count: int, partitions: Sequence[PartitionRow]
    ) -> None:
        """Raises StaleError if the topic is gone or has another number of partitions."""
        ...

    async def update_partitions(
        self, rows: Sequence[PartitionRow], live: Mapping[int, int] | None = None
    ) -> Sequence[PartitionRow | None]:
        """Writes each row whose stored partition_epoch is the given one, with partition_epoch + 1, and returns it as
        stored; None where it had changed or is gone. `live` (epochs by broker id) must be registered and not fenced,
        else StaleError for the whole call: so a leader adds to the ISR the very process that it saw caught up
        (KIP-903), and acts itself only as the process that is registered."""
        ...

    async def begin_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow, start_offset: int
    ) -> PartitionRow | None:
        """A local partition becomes MOVING: its leader has claimed a cloud partition that is empty and begins at the
        offset. Returns the row as stored, None if it was another or names another leader. Raises LeaseLostError, like
        the next two, if the broker is fenced."""
        ...

    async def abandon_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow
    ) -> tuple[PartitionRow | None, bool]:
        """The copy that this leader has claimed is not that of its log: its extents go, some with each call. Returns
        the row once the partition is LOCAL again, and whether to call again. (None, False) if the row is another, or
        the copy another leader's. Raises StaleError if the row changes at that very moment: nothing is done."""
        ...

    async def finish_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow, copied: Copied
    ) -> PartitionRow | None:
        """All is copied: the partition is a cloud partition from now on, in another leader epoch. Returns the row, also
        if the partition is one already; None if the row has changed, or if the copy is not the leader's or ends
        elsewhere."""
        ...

    async def change_settings(
        self,
        scope: ConfigScope,
        name: str,
        changes: Mapping[str, str | None],
        expected: Mapping[str, str] | None = None,
    ) -> ConfigRow:
        """None deletes a config. With `expected`, raises StaleError unless these were all the configs (used for lists
        that are appended to). A topic must exist (else StaleError)."""
        ...

    async def allocate_producer_ids(self, count: int) -> int:
        """Returns the first of `count` ids that were never given out before."""
        ...

    async def close(self) -> None: ...
