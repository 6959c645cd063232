"""librdkafka, through confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from sexton.verify.clients import secured
from sexton.verify.clients.base import (
    ABORT,
    CALL_TIMEOUT_S,
    CREATE_TIME,
    FATAL,
    FENCED,
    INCREMENTAL,
    LOG_APPEND_TIME,
    RETRY,
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

POLL_S = 0.1
ISOLATION = "read_committed"
EAGER: Settings = {}
COOPERATIVE: Settings = {"partition.assignment.strategy": "cooperative-sticky"}

TIMESTAMP_TYPES = ("", CREATE_TIME, LOG_APPEND_TIME)
OWN_NAMES = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}

POLL_RECORDS_MAX = 500
"""Of one poll: it has no such setting."""

QUIET = {"log_level": 2}
"""That brokers are down is what tests are about."""


PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""What a record that never left is told when its transaction is lost for another reason."""


def failure_of(error: KafkaError) -> Failure:
    if error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH) and error.fatal():
        todo = FENCED
    elif error.fatal():
        todo = FATAL
    elif error.txn_requires_abort():
        todo = ABORT
    else:
        todo = RETRY if error.retriable() else FATAL
    return Failure(todo, error.name(), error.str())


def told(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except KafkaException as raised:
        raise failure_of(raised.args[0]) from None


def answered(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except KafkaException as raised:
        raise Refused(raised.args[0].code(), raised.args[0].name()) from None


def settings_of(settings: Settings) -> dict[str, Any]:
    return {OWN_NAMES.get(name, name): value for name, value in settings.items()}


def prepare() -> None:
    """Nothing is shared."""


def lacks() -> frozenset[str]:
    return frozenset({INCREMENTAL})


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | None], given: Attributes, settings: Settings
) -> list[Written]:
    told: list[tuple[KafkaError | None, Any]] = []
    options: dict[str, Any] = {"key": given.key, "headers": list(given.headers)}
    options |= {} if given.partition is None else {"partition": given.partition}
    options |= {} if given.at_ms is None else {"timestamp": given.at_ms}
    producer = ConfluentProducer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings_of(settings)})
    for value in values:
        producer.produce(topic, value=value, on_delivery=lambda *each: told.append(each), **options)
    assert producer.flush(CALL_TIMEOUT_S) == 0, "not all records were acknowledged in time"
    for error, _ in told:
        if error is not None:
            raise Refused(error.code(), error.name())
    written = []
    for _, message in told:
        kind, stamp_ms = message.timestamp()
        written.append(Written(message.partition(), message.offset(), stamp_ms, TIMESTAMP_TYPES[kind]))
    return written


