"""Everything that is decided before a run: topics, clients, administration, faults. (`planning` draws it from a seed.)

A plan is a list of items, so that a failing run can be cut down by leaving some of them out. Each client and each
machine draws from random numbers of its own, named after it: leaving one out does not change what the others do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from sexton.client.fetching import READ_UNCOMMITTED
from sexton.ports.cloud import CLOUD, STORAGE_MODE
from sexton.simulate.cluster import BrokerTimes, StorePlan
from sexton.simulate.compactors import CompactorPlan
from sexton.simulate.faults import Fault
from sexton.simulate.formats import batch_limits
from sexton.simulate.lives import LifePlan
from sexton.simulate.network import Weather
from sexton.simulate.transactors import TransactorPlan
from sexton.simulate.truth import Retention
from sexton.simulate.writers import Limits, WriterPlan
from sexton.types import TopicPartition

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
"""Compacted like any other, where there are compactors."""


LONG_RETENTION_MS = "36000000"
"""Longer than clocks jump and runs last: a consumer that is not away for that long misses no tombstone."""


UNCLEAN = "unclean.leader.election.enable"


class Profile(StrEnum):
    """What a run is about. Drawn from the seed unless it is given."""

    PLAIN = "plain"
    """Records, groups, administration. Some topics acknowledge before the flush."""
    TRANSACTIONS = "transactions"
    COMPACTION = "compaction"
    """Compactors at work; half of these runs have transactions, too."""
    CLOUD = "cloud"
    """Topics that live in an object store, some beside local ones, most with transactions. Never drawn: it is asked
    for."""
    LEVELED = "leveled"
    """The same, with compactors at work on them. Never drawn either."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions_count: int
    replicas_count: int
    settings: dict[str, str]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self._policies

    @property
    def deletes(self) -> bool:
        """Log starts move: by retention, if it has any, and when somebody asks."""
        return "delete" in self._policies

    @property
    def _policies(self) -> list[str]:
        return self.settings.get("cleanup.policy", "delete").split(",")

    @property
    def retention(self) -> Retention:
        return Retention(int(self.settings.get("retention.ms", -1)), int(self.settings.get("retention.bytes", -1)))

    @property
    def keeps_tombstones(self) -> bool:
        return self.is_compacted and self.settings["delete.retention.ms"] == LONG_RETENTION_MS

    @property
    def flushes(self) -> bool:
        return self.settings.get("flush.before.ack") != "false"

    @property
    def is_cloud(self) -> bool:
        return self.settings.get(STORAGE_MODE) == CLOUD

    @property
    def places(self) -> tuple[TopicPartition, ...]:
        return tuple((self.name, partition) for partition in range(self.partitions_count))


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    name: str
    group: str | None
    isolation: int = READ_UNCOMMITTED
    is_consumer_protocol: bool = False
    """A member by KIP-848."""
    rack: str = ""
    """Where it stands: it may be sent to a follower that stands there, too."""
    pause_ms: int = 0
    """Between two polls. One that polls all the time takes as much of a run's time as all brokers together."""


class Action(StrEnum):
    CREATE_TOPIC = "create topic"
    DELETE_TOPIC = "delete topic"
    ADD_PARTITIONS = "add partitions"
    CHANGE_SETTINGS = "change settings"
    REASSIGN = "reassign"
    ELECT = "elect preferred leaders"
    DELETE_RECORDS = "delete records"
    DELETE_COMPACTED = "delete what is compacted"
    SWITCH = "move to the store"
    FLAP = "remove and add again"
    CANCEL = "move and cancel"
    BURST = "do many things at once"


HASTY = (Action.FLAP, Action.CANCEL, Action.BURST)
"""What `movers` do."""


@dataclass(frozen=True, slots=True)
class AdminPlan:
    at_ms: int
    action: Action
    topic: str
    draw: int
    """What the details are drawn from when its time comes."""


Item = Fault | AdminPlan | WriterPlan | TransactorPlan | CompactorPlan | ReaderPlan | LifePlan


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    brokers_count: int
    until_ms: int
    times: BrokerTimes
    weather: Weather
    topics: tuple[TopicPlan, ...]
    items: tuple[Item, ...]
    store: StorePlan | None = None

    def without(self, left_out: Collection[int]) -> Plan:
        return replace(self, items=tuple(item for index, item in enumerate(self.items) if index not in left_out))

    @property
    def faults(self) -> list[Fault]:
        return [item for item in self.items if isinstance(item, Fault)]

    @property
    def admin(self) -> list[AdminPlan]:
        return [item for item in self.items if isinstance(item, AdminPlan) and item.action not in HASTY]

    @property
    def moves(self) -> list[AdminPlan]:
        return [item for item in self.items if isinstance(item, AdminPlan) and item.action in HASTY]

    @property
    def writers(self) -> list[WriterPlan]:
        return [item for item in self.items if isinstance(item, WriterPlan)]

    @property
    def readers(self) -> list[ReaderPlan]:
        return [item for item in self.items if isinstance(item, ReaderPlan)]

    @property
    def transactors(self) -> list[TransactorPlan]:
        return [item for item in self.items if isinstance(item, TransactorPlan)]

    @property
    def compactors(self) -> list[CompactorPlan]:
        return [item for item in self.items if isinstance(item, CompactorPlan)]

    @property
    def lives(self) -> list[LifePlan]:
        return [item for item in self.items if isinstance(item, LifePlan)]

    @property
    def clients(self) -> list[str]:
        """Hosts of all who are no brokers."""
        return [item.name for item in self.items if not isinstance(item, Fault | AdminPlan)]

    @property
    def compacted_topics(self) -> list[str]:
        return [topic.name for topic in self.topics if topic.is_compacted]

    @property
    def retentions(self) -> dict[str, Retention]:
        """Retention of the compacted topics that delete as well."""
        return {topic.name: topic.retention for topic in self.topics if topic.is_compacted and topic.deletes}

    @property
    def batch_limits(self) -> dict[str, Limits]:
        """Of topics whose batches may come close to what they allow."""
        limiting = (Action.CHANGE_SETTINGS, Action.SWITCH)  # in the store segments limit nothing
        changed = {item.topic for item in self.admin if item.action in limiting}
        found = {topic.name: batch_limits(topic.settings, may_change=topic.name in changed) for topic in self.topics}
        return {name: limits for name, limits in found.items() if limits is not None}

    @property
    def unclean_topics(self) -> list[str]:
        """Topics with unclean.leader.election.enable=true; compacted ones do not count."""
        return [topic.name for topic in self.topics if topic.settings.get(UNCLEAN) == "true" and not topic.is_compacted]

    @property
    def cloud_topics(self) -> list[str]:
        """Topics that are cloud topics from the start, or become such."""
        switched = {item.topic for item in self.admin if item.action is Action.SWITCH}
        return [topic.name for topic in self.topics if topic.is_cloud or topic.name in switched]

    @property
    def unflushed_topics(self) -> list[str]:
        return [topic.name for topic in self.topics if not topic.flushes]
