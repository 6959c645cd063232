"""Java's own client, driven from Python: one JVM for all producers and consumers of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from sexton.verify.clients import secured
from sexton.verify.clients.base import (
    ABORT,
    CALL_TIMEOUT_S,
    FATAL,
    FENCED,
    INCREMENTAL,
    INVALID_RECORD,
    RETRY,
    ZSTD,
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
from sexton.verify.clients.jvm import (
    causes_of,
    client_version,
    close_at_once,
    first_known,
    gateway,
    java,
    java_list,
    java_map,
    kafka,
    name_of,
    partition_of,
    properties,
    wait,
)

if TYPE_CHECKING:
    from sexton.client.security.properties import Security

POLL_S = 0.1
ISOLATION = "read_uncommitted"
EAGER: Settings = {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"}
COOPERATIVE: Settings = {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"}

CODES = {
    "UnknownServerException": -1,
    "UnknownTopicOrPartitionException": 3,
    "RecordTooLargeException": 10,
    "InvalidTopicException": 17,
    "TopicExistsException": 36,
    "InvalidPartitionsException": 37,
    "InvalidReplicationFactorException": 38,
    "InvalidConfigurationException": 40,
    "GroupNotEmptyException": 68,
    "InvalidRecordException": 87,
}
"""What its exceptions are called: of those that tests ask for."""

SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"
DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"

FENCING = ("ProducerFencedException", "FencedInstanceIdException")
"""Not InvalidProducerEpochException: since 2.7 (KIP-588) an abort finds out whether the producer is fenced."""
WAITING = ("TimeoutException", "InterruptException")
FATAL_NAMES = (
    "OutOfOrderSequenceException",
    "AuthorizationException",
    "UnsupportedVersionException",
    "IllegalStateException",
    "InvalidPidMappingException",
    "InvalidTxnTimeoutException",
)


def prepare() -> None:
    """Starts the JVM, before several threads would."""
    java()


def told(action: Callable[[], Any]) -> Any:
    """As the documentation of KafkaProducer tells applications: fenced and a few others close it, the rest aborts."""
    try:
        return action()
    except Py4JJavaError as raised:
        causes = causes_of(raised)
        names = [name_of(each) for each in causes]
        if any(name in FENCING for name in names):
            todo = FENCED
        elif any(name in FATAL_NAMES for name in names):
            todo = FATAL
        else:
            todo = RETRY if names[0] in WAITING else ABORT
        raise Failure(todo, names[-1], "; ".join(str(each.getMessage()) for each in causes)) from None


def answered(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Py4JJavaError as raised:
        name = name_of(causes_of(raised)[-1])
        raise Refused(CODES.get(name), name) from None


def lacks() -> frozenset[str]:
    since = {ZSTD: (2, 1), ZSTD_TOPICS: (2, 1), INCREMENTAL: (2, 3), INVALID_RECORD: (2, 4)}
    return frozenset(what for what, version in since.items() if client_version() < version)


def producer_of(bootstrap: str, settings: Settings) -> Any:
    defaults: Settings = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER, "linger.ms": 5}
    return kafka().clients.producer.KafkaProducer(properties(bootstrap, {**defaults, **settings}))


def record_of(topic: str, value: bytes | None, given: Attributes) -> Any:
    record = kafka().clients.producer.ProducerRecord(topic, given.partition, given.at_ms, given.key, value, None)
    for name, content in given.headers:
        record.headers().add(kafka().common.header.internals.RecordHeader(name, content))
    return record


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | None], given: Attributes, settings: Settings
) -> list[Written]:
    producer = producer_of(bootstrap, {"acks": "all", "retries": 10, **settings})
    try:
        futures = [producer.send(record_of(topic, value, given)) for value in values]
        found = [answered(partial(wait, future)) for future in futures]
        return [Written(each.partition(), each.offset(), each.timestamp(), None) for each in found]
    finally:
        producer.close()


class Producer:
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        defaults: dict[str, str | int | bool] = {"max.block.ms": int(CALL_TIMEOUT_S * 1000)}
        if transactional_id:
            defaults |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        else:
            defaults["enable.idempotence"] = True
        self._producer = producer_of(bootstrap, {**defaults, **settings, **secured.java(security)})
        self._is_transactional = bool(transactional_id)
        self._sent: list[Any] = []

    def init(self) -> None:
        if self._is_transactional:
            told(self._producer.initTransactions)

    def begin(self) -> None:
        told(self._producer.beginTransaction)
        self._sent = []

    def send(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        for value in values:
            record = record_of(topic, value, Attributes(key, partition, headers))
            self._sent.append(told(partial(self._producer.send, record)))

    def flush(self) -> list[int]:
        sent, self._sent = self._sent, []
        told(self._producer.flush)
        try:
            return [int(told(each.get).offset()) for each in sent]
        except Failure as failure:  # a record that was not delivered in time is not delivered by asking again
            raise Failure(ABORT, failure.name, failure.message) if failure.todo == RETRY else failure from None

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer | Frozen) -> None:
        make = kafka().clients.consumer.OffsetAndMetadata
        positions = java_map({partition_of(*place): make(offset) for place, offset in offsets.items()})
        told(lambda: self._producer.sendOffsetsToTransaction(positions, consumer.group_metadata()))

    def commit(self) -> None:
        told(self._producer.commitTransaction)

    def abort(self) -> None:
        told(self._producer.abortTransaction)

    def close(self) -> None:
        close_at_once(self._producer)


class Consumer:
    def __init__(
        self,
        bootstrap: str,
        isolation: str,
        group: str | None,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        self.group = group
        defaults: Settings = {
            "key.deserializer": DESERIALIZER,
            "value.deserializer": DESERIALIZER,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.max.wait.ms": 100,
            **({"group.id": group} if group else {}),
        }
        given = properties(bootstrap, {**defaults, **settings, **secured.java(security)})
        self.client = kafka().clients.consumer.KafkaConsumer(given)
        self._generation = -1
        self._had: set[Place] = set()

    def group_metadata(self) -> Any:
        """Before KIP-447 (2.5) a group's name was all that a producer was told."""
        return first_known(lambda: self.client.groupMetadata(), lambda: self.group)

    def assign(self, starts: Mapping[Place, int]) -> None:
        self.client.assign(java_list([partition_of(*place) for place in starts]))
        for place, offset in starts.items():
            self.client.seek(partition_of(*place), offset)

    def subscribe(self, topics: Sequence[str]) -> None:
        self.client.subscribe(java_list(topics))

    def subscribe_pattern(self, pattern: str, by_broker: bool) -> None:
        consumer = kafka().clients.consumer
        wanted = (consumer.SubscriptionPattern if by_broker else java().java.util.regex.Pattern.compile)(pattern)
        first_known(
            lambda: self.client.subscribe(wanted),
            lambda: self.client.subscribe(wanted, consumer.internals.NoOpConsumerRebalanceListener()),  # before 2.0
        )

    def _poll(self, timeout_s: float) -> list[Any]:
        """With a Duration where there is one (since 2.0), else with a number."""
        timeout_ms = int(timeout_s * 1000)
        found = first_known(
            lambda: told(lambda: self.client.poll(java().java.time.Duration.ofMillis(timeout_ms))),
            lambda: told(lambda: self.client.poll(timeout_ms)),
        )
        return list(found.iterator())

    def poll(self, timeout_s: float) -> list[Record]:
        return [
            Record(str(each.topic()), int(each.partition()), int(each.offset()), bytes(each.value()))
            for each in self._poll(timeout_s)
        ]

    def poll_messages(self, timeout_s: float) -> list[Message]:
        return [
            Message(
                topic=str(each.topic()),
                offset=int(each.offset()),
                partition=each.partition(),
                key=each.key(),
                value=each.value(),
                headers=[(header.key(), header.value()) for header in each.headers().iterator()],
                timestamp_ms=each.timestamp(),
                timestamp_type=each.timestampType().toString(),
            )
            for each in self._poll(timeout_s)
        ]

    def assignment(self) -> list[Place]:
        return [(str(each.topic()), int(each.partition())) for each in self.client.assignment()]

    def rebalanced(self) -> list[Place]:
        """All that it had and has, if it is in another generation: Java would have to call Python to tell more."""
        generation, has = self.generation(), set(self.assignment())
        moved = self._had | has if generation != self._generation else self._had ^ has
        self._generation, self._had = generation, has
        return sorted(moved)

    def generation(self) -> int:
        """Generation of the member; with KIP-848 the member epoch."""
        return int(first_known(lambda: self.client.groupMetadata().generationId(), lambda: -1))

    def position(self, place: Place) -> int:
        return int(told(lambda: self.client.position(partition_of(*place))))

    def seek(self, place: Place, offset: int) -> None:
        self.client.seek(partition_of(*place), offset)

    def seek_to_beginning(self, place: Place) -> None:
        self.client.seekToBeginning(java_list([partition_of(*place)]))

    def seek_to_end(self, place: Place) -> None:
        self.client.seekToEnd(java_list([partition_of(*place)]))

    def pause(self, place: Place) -> None:
        self.client.pause(java_list([partition_of(*place)]))

    def resume(self, place: Place) -> None:
        self.client.resume(java_list([partition_of(*place)]))

    def bounds(self, place: Place) -> tuple[int, int]:
        partition = partition_of(*place)
        first = self.client.beginningOffsets(java_list([partition])).get(partition)
        return first, self.client.endOffsets(java_list([partition])).get(partition)

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        partition = partition_of(*place)
        found = self.client.offsetsForTimes(java_map({partition: time_ms})).get(partition)
        return None if found is None else int(found.offset())

    def committed(self, place: Place) -> int | None:
        """Of one partition; newer clients know the question for several only."""
        partition = partition_of(*place)
        wanted = java().java.util.Collections.singleton(partition)
        found = first_known(
            lambda: told(lambda: self.client.committed(wanted)).get(partition),
            lambda: told(lambda: self.client.committed(partition)),
        )
        return None if found is None else int(found.offset())

    def commit(self) -> None:
        told(self.client.commitSync)

    def commit_offsets(self, offsets: Mapping[Place, int], metadata: str) -> None:
        make = kafka().clients.consumer.OffsetAndMetadata
        wanted = java_map({partition_of(*place): make(offset, metadata) for place, offset in offsets.items()})
        told(lambda: self.client.commitSync(wanted))

    def leave(self) -> None:
        self.client.close()

    def close(self) -> None:
        close_at_once(self.client)


