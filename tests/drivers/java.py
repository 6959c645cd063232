"""Java's own client, driven from Python: one JVM for all producers and consumers of a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from tests.drivers.base import (
    ABORT,
    CALL_TIMEOUT_S,
    FATAL,
    FENCED,
    RETRY,
    Failure,
    Place,
    Record,
    Settings,
)
from tests.interop.scenarios.java_client import is_missing, java, java_list, java_map, kafka, partition_of

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
        thrown = raised.java_exception
        causes = [thrown]
        while causes[-1].getCause() is not None:
            causes.append(causes[-1].getCause())
        names = [str(each.getClass().getSimpleName()) for each in causes]
        if any(name in FENCING for name in names):
            todo = FENCED
        elif any(name in FATAL_NAMES for name in names):
            todo = FATAL
        else:
            todo = RETRY if names[0] in WAITING else ABORT
        raise Failure(todo, names[-1], "; ".join(str(each.getMessage()) for each in causes)) from None


def properties(bootstrap: str, settings: Settings) -> Any:
    found = java().java.util.Properties()
    for name, value in {"bootstrap.servers": bootstrap, **settings}.items():
        found.put(name, str(value).lower() if isinstance(value, bool) else str(value))
    return found


class Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, settings: Settings) -> None:
        defaults: Settings = {
            "key.serializer": SERIALIZER,
            "value.serializer": SERIALIZER,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 5,
            "max.block.ms": int(CALL_TIMEOUT_S * 1000),
        }
        self._producer = kafka().clients.producer.KafkaProducer(properties(bootstrap, {**defaults, **settings}))
        self._sent: list[Any] = []

    def init(self) -> None:
        told(self._producer.initTransactions)

    def begin(self) -> None:
        told(self._producer.beginTransaction)
        self._sent = []

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        for value in values:
            record = kafka().clients.producer.ProducerRecord(topic, partition, None, value)
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
        try:
            self._producer.close(java().java.time.Duration.ofMillis(0))
        except Py4JError as error:  # before 2.0 it took a number and a unit
            if not is_missing(error):
                raise
            self._producer.close(0, java().java.util.concurrent.TimeUnit.MILLISECONDS)


class Consumer:
    def __init__(self, bootstrap: str, isolation: str, group: str | None, settings: Settings) -> None:
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
        self.client = kafka().clients.consumer.KafkaConsumer(properties(bootstrap, {**defaults, **settings}))

    def group_metadata(self) -> Any:
        """Before KIP-447 (2.5) a group's name was all that a producer was told."""
        try:
            return self.client.groupMetadata()
        except Py4JError as error:
            if not is_missing(error):
                raise
            return self.group

    def assign(self, starts: Mapping[Place, int]) -> None:
        self.client.assign(java_list([partition_of(*place) for place in starts]))
        for place, offset in starts.items():
            self.client.seek(partition_of(*place), offset)

    def subscribe(self, topics: Sequence[str]) -> None:
        self.client.subscribe(java_list(topics))

    def poll(self, timeout_s: float) -> list[Record]:
        timeout_ms = int(timeout_s * 1000)
        try:
            found = told(lambda: self.client.poll(java().java.time.Duration.ofMillis(timeout_ms)))
        except Py4JError as error:
            if not is_missing(error):
                raise
            found = told(lambda: self.client.poll(timeout_ms))
        return [
            Record(str(each.topic()), int(each.partition()), int(each.offset()), bytes(each.value()))
            for each in found.iterator()
        ]

    def assignment(self) -> list[Place]:
        return [(str(each.topic()), int(each.partition())) for each in self.client.assignment()]

    def position(self, place: Place) -> int:
        return int(told(lambda: self.client.position(partition_of(*place))))

    def seek(self, place: Place, offset: int) -> None:
        self.client.seek(partition_of(*place), offset)

    def committed(self, place: Place) -> int | None:
        """Of one partition; newer clients know the question for several only."""
        partition = partition_of(*place)
        wanted = java().java.util.Collections.singleton(partition)
        try:
            found = told(lambda: self.client.committed(wanted)).get(partition)
        except Py4JError as error:
            if not is_missing(error):
                raise
            found = told(lambda: self.client.committed(partition))
        return None if found is None else int(found.offset())

    def commit(self) -> None:
        told(self.client.commitSync)

    def close(self) -> None:
        try:
            self.client.close(java().java.time.Duration.ofMillis(0))
        except Py4JError as error:
            if not is_missing(error):
                raise
            self.client.close(0, java().java.util.concurrent.TimeUnit.MILLISECONDS)


class Frozen:
    """A member of a group as it was: what its producer would tell if it had not heard of a rebalance."""

    def __init__(self, consumer: Consumer) -> None:
        self._metadata = consumer.group_metadata()

    def group_metadata(self) -> Any:
        return self._metadata
