"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import kafka.errors as errors
from kafka.structs import OffsetAndMetadata

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
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

FENCING = ("ProducerFencedError", "InvalidProducerEpochError")


def settings_of(settings: Settings) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in settings.items()}


def prepare() -> None:
    """Nothing is shared."""


class Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, settings: Settings) -> None:
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
            "linger_ms": 5,
            "max_block_ms": int(CALL_TIMEOUT_S * 1000),
        }
        self._producer = KafkaProducer(**{**defaults, **settings_of(settings)})
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
        self._told(self._producer.init_transactions)

    def begin(self) -> None:
        self._told(self._producer.begin_transaction)
        self._sent = []

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        for value in values:
            self._sent.append(self._told(partial(self._producer.send, topic, value, partition=partition)))

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
        positions = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        self._told(lambda: self._producer.send_offsets_to_transaction(positions, consumer.group_metadata()))

    def commit(self) -> None:
        self._told(self._producer.commit_transaction)

    def abort(self) -> None:
        if self._producer._transaction_manager._test_is_ready():
            return  # the new epoch has ended the transaction, and the client refuses to end it again
        self._told(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(0)


class Consumer:
    def __init__(self, bootstrap: str, isolation: str, group: str | None, settings: Settings) -> None:
        defaults: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "isolation_level": isolation,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
            "max_poll_records": 500,
        }
        self.client = KafkaConsumer(**{**defaults, **settings_of(settings)})

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
        self.client.subscribe(list(topics))

    def poll(self, timeout_s: float) -> list[Record]:
        found = self.client.poll(timeout_ms=int(timeout_s * 1000))
        return [Record(each.topic, each.partition, each.offset, each.value) for part in found.values() for each in part]

    def assignment(self) -> list[Place]:
        return [(each.topic, each.partition) for each in self.client.assignment()]

    def position(self, place: Place) -> int:
        return int(self.client.position(TopicPartition(*place)))

    def seek(self, place: Place, offset: int) -> None:
        self.client.seek(TopicPartition(*place), offset)

    def committed(self, place: Place) -> int | None:
        found = self.client.committed(TopicPartition(*place))
        return None if found is None else int(found)

    def commit(self) -> None:
        self.client.commit()

    def close(self) -> None:
        self.client.close(autocommit=False)


class Frozen:
    """A member of a group as it was: what its producer would tell if it had not heard of a rebalance."""

    def __init__(self, consumer: Consumer) -> None:
        self._metadata = consumer.group_metadata()

    def group_metadata(self) -> Any:
        return self._metadata
