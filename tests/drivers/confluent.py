"""librdkafka, through confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as ConfluentProducer

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


def prepare() -> None:
    """Nothing is shared."""


class Producer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, settings: Settings) -> None:
        self._producer = ConfluentProducer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 5,
                **QUIET,
                **settings,
            }
        )
        self._sent: list[int | KafkaError | None] = []

    def init(self) -> None:
        told(lambda: self._producer.init_transactions(CALL_TIMEOUT_S))

    def begin(self) -> None:
        told(self._producer.begin_transaction)
        self._sent = []

    def send(self, topic: str, partition: int, values: Sequence[bytes]) -> None:
        for value in values:
            told(partial(self._producer.produce, topic, value, partition=partition, callback=self._expect()))
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
            assert each is not None, "a delivery was never reported"
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


class Consumer:
    def __init__(self, bootstrap: str, isolation: str, group: str | None, settings: Settings) -> None:
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
                **settings,
            }
        )

    def group_metadata(self) -> Any:
        return self.client.consumer_group_metadata()

    def assign(self, starts: Mapping[Place, int]) -> None:
        self.client.assign([TopicPartition(*place, offset) for place, offset in starts.items()])

    def subscribe(self, topics: Sequence[str]) -> None:
        self.client.subscribe(list(topics))

    def poll(self, timeout_s: float) -> list[Record]:
        records = []
        messages: list[Any] = self.client.consume(500, timeout_s)
        for message in messages:
            error = message.error()
            if error is None:
                records.append(Record(message.topic(), message.partition(), message.offset(), message.value()))
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise failure_of(error)
        return records

    def assignment(self) -> list[Place]:
        return [(each.topic, each.partition) for each in self.client.assignment()]

    def position(self, place: Place) -> int:
        return int(self.client.position([TopicPartition(*place)])[0].offset)

    def seek(self, place: Place, offset: int) -> None:
        self.client.seek(TopicPartition(*place, offset))

    def committed(self, place: Place) -> int | None:
        found = told(lambda: self.client.committed([TopicPartition(*place)], CALL_TIMEOUT_S))[0].offset
        return None if found < 0 else int(found)

    def commit(self) -> None:
        told(lambda: self.client.commit(asynchronous=False))

    def close(self) -> None:
        self.client.close()


class Frozen:
    """A member of a group as it was: what its producer would tell if it had not heard of a rebalance."""

    def __init__(self, consumer: Consumer) -> None:
        self._metadata = consumer.group_metadata()

    def group_metadata(self) -> Any:
        return self._metadata
