"""kafka-python. 2.0.2 has no transactions."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 12):  # kafka-python 2.0.2 carries a copy of six that such a Python cannot import from
    import types

    import six.moves  # type: ignore[import-untyped]

    sys.modules.setdefault("kafka.vendor.six.moves", types.ModuleType("kafka.vendor.six.moves"))
    sys.modules["kafka.vendor.six.moves"] = six.moves

import kafka.errors as errors
from kafka.admin import ConfigResource, KafkaAdminClient, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from sexton.verify.clients import secured
from sexton.verify.clients.alike import POLL_RECORDS_MAX, Moves, messages_of, records_of
from sexton.verify.clients.base import (
    ABORT,
    ALTER_GROUP_OFFSETS,
    CALL_TIMEOUT_S,
    FATAL,
    FENCED,
    INCREMENTAL,
    INVALID_RECORD,
    NULL_HEADERS,
    NULL_PAIRS,
    RETRY,
    ZSTD_TOPICS,
    Attributes,
    Failure,
    Frozen,
    Group,
    GroupMember,
    Headers,
    Message,
    Nodes,
    Place,
    Record,
    Refused,
    Replicas,
    Settings,
    Written,
)

if TYPE_CHECKING:
    from sexton.client.security.properties import Security

POLL_S = 1.0
"""A poll of kafka-python 3.0.12 that ends between SyncGroup and its answer loses the assignment: give it time."""

ISOLATION = "read_uncommitted"
EAGER: Settings = {}
COOPERATIVE: dict[str, Any] = {}
if importlib.util.find_spec("kafka.coordinator.assignors.cooperative_sticky"):  # since 3.0
    assignors = importlib.import_module("kafka.coordinator.assignors.cooperative_sticky")
    COOPERATIVE = {"partition.assignment.strategy": [assignors.CooperativeStickyAssignor]}

IS_OLD = not hasattr(KafkaAdminClient, "list_group_offsets")
"""Before 2.1, which returns many a response as it came."""

SINCE_2_1 = ("enable_idempotence", "isolation_level") if IS_OLD else ()

FENCING = ("ProducerFencedError", "InvalidProducerEpochError")


def settings_of(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {name.replace(".", "_"): value for name, value in settings.items()}
    if found.get("compression_type") == "none":
        found["compression_type"] = None
    return found


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without what this version has not heard of."""
    return {name: value for name, value in settings.items() if name not in SINCE_2_1}


def offset_and_metadata(offset: int, metadata: str = "") -> Any:
    """It has had a third field, the leader epoch, since 2.1."""
    return OffsetAndMetadata(offset, metadata, *(() if IS_OLD else (-1,)))


def answered(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except errors.KafkaError as raised:
        raise Refused(getattr(raised, "errno", None), type(raised).__name__) from None


def prepare() -> None:
    """Nothing is shared."""


def lacks() -> frozenset[str]:
    old = {ZSTD_TOPICS, INVALID_RECORD, INCREMENTAL, ALTER_GROUP_OFFSETS} if IS_OLD else set()
    return frozenset({NULL_PAIRS, NULL_HEADERS, *old})


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | None], given: Attributes, settings: Settings
) -> list[Written]:
    defaults: dict[str, Any] = {"bootstrap_servers": bootstrap.split(","), "linger_ms": 5, "acks": "all"}
    options = {"key": given.key, "partition": given.partition, "headers": list(given.headers)}
    producer = KafkaProducer(**known({**defaults, **settings_of(settings)}))

    def send_all() -> list[Any]:
        futures = [producer.send(topic, value=value, timestamp_ms=given.at_ms, **options) for value in values]
        producer.flush(CALL_TIMEOUT_S)
        return [future.get(CALL_TIMEOUT_S) for future in futures]

    try:
        found = answered(send_all)
    finally:
        producer.close()
    return [Written(each.partition, each.offset, each.timestamp, None) for each in found]


