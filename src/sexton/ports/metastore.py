"""What the cluster agrees on: brokers and their leases, topics, partitions, settings, the controller, producer ids.

Every change is one transaction that names what it was based on (an expected epoch, term or count) and fails whole with
`StaleError` when that is no longer so. There is no lock to hold and nothing to clean up after a crash. Every change
takes the next number of one counter, the *revision*; `read_changes` returns what changed after a revision, so that a
broker follows the cluster with one cheap query.

**Leases need no common clock.** A broker renews its lease by adding one to a count. It trusts its lease for `lease_ms`
from the moment *before* it sent the renewal, by its own monotonic clock. Whoever wants to take something from it must
have watched the count stand still for longer than that by *their* monotonic clock, and takes it by a compare-and-set
on that very count. Only the rates of two clocks need to agree, within LEASE_MARGIN.

Safety never rests on leases: epochs and compare-and-set protect the data. Leases bound how long a cut-off leader goes
on serving reads.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sexton.errors import SextonError
from sexton.ports.work_queue import WorkQueue

NO_LEADER = -1
"""A partition whose in-sync replicas are all away."""

LEASE_MARGIN = 1.1
"""How much longer than `lease_ms` a watcher waits: clocks may run up to a tenth apart."""


class StaleError(SextonError):
    """The row changed since it was read. Read again, decide again."""


class AlreadyExistsError(SextonError):
    """A topic of that name, or another cluster's data, is already there."""


class LeaseLostError(SextonError):
    """The broker was fenced or replaced. It stops serving and registers anew."""


class MetastoreUnavailableError(SextonError):
    """No answer in time, or the connection broke. Whether the change was made is unknown: read before deciding
    again."""


class BrokerStatus(StrEnum):
    STARTING = "starting"
    """Registered, not yet electable: its logs are being read, or it was fenced and has come back."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Shutting down: leads nothing new, hands over what it leads."""
    FENCED = "fenced"
    """Its lease ran out, or it has stopped."""


@dataclass(frozen=True, slots=True)
class BrokerRow:
    broker_id: int
    epoch: int
    """New at each registration, higher than any before it in the cluster: tells a broker from its former self."""
    host: str
    port: int
    rack: str | None
    data_id: uuid.UUID
    """Of its data folder (meta.properties directory.id). A registration by the same folder replaces the former at once:
    the folder's lock proves that the former process is gone."""
    lease_ms: int
    renewals_count: int
    status: BrokerStatus
    start_id: str | None = None
    """What its process has written into its folder before it registered: whoever finds it there again has the disk with
    which this was registered, and not an older image of it."""

    @property
    def is_live(self) -> bool:
        return self.status is not BrokerStatus.FENCED


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic_id: uuid.UUID
    name: str
    is_internal: bool


@dataclass(frozen=True, slots=True)
class PartitionRow:
    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]
    """In order of preference; during a reassignment the old and the new ones together."""
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    """Grows whenever the leader changes, or the same leader starts again."""
    partition_epoch: int
    """Grows with every change of the row: what compare-and-set compares."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    incarnations: Mapping[int, uuid.UUID] = field(default_factory=dict)
    """Broker id to the id of its replica's log. New whenever the replica starts from an empty disk."""
    generation: int = 0
    """Of a compacted partition: grows when an unclean election is forced, which cuts its watermarks and wipes the other
    replicas."""


@dataclass(frozen=True, slots=True)
class ControllerRow:
    broker_id: int
    broker_epoch: int
    term: int