class Admin:
    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        self.client = kafka().clients.admin.AdminClient.create(properties(bootstrap, secured.java(security)))

    def _all(self, result: Any) -> Any:
        """What the future ends in that is for all that were asked for."""
        return answered(lambda: wait(result.all()))

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        new = kafka().clients.admin.NewTopic(topic, partitions, replication).configs(java_map(config))
        self._all(self.client.createTopics(java_list([new])))

    def delete(self, topic: str) -> None:
        self._all(self.client.deleteTopics(java_list([topic])))

    def topics(self) -> list[str]:
        return list(wait(self.client.listTopics().names()))

    def describe(self, topic: str) -> dict[int, Replicas]:
        """The method has had its name since 3.1, the old one is gone in 4.0."""
        asked = self.client.describeTopics(java_list([topic]))
        found = answered(lambda: wait(first_known(lambda: asked.allTopicNames(), lambda: asked.all()))).get(topic)
        return {
            each.partition(): Replicas([node.id() for node in each.replicas()], [node.id() for node in each.isr()])
            for each in found.partitions()
        }

    def _resource(self, topic: str) -> Any:
        kind = kafka().common.config.ConfigResource
        return kind(kind.Type.TOPIC, topic)

    def config(self, topic: str) -> dict[str, str]:
        found = self._all(self.client.describeConfigs(java_list([self._resource(topic)]))).get(self._resource(topic))
        return {entry.name(): entry.value() for entry in found.entries().iterator()}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        classes = kafka().clients.admin
        entries = [classes.ConfigEntry(name, value) for name, value in config.items()]
        if INCREMENTAL in lacks():
            replaced = {self._resource(topic): classes.Config(java_list(entries))}
            self._all(self.client.alterConfigs(java_map(replaced)))
        else:
            change = [classes.AlterConfigOp(entry, classes.AlterConfigOp.OpType.SET) for entry in entries]
            self._all(self.client.incrementalAlterConfigs(java_map({self._resource(topic): java_list(change)})))

    def add_partitions(self, topic: str, total: int) -> None:
        more = kafka().clients.admin.NewPartitions.increaseTo(total)
        self._all(self.client.createPartitions(java_map({topic: more})))

    def delete_records(self, place: Place, before: int) -> int:
        """By RecordsToDelete.beforeOffset, which py4j does not find: a method of the object has the same name."""
        kinds = gateway().new_array(java().java.lang.Class, 1)
        kinds[0] = java().java.lang.Long.TYPE
        values = gateway().new_array(java().java.lang.Object, 1)
        values[0] = before
        found = java().java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        asked = java_map({partition_of(*place): found.getMethod("beforeOffset", kinds).invoke(None, values)})
        deleted = self.client.deleteRecords(asked).lowWatermarks().get(partition_of(*place))
        return int(answered(lambda: wait(deleted)).lowWatermark())

    def groups(self) -> list[str]:
        return [each.groupId() for each in self._all(self.client.listConsumerGroups())]

    def describe_group(self, group: str) -> Group:
        found = self._all(self.client.describeConsumerGroups(java_list([group]))).get(group)
        members = [
            GroupMember(each.clientId(), [place.partition() for place in each.assignment().topicPartitions()])
            for each in found.members()
        ]
        return Group(found.state().toString(), members)

    def delete_group(self, group: str) -> None:
        self._all(self.client.deleteConsumerGroups(java_list([group])))

    def group_offsets(self, group: str) -> dict[Place, int]:
        asked = self.client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()
        found = answered(lambda: wait(asked))
        return {(place.topic(), place.partition()): found.get(place).offset() for place in found.keySet()}

    def alter_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        make = kafka().clients.consumer.OffsetAndMetadata
        wanted = java_map({partition_of(*place): make(offset) for place, offset in offsets.items()})
        self._all(self.client.alterConsumerGroupOffsets(group, wanted))

    def describe_cluster(self) -> Nodes:
        found = self.client.describeCluster()
        ids = [node.id() for node in wait(found.nodes()).iterator()]
        return Nodes(ids, wait(found.controller()).id(), wait(found.clusterId()))

    def close(self) -> None:
        self.client.close()