class Producer:
    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        transactional = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                **(transactional if transactional_id else {"enable.idempotence": True}),
                "linger.ms": 5,
                **QUIET,
                **settings_of(settings),
                **secured.librdkafka(security),
            }
        )
        self._is_transactional = bool(transactional_id)
        self._sent: list[int | KafkaError | None] = []

    def init(self) -> None:
        if self._is_transactional:
            told(lambda: self._producer.init_transactions(CALL_TIMEOUT_S))

    def begin(self) -> None:
        told(self._producer.begin_transaction)
        self._sent = []

    def send(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        options: dict[str, Any] = {"partition": partition, "key": key, "headers": list(headers)}
        for value in values:
            told(partial(self._producer.produce, topic, value, callback=self._expect(), **options))
        self._producer.poll(0)

    def _expect(self) -> Callable[[KafkaError | None, Any], None]:
        place, sent = len(self._sent), self._sent
        sent.append(None)

        def delivered(error: KafkaError | None, message: Any) -> None:
            sent[place] = error if error is not None else message.offset()

        return delivered

    def flush(self) -> list[int]:
        told(lambda: self._producer.flush(CALL_TIMEOUT_S))
        sent, self._sent = self._sent, []
        offsets = []
        for each in sent:
            if isinstance(each, KafkaError):
                if each.code() in PURGED:
                    self.commit()  # it fails, and says why the transaction is lost
                raise failure_of(each) if each.fatal() else Failure(ABORT, each.name(), each.str())
            if each is None:
                raise Failure(RETRY, "_TIMED_OUT", "a delivery was not reported in time")
            offsets.append(each)
        return offsets

    def send_offsets(self, offsets: Mapping[Place, int], consumer: Consumer | Frozen) -> None:
        positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        metadata = consumer.group_metadata()
        told(lambda: self._producer.send_offsets_to_transaction(positions, metadata, CALL_TIMEOUT_S))

    def commit(self) -> None:
        told(lambda: self._producer.commit_transaction(CALL_TIMEOUT_S))

    def abort(self) -> None:
        told(lambda: self._producer.abort_transaction(CALL_TIMEOUT_S))

    def close(self) -> None:
        with suppress(KafkaException):  # once fatal, everything is
            self._producer.purge()
            self._producer.flush(0)


class Sending:
    """An idempotent producer with which several send at once: each is told what came of its own record, when `poll` is
    called."""

    def __init__(self, bootstrap: str, settings: Settings, security: Security | None = None) -> None:
        defaults: dict[str, Any] = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        secrets = secured.librdkafka(security)
        self._producer = ConfluentProducer({**defaults, **QUIET, **settings_of(settings), **secrets})

    def send(
        self,
        place: Place,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        done: Callable[[int | Failure], None],
    ) -> None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            done(message.offset() if error is None else failure_of(error))

        topic, partition = place
        try:
            self._producer.produce(topic, value, key, partition, delivered, headers=list(headers))
        except (KafkaException, BufferError) as raised:
            error = raised.args[0] if isinstance(raised, KafkaException) else None
            done(failure_of(error) if error is not None else Failure(RETRY, "_QUEUE_FULL", str(raised)))

    def poll(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)

    def close(self) -> None:
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(0)


def message_of(message: Any) -> Message:
    kind, stamp_ms = message.timestamp()
    return Message(  # by place: most of a run's time goes into these
        *(message.topic(), message.partition(), message.offset(), message.key(), message.value()),
        *(message.headers() or [], stamp_ms, TIMESTAMP_TYPES[kind]),
    )


class Consumer:
    def __init__(
        self,
        bootstrap: str,
        isolation: str,
        group: str | None,
        settings: Settings,
        security: Security | None = None,
    ) -> None:
        wanted = settings_of(settings)
        self._poll_records_max = int(wanted.pop("max.poll.records", POLL_RECORDS_MAX))
        self.client = ConfluentConsumer(
            {
                "bootstrap.servers": bootstrap,
                "isolation.level": isolation,
                "group.id": group or "nobody",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "fetch.wait.max.ms": 100,
                **QUIET,
                **wanted,
                **secured.librdkafka(security),
            }
        )
        self._moved: set[Place] = set()
        self._ends: dict[Place, int] = {}
        """Where it was told that there is nothing more: its position, which it does not tell itself."""

    def group_metadata(self) -> Any:
        return self.client.consumer_group_metadata()

    def assign(self, starts: Mapping[Place, int]) -> None:
        self._ends.clear()
        self.client.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def subscribe(self, topics: Sequence[str]) -> None:
        self.client.subscribe(list(topics), on_assign=self._move, on_revoke=self._move, on_lost=self._move)

    def _move(self, _: Any, partitions: Sequence[TopicPartition]) -> None:
        """Given or taken, while it polls. What it knew of where a log ends is of another time."""
        for each in partitions:
            self._moved.add((each.topic, each.partition))
            self._ends.pop((each.topic, each.partition), None)

    def subscribe_pattern(self, pattern: str, by_broker: bool) -> None:
        """Who matches it follows from the group's protocol."""
        self.client.subscribe([pattern])

    def _poll(self, timeout_s: float) -> list[Any]:
        found = []
        messages: list[Any] = self.client.consume(1, timeout_s)  # it would wait for all that it is asked for
        if messages:
            messages += self.client.consume(self._poll_records_max - 1, 0) if self._poll_records_max > 1 else []
        for message in messages:
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ends[message.topic(), message.partition()] = message.offset()
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise failure_of(error)
        return found

    def poll(self, timeout_s: float) -> list[Record]:
        return [Record(each.topic(), each.partition(), each.offset(), each.value()) for each in self._poll(timeout_s)]

    def poll_messages(self, timeout_s: float) -> list[Message]:
        return [message_of(each) for each in self._poll(timeout_s)]

    def assignment(self) -> list[Place]:
        return [(each.topic, each.partition) for each in self.client.assignment()]

    def rebalanced(self) -> list[Place]:
        found, self._moved = sorted(self._moved), set()
        return found

    def generation(self) -> int:
        """It does not tell."""
        return -1

    def position(self, place: Place) -> int:
        return max(int(self.client.position([TopicPartition(*place)])[0].offset), self._ends.get(place, OFFSET_INVALID))

    def seek(self, place: Place, offset: int) -> None:
        self._ends.pop(place, None)
        self.client.seek(TopicPartition(*place, offset))

    def seek_to_beginning(self, place: Place) -> None:
        self.seek(place, OFFSET_BEGINNING)

    def seek_to_end(self, place: Place) -> None:
        self.seek(place, OFFSET_END)

    def pause(self, place: Place) -> None:
        self.client.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self.client.resume([TopicPartition(*place)])

    def bounds(self, place: Place) -> tuple[int, int]:
        first, end = self.client.get_watermark_offsets(TopicPartition(*place), timeout=CALL_TIMEOUT_S)
        return first, end

    def offset_at(self, place: Place, time_ms: int) -> int | None:
        (found,) = self.client.offsets_for_times([TopicPartition(*place, time_ms)], timeout=CALL_TIMEOUT_S)
        return None if found.offset == OFFSET_END else int(found.offset)

    def committed(self, place: Place) -> int | None:
        found = told(lambda: self.client.committed([TopicPartition(*place)], CALL_TIMEOUT_S))[0].offset
        return None if found < 0 else int(found)

    def commit(self) -> None:
        told(lambda: self.client.commit(asynchronous=False))

    def commit_offsets(self, offsets: Mapping[Place, int], metadata: str) -> None:
        wanted = [TopicPartition(*place, offset, metadata=metadata) for place, offset in offsets.items()]
        told(lambda: self.client.commit(offsets=wanted, asynchronous=False))

    def leave(self) -> None:
        self.client.close()

    def close(self) -> None:
        self.client.close()


class Admin:
    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        self.client = AdminClient({"bootstrap.servers": bootstrap, **secured.librdkafka(security)})

    def _result(self, futures: Mapping[Any, Any]) -> Any:
        (future,) = futures.values()
        return answered(lambda: future.result(CALL_TIMEOUT_S))

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
        self._result(self.client.create_topics([NewTopic(topic, partitions, replication, config=dict(config))]))

    def delete(self, topic: str) -> None:
        self._result(self.client.delete_topics([topic]))

    def topics(self) -> list[str]:
        return list(self.client.list_topics(timeout=CALL_TIMEOUT_S).topics)

    def describe(self, topic: str) -> dict[int, Replicas]:
        found = self.client.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic].partitions
        return {number: Replicas(each.replicas, each.isrs) for number, each in found.items()}

    def config(self, topic: str) -> dict[str, str]:
        found = self._result(self.client.describe_configs([ConfigResource("topic", topic)]))
        return {name: entry.value for name, entry in found.items()}

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        self._result(self.client.alter_configs([ConfigResource("topic", topic, set_config=dict(config))]))

    def add_partitions(self, topic: str, total: int) -> None:
        self._result(self.client.create_partitions([NewPartitions(topic, total)]))

    def delete_records(self, place: Place, before: int) -> int:
        return int(self._result(self.client.delete_records([TopicPartition(*place, before)])).low_watermark)

    def groups(self) -> list[str]:
        listed = answered(lambda: self.client.list_consumer_groups().result(CALL_TIMEOUT_S))
        assert listed.errors == []
        return [each.group_id for each in listed.valid]

    def describe_group(self, group: str) -> Group:
        found = self._result(self.client.describe_consumer_groups([group]))
        members = [
            GroupMember(each.client_id, [place.partition for place in each.assignment.topic_partitions])
            for each in found.members
        ]
        return Group(found.state.name.capitalize(), members)

    def delete_group(self, group: str) -> None:
        self._result(self.client.delete_consumer_groups([group]))

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = self._result(self.client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {(each.topic, each.partition): each.offset for each in found.topic_partitions}

    def alter_group_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._result(self.client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))

    def describe_cluster(self) -> Nodes:
        found: Any = self.client.list_topics(timeout=CALL_TIMEOUT_S)
        return Nodes(list(found.brokers), found.controller_id, found.cluster_id)

    def close(self) -> None:
        """It has no such thing."""
