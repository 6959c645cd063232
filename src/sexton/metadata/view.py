"""A broker's view of the cluster: the metastore's rows in memory, as of some revision.

It has two inputs. `apply` takes what a poll returned, in order of revisions. `apply_rows` takes what this broker has
just written itself, so that it need not wait for the poll. The second runs ahead of the first, and a poll that was in
flight meanwhile returns older rows: so a row never replaces one that is newer by its own epoch, and rows without an
epoch (configs, topics) are returned again by the next poll.

Lookups are dictionary lookups; they happen for every partition of every request.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sexton.ports.cloud import CLOUD, STORAGE_MODE
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
from sexton.types import PartitionId

_NO_SETTINGS: Mapping[str, str] = {}

_STATUS_ORDER = {
    BrokerStatus.STARTING: 0,
    BrokerStatus.ACTIVE: 1,
    BrokerStatus.DRAINING: 2,
    BrokerStatus.FENCED: 3,
}
"""Within one broker epoch a status only moves forward: the metastore guarantees that."""


@dataclass(frozen=True, slots=True)
class ViewDelta:
    """What has changed: rows as they are now, and topics that were deleted (with their partitions and configs)."""

    brokers: tuple[BrokerRow, ...] = ()
    topics: tuple[TopicRow, ...] = ()
    partitions: tuple[PartitionRow, ...] = ()
    configs: tuple[tuple[ConfigScope, str], ...] = ()
    controller: ControllerRow | None = None
    deleted: tuple[TopicRow, ...] = ()
    starts_over: bool = False
    """The metastore is an older one than before. `deleted` are then the topics that it does not know."""

    @property
    def deleted_topics(self) -> tuple[uuid.UUID, ...]:
        return tuple(topic.topic_id for topic in self.deleted)

    def __bool__(self) -> bool:
        return bool(self.brokers or self.topics or self.partitions or self.configs or self.controller or self.deleted)


class ClusterView:
    def __init__(self) -> None:
        self.revision = 0
        self.version = 0
        """Rises with every change of the view, own ones included, so that a reader knows whether to look again."""
        self.controller: ControllerRow | None = None
        self._brokers: dict[int, BrokerRow] = {}
        self._topics: dict[uuid.UUID, TopicRow] = {}
        self._topics_by_name: dict[str, TopicRow] = {}
        self._partitions: dict[uuid.UUID, dict[int, PartitionRow]] = {}
        self._rows_of_topic: dict[uuid.UUID, tuple[PartitionRow, ...]] = {}
        self._keys_on_broker: dict[int, dict[PartitionId, None]] = {}
        self._settings: dict[tuple[ConfigScope, str], Mapping[str, str]] = {}

    # Lookups

    def topic(self, name: str) -> TopicRow | None:
        return self._topics_by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicRow | None:
        return self._topics.get(topic_id)

    def topics(self) -> Iterable[TopicRow]:
        return self._topics.values()

    def topic_names(self) -> Iterable[str]:
        return self._topics_by_name.keys()

    def partition(self, name: str, index: int) -> PartitionRow | None:
        topic = self._topics_by_name.get(name)
        return None if topic is None else self._partitions[topic.topic_id].get(index)

    def partitions_count(self, name: str) -> int:
        """Number of partitions; 0 for a topic that does not exist."""
        topic = self._topics_by_name.get(name)
        return 0 if topic is None else len(self._partitions[topic.topic_id])

    def partition_by_id(self, topic_id: uuid.UUID, index: int) -> PartitionRow | None:
        rows = self._partitions.get(topic_id)
        return None if rows is None else rows.get(index)

    def partitions_of(self, topic_id: uuid.UUID) -> tuple[PartitionRow, ...]:
        """A topic's partitions in order of their index; empty if it does not exist."""
        found = self._rows_of_topic.get(topic_id)
        if found is None:
            rows = self._partitions.get(topic_id, {})
            found = tuple(rows[index] for index in sorted(rows))
            if rows:
                self._rows_of_topic[topic_id] = found
        return found

    def partitions(self) -> Iterator[PartitionRow]:
        for rows in self._partitions.values():
            yield from rows.values()

    def broker(self, broker_id: int) -> BrokerRow | None:
        return self._brokers.get(broker_id)

    @property
    def brokers(self) -> Mapping[int, BrokerRow]:
        """All brokers that are registered, fenced ones included."""
        return self._brokers

    def live_brokers(self) -> tuple[BrokerRow, ...]:
        """Live brokers in order of their ids."""
        return tuple(self._brokers[id_] for id_ in sorted(self._brokers) if self._brokers[id_].is_live)

    def settings_of(self, scope: ConfigScope, name: str) -> Mapping[str, str]:
        """What was set on exactly that resource; empty if nothing was."""
        return self._settings.get((scope, name), _NO_SETTINGS)

    def wants_cloud(self, topic: str) -> bool:
        """Whether the topic's data belongs into an object store. Said by its own settings, never by a default, which
        may change. Where a partition's data *is*, its row says."""
        return self.settings_of(ConfigScope.TOPIC, topic).get(STORAGE_MODE) == CLOUD

    def names_with_settings(self, wanted: ConfigScope) -> Iterator[str]:
        """The resources of that scope on which something is set."""
        return (name for scope, name in self._settings if scope is wanted)

    def replicas_on(self, broker_id: int) -> tuple[PartitionRow, ...]:
        """The partitions of which this broker has a replica."""
        keys = self._keys_on_broker.get(broker_id, {})
        return tuple(self._partitions[topic_id][index] for topic_id, index in keys)

    # Applying changes

    def apply(self, changes: Changes) -> ViewDelta:
        """Takes what a poll returned. A snapshot with a lower revision than this view means that the metastore was
        restored from an older copy: it then replaces the whole view."""
        if changes.is_snapshot:
            return self._apply_snapshot(changes)
        if changes.revision <= self.revision:
            return ViewDelta()
        self.revision = changes.revision
        deleted = [topic for id_ in changes.deleted_topics if (topic := self._drop_topic(id_)) is not None]
        return self._take(changes, deleted)

    def apply_rows(
        self,
        partitions: Sequence[PartitionRow] = (),
        *,
        brokers: Sequence[BrokerRow] = (),
        topics: Sequence[TopicRow] = (),
        configs: Sequence[ConfigRow] = (),
        controller: ControllerRow | None = None,
    ) -> ViewDelta:
        """Takes rows that this broker has just written successfully."""
        return self._take(
            Changes(
                revision=self.revision,
                is_snapshot=False,
                brokers=brokers,
                topics=topics,
                partitions=partitions,
                configs=configs,
                controller=controller,
            ),
            [],
        )

    def _apply_snapshot(self, snapshot: Changes) -> ViewDelta:
        if snapshot.revision < self.revision:
            return self.start_over(snapshot)
        self.revision = snapshot.revision
        named = {topic.topic_id for topic in snapshot.topics}
        gone = [topic_id for topic_id in self._topics if topic_id not in named]
        deleted = [topic for topic_id in gone if (topic := self._drop_topic(topic_id)) is not None]
        self._drop_brokers(snapshot)
        delta = self._take(snapshot, deleted)
        set_now = {(row.scope, row.name) for row in snapshot.configs}
        cleared = [ConfigRow(*key, settings={}) for key in self._settings if key not in set_now]
        cleared_delta = self._take(Changes(self.revision, False, configs=cleared), [])
        return replace(delta, configs=delta.configs + cleared_delta.configs) if cleared_delta else delta

    def _drop_brokers(self, snapshot: Changes) -> None:
        """Removes brokers that were unregistered. A broker epoch is the revision of its registration: a broker that
        registered after the snapshot is not in it yet."""
        named = {row.broker_id for row in snapshot.brokers}
        gone = [id_ for id_, row in self._brokers.items() if id_ not in named and row.epoch <= snapshot.revision]
        for broker_id in gone:
            del self._brokers[broker_id]
            self.version += 1

    def start_over(self, snapshot: Changes) -> ViewDelta:
        """Knows nothing but the snapshot. Also for who has just registered: others may have raised the revision of an
        older metastore since."""
        before, settings = dict(self._topics), dict(self._settings)
        self._forget_everything()
        self.revision = snapshot.revision
        named = {topic.topic_id for topic in snapshot.topics}
        gone = [topic for topic_id, topic in before.items() if topic_id not in named]
        delta = self._take(snapshot, gone)
        all_set = {**settings, **self._settings}
        changed = tuple(key for key in all_set if settings.get(key) != self._settings.get(key))
        return replace(delta, starts_over=True, configs=changed)

    def _forget_everything(self) -> None:
        self.controller = None
        self._brokers.clear()
        self._topics.clear()
        self._topics_by_name.clear()
        self._partitions.clear()
        self._rows_of_topic.clear()
        self._keys_on_broker.clear()
        self._settings.clear()

    def _take(self, changes: Changes, deleted: Sequence[TopicRow]) -> ViewDelta:
        replaced: list[TopicRow] = []
        topics = [row for row in changes.topics if self._take_topic(row, replaced)]
        controller = changes.controller
        if controller is not None and not self._take_controller(controller):
            controller = None
        delta = ViewDelta(
            brokers=tuple(row for row in changes.brokers if self._take_broker(row)),
            topics=tuple(topics),
            partitions=tuple(row for row in changes.partitions if self._take_partition(row)),
            configs=tuple((row.scope, row.name) for row in changes.configs if self._take_settings(row)),
            controller=controller,
            deleted=(*deleted, *replaced),
        )
        if delta:
            self.version += 1
        return delta

    def _take_topic(self, row: TopicRow, replaced: list[TopicRow]) -> bool:
        """A name belongs to one topic: if another topic had it, that one was deleted, even if we have not received that
        yet."""
        former = self._topics_by_name.get(row.name)
        if former == row:
            return False
        if former is not None:
            self._drop_topic(former.topic_id)
            replaced.append(former)
        self._topics[row.topic_id] = row
        self._topics_by_name[row.name] = row
        self._partitions[row.topic_id] = {}
        return True

    def _drop_topic(self, topic_id: uuid.UUID) -> TopicRow | None:
        topic = self._topics.pop(topic_id, None)
        if topic is None:
            return None
        del self._topics_by_name[topic.name]
        self._settings.pop((ConfigScope.TOPIC, topic.name), None)
        self._rows_of_topic.pop(topic_id, None)
        for index, row in self._partitions.pop(topic_id).items():
            for broker_id in row.replicas:
                del self._keys_on_broker[broker_id][topic_id, index]
        return topic

    def _take_partition(self, row: PartitionRow) -> bool:
        rows = self._partitions.get(row.topic_id)
        if rows is None:
            return False  # its topic was deleted
        former = rows.get(row.partition)
        if former is not None and row.partition_epoch <= former.partition_epoch:
            return False
        key = (row.topic_id, row.partition)
        if former is None or former.replicas != row.replicas:
            for broker_id in former.replicas if former is not None else ():
                del self._keys_on_broker[broker_id][key]
            for broker_id in row.replicas:
                self._keys_on_broker.setdefault(broker_id, {})[key] = None
        rows[row.partition] = row
        self._rows_of_topic.pop(row.topic_id, None)
        return True

    def _take_broker(self, row: BrokerRow) -> bool:
        former = self._brokers.get(row.broker_id)
        if former is not None and _age(row) <= _age(former):
            return False
        self._brokers[row.broker_id] = row
        return True

    def _take_controller(self, row: ControllerRow) -> bool:
        if self.controller is not None and row.term <= self.controller.term:
            return False
        self.controller = row
        return True

    def _take_settings(self, row: ConfigRow) -> bool:
        key = (row.scope, row.name)
        if row.scope is ConfigScope.TOPIC and row.name not in self._topics_by_name:
            return False
        if self._settings.get(key, _NO_SETTINGS) == row.settings:
            return False
        if row.settings:
            self._settings[key] = row.settings
        else:
            del self._settings[key]
        return True


def _age(row: BrokerRow) -> tuple[int, int]:
    return row.epoch, _STATUS_ORDER[row.status]