class Producer:
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "linger_ms": 5,
            "max_block_ms": int(CALL_TIMEOUT_S * 1000),
        }
        if transactional_id:
            defaults |= {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        else:
            defaults["enable_idempotence"] = True
        self._producer = KafkaProducer(**{**defaults, **settings_of(settings), **secured.python(security)})
        self._is_transactional = bool(transactional_id)
        self._sent: list[Any] = []

    def _told(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except errors.KafkaError as raised:
            raise self._failure(raised) from None
        except AssertionError as raised:  # so it says that the call is not allowed now
            raise Failure(FATAL, "AssertionError", str(raised)) from None

    def _wait_for_bump(self) -> None:
        """After some errors the client asks for a new epoch in its own thread, which tells whether it is fenced; an
        application cannot do anything before that is over."""
        manager = self._producer._transaction_manager
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while manager.is_bumping_epoch() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _failure(self, raised: Exception) -> Failure:
        self._wait_for_bump()
        manager = self._producer._transaction_manager
        reason = manager.last_error if manager is not None and manager.has_error() else raised
        name = type(reason or raised).__name__
        if name in FENCING and manager.has_fatal_error():
            todo = FENCED
        elif manager is not None and manager.has_fatal_error():
            todo = FATAL
        elif isinstance(raised, errors.KafkaTimeoutError):
            todo = RETRY
        else:
            todo = ABORT
        return Failure(todo, name, str(raised))

    def init(self) -> None:
        if self._is_transactional:
            self._told(self._producer.init_transactions)

    def begin(self) -> None:
        self._told(self._producer.begin_transaction)
        self._sent = []

    def send(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        options = {"partition": partition, "key": key, "headers": list(headers)}
        for value in values:
            self._sent.append(self._told(partial(self._producer.send, topic, value, **options)))

    def flush(self) -> list[int]:
        sent, self._sent = self._sent, []
        try:
            return self._flush(sent)
        except Failure as failure:  # a record that was not delivered in time is not delivered by asking again
            raise Failure(ABORT, failure.name, failure.message) if failure.todo == RETRY else failure from None

    def _flush(self, sent: list[Any]) -> list[int]:
        self._told(lambda: self._producer.flush(CALL_TIMEOUT_S))
        return [self._told(partial(each.get, CALL_TIMEOUT_S)).offset for each in sent]

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer | Frozen) -> None:
        positions = {TopicPartition(*place): offset_and_metadata(offset) for place, offset in offsets.items()}
        self._told(lambda: self._producer.send_offsets_to_transaction(positions, consumer.group_metadata()))

    def commit(self) -> None:
        self._told(self._producer.commit_transaction)

    def abort(self) -> None:
        if self._producer._transaction_manager._test_is_ready():
            return  # the new epoch has ended the transaction, and the client refuses to end it again
        self._told(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(0)


class _Moves(Moves, ConsumerRebalanceListener):  # type: ignore[misc]
    """Called while it polls."""


class Consumer:
    def __init__(
        self,
        bootstrap: str,
        isolation: str,
        group: str | None,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "isolation_level": isolation,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
            "max_poll_records": POLL_RECORDS_MAX,
        }
        self._moves = _Moves()
        self.client = KafkaConsumer(**known({**defaults, **settings_of(settings), **secured.python(security)}))

    def group_metadata(self) -> Any:
        return self.client.group_metadata()

    def assign(self, starts: Mapping[Place, int]) -> None:
        self.client.assign([TopicPartition(*place) for place in starts])
        for place, offset in starts.items():
            self.client.seek(TopicPartition(*place), offset)

    def subscribe(self, topics: Sequence[str]) -> None:
        """A member that joins before it has heard of the topic assigns itself nothing, and 3.0.12 does not always join
        again when it has heard (with Kafka, too): so it hears first."""
        for topic in topics:
            self.client.partitions_for_topic(topic)
        self.client.subscribe(list(topics), listener=self._moves)

    def subscribe_pattern(self, pattern: str, by_broker: bool) -> None:
        assert not by_broker
        self.client.subscribe(pattern=pattern)

    def _poll(self, timeout_s: float) -> list[Any]:
        """3.0.12 joins again when its metadata has changed, and forgets that if the poll ends before the answer to its
        SyncGroup has come: without heartbeats or partitions it polls for ever (with Kafka, too). So it is reminded."""
        found = self.client.poll(timeout_ms=int(timeout_s * 1000))
        coordinator = self.client._coordinator
        if getattr(coordinator, "_join_task", None) is not None:  # since 3.0
            coordinator.request_rejoin()
        return [each for part in found.values() for each in part]

    def poll(self, timeout_s: float) -> list[Record]:
        return records_of(self._poll(timeout_s))

    def poll_messages(self, timeout_s: float) -> list[Message]:
        return messages_of(self._poll(timeout_s))

    def assignment(self) -> list[Place]:
        return [(each.topic, each.partition) for each in self.client.assignment()]

    def rebalanced(self) -> list[Place]:
        return self._moves.take()

    def generation(self) -> int:
        return -1 if IS_OLD else int(self.client.group_metadata().generation_id)

    def position(self, place: Place) -> int:
        return int(self.client.position(TopicPartition(*place)))

    def seek(self, place: Place, offset: int) -> None:
        self.client.seek(TopicPartition(*place), offset)

    def seek_to_beginning(self, place: Place) -> None:
        self.client.seek_to_beginning(TopicPartition(*place))

    def seek_to_end(self, place: Place) -> None:
        self.client.seek_to_end(TopicPartition(*place))

    def pause(self, place: Place) -> None:
        self.client.pause(TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self.client.resume(TopicPartition(*place))

    def bounds(self, place: Place) -> tuple[int, int]:
        partition = TopicPartition(*place)
        return self.client.beginning_offsets([partition])[partition], self.client.end_offsets([partition])[partition]

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        partition = TopicPartition(*place)
        found = self.client.offsets_for_times({partition: time_ms})[partition]
        return None if found is None else int(found.offset)

    def committed(self, place: Place) -> int | None:
        found = self.client.committed(TopicPartition(*place))
        return None if found is None else int(found)

    def commit(self) -> None:
        self.client.commit()

    def commit_offsets(self, offsets: Mapping[Place, int], metadata: str) -> None:
        self.client.commit(
            {TopicPartition(*place): offset_and_metadata(offset, metadata) for place, offset in offsets.items()}
        )

    def leave(self) -> None:
        self.client.close()

    def close(self) -> None:
        self.client.close(autocommit=False)


class Admin:
    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        self.client = KafkaAdminClient(bootstrap_servers=bootstrap.split(","), **secured.python(security))

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        new = NewTopic(topic, partitions, replication, topic_configs=dict(config))
        answered(lambda: self.client.create_topics([new]))

    def delete(self, topic: str) -> None:
        answered(lambda: self.client.delete_topics([topic]))

    def topics(self) -> list[str]:
        return list(answered(self.client.list_topics))

    def describe(self, topic: str) -> dict[int, Replicas]:
        (found,) = answered(lambda: self.client.describe_topics([topic]))
        names = ("partition", "replicas", "isr") if IS_OLD else ("partition_index", "replica_nodes", "isr_nodes")
        parts = [[each[name] for name in names] for each in found["partitions"]]
        return {number: Replicas(replicas, in_sync) for number, replicas, in_sync in parts}

    def config(self, topic: str) -> dict[str, str]:
        resource = ConfigResource("topic", topic, None)
        if IS_OLD:
            (response,) = answered(lambda: self.client.describe_configs([resource]))
            ((_, _, _, _, entries),) = response.resources
            return {entry[0]: entry[1] for entry in entries}
        found = answered(lambda: self.client.describe_configs([resource], config_filter="all"))
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        answered(lambda: self.client.alter_configs([ConfigResource("topic", topic, dict(config))]))

    def add_partitions(self, topic: str, total: int) -> None:
        answered(lambda: self.client.create_partitions({topic: NewPartitions(total)}))

    def delete_records(self, place: Place, before: int) -> int:
        found = answered(lambda: self.client.delete_records({TopicPartition(*place): before}))
        return int(found[TopicPartition(*place)]["low_watermark"])

    def groups(self) -> list[str]:
        if IS_OLD:
            return [name for name, _ in answered(self.client.list_consumer_groups)]
        return [each["group_id"] for each in answered(self.client.list_groups)]

    def describe_group(self, group: str) -> Group:
        if IS_OLD:
            (old,) = answered(lambda: self.client.describe_consumer_groups([group]))
            return Group(old.state, [GroupMember(each.client_id, None) for each in old.members])
        found = answered(lambda: self.client.describe_groups([group]))[group]
        return Group(found["group_state"], [GroupMember(each["client_id"], None) for each in found["members"]])

    def delete_group(self, group: str) -> None:
        """Neither version raises; 2.1 and later tell an error's name only."""
        if IS_OLD:
            ((_, kind),) = answered(lambda: self.client.delete_consumer_groups([group]))
            name = kind.__name__
        else:
            name = str(answered(lambda: self.client.delete_groups([group]))[group])
        if name not in ("OK", "NoError"):
            raise Refused(getattr(errors, name).errno, name)

    def group_offsets(self, group: str) -> dict[Place, int]:
        if IS_OLD:
            found = answered(lambda: self.client.list_consumer_group_offsets(group))
        else:
            found = answered(lambda: self.client.list_group_offsets([group]))[group]
        return {tuple(partition): each.offset for partition, each in found.items()}

    def alter_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        wanted = {TopicPartition(*place): offset_and_metadata(offset) for place, offset in offsets.items()}
        answered(lambda: self.client.alter_group_offsets(group, wanted))

    def describe_cluster(self) -> Nodes:
        found = answered(self.client.describe_cluster)
        ids = [each["node_id"] if IS_OLD else each["broker_id"] for each in found["brokers"]]
        return Nodes(ids, found["controller_id"], found["cluster_id"])

    def close(self) -> None:
        self.client.close()