class ConfigScope(StrEnum):
    TOPIC = "topic"
    BROKER = "broker"
    """Name is the broker id, or empty for the cluster-wide default."""
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """All settings that were made on one resource. `settings` is empty after the last was removed."""

    scope: ConfigScope
    name: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that changed after the asked revision, whole; `deleted_topics` are gone with all their partitions.

    With `is_snapshot`, what is not in it does not exist: the reader throws away what it had."""

    revision: int
    is_snapshot: bool
    brokers: Sequence[BrokerRow] = ()
    topics: Sequence[TopicRow] = ()
    partitions: Sequence[PartitionRow] = ()
    configs: Sequence[ConfigRow] = ()
    controller: ControllerRow | None = None
    deleted_topics: Sequence[uuid.UUID] = ()


class Metastore(WorkQueue, Protocol):
    """Every method may raise MetastoreUnavailableError, within `timeout_ms` of the adapter."""

    async def open_cluster(self, proposed: uuid.UUID) -> uuid.UUID:
        """Makes the schema if there is none, and returns the cluster's id: the proposed one only if it is new."""
        ...

    async def read_changes(self, after_revision: int) -> Changes:
        """0, or a revision from before what is still remembered of deletions, gives a snapshot. One consistent read.
        A lease renewal is no change: `read_leases` shows those."""
        ...

    async def read_broker(self, broker_id: int) -> BrokerRow | None:
        """As it is registered, live or not; None if it never was."""
        ...

    async def read_leases(self) -> Mapping[int, tuple[int, int]]:
        """Broker id to (epoch, renewals_count), of brokers that are not fenced."""
        ...

    async def register_broker(self, row: BrokerRow, replaces: BrokerRow | None) -> BrokerRow:
        """Takes the broker id, as STARTING, with a new epoch and zero renewals. `replaces` is the row as last seen,
        None if there was none; StaleError if it has changed (in epoch, renewals_count or status) meanwhile."""
        ...

    async def renew_lease(self, broker_id: int, epoch: int) -> None:
        """LeaseLostError if the broker is fenced or has another epoch."""
        ...

    async def set_broker_status(self, broker_id: int, epoch: int, status: BrokerStatus) -> BrokerRow:
        """By the broker itself. LeaseLostError as above; never leaves FENCED."""
        ...

    async def fence_broker(self, broker_id: int, epoch: int, renewals_count: int) -> None:
        """By the controller that saw the lease run out. StaleError if it was renewed meanwhile."""
        ...

    async def remove_broker(self, broker_id: int, epoch: int) -> None:
        """Forgets a broker that is fenced for good. StaleError if it has another epoch, is not fenced, or is a replica
        of anything: what it would claim to hold when it came back could not be told from what it must hold."""
        ...

    async def claim_controller(self, broker_id: int, broker_epoch: int, expected_term: int) -> ControllerRow:
        """Makes this broker the controller with the next term. StaleError if the term has changed, LeaseLostError if
        the broker is fenced. The controller stays controller while its broker's lease lasts."""
        ...

    async def create_topic(
        self, topic: TopicRow, partitions: Sequence[PartitionRow], settings: Mapping[str, str]
    ) -> None:
        """AlreadyExistsError if the name is taken. Row epochs are taken as given."""
        ...

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        """With partitions and settings. StaleError if there is no such topic."""
        ...

    async def add_partitions(
        self, topic_id: uuid.UUID, expected_count: int, partitions: Sequence[PartitionRow]
    ) -> None:
        """StaleError if the topic is gone or has another number of partitions."""
        ...

    async def update_partitions(
        self, rows: Sequence[PartitionRow], live: Mapping[int, int] | None = None
    ) -> Sequence[PartitionRow | None]:
        """Writes each row whose stored partition_epoch is the given one, with partition_epoch + 1, and returns it as
        stored; None where it had changed or is gone. `live` (broker id to epoch) must hold for the whole call, else
        StaleError: it is how a leader adds to the ISR the very process that it saw caught up (KIP-903), and acts
        itself only as the process that is registered."""
        ...

    async def change_settings(
        self,
        scope: ConfigScope,
        name: str,
        changes: Mapping[str, str | None],
        expected: Mapping[str, str] | None = None,
    ) -> ConfigRow:
        """None removes a setting. With `expected`, StaleError unless these were all the settings (used for lists that
        are appended to). A topic's name must exist (StaleError)."""
        ...

    async def allocate_producer_ids(self, count: int) -> int:
        """The first of `count` ids that nobody was given before."""
        ...

    async def close(self) -> None: ...
