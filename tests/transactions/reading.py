"""What is in the log, read by one client that every test trusts: librdkafka, in the tests' own process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from sexton.verify.clients.base import Place, Record

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"
READ_TIMEOUT_S: Final = 120


def places_of(topics: Sequence[str], partitions: int = 1) -> list[Place]:
    return [(topic, number) for topic in topics for number in range(partitions)]


def read(bootstrap: str, places: Iterable[Place], isolation: str = COMMITTED) -> list[Record]:
    """All that can be read now: with `read_committed` up to the last stable offset of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reading",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
            "log_level": 2,
        }
    )
    waiting = set(places)
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    records = []
    try:
        consumer.assign([TopicPartition(*place, 0) for place in waiting])
        while waiting:
            assert time.monotonic() < deadline_s, f"never reached the end of {sorted(waiting)}"
            messages: list[Any] = consumer.consume(1_000, 0.2)
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(Record(message.topic(), message.partition(), message.offset(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard((message.topic(), message.partition()))
                else:
                    assert error.retriable() or error.code() == KafkaError._TRANSPORT, error.str()
    finally:
        consumer.close()
    return sorted(records)


def settled(bootstrap: str, places: Iterable[Place], timeout_s: float = READ_TIMEOUT_S) -> list[Record]:
    """What `read_committed` consumers read once no transaction is open in these any more.

    A commit returns when it is decided; a moment later every partition knows."""
    wanted = list(places)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    deadline_s = time.monotonic() + timeout_s
    while _ends(admin, wanted, IsolationLevel.READ_COMMITTED) != _ends(admin, wanted, IsolationLevel.READ_UNCOMMITTED):
        assert time.monotonic() < deadline_s, f"a transaction is open for more than {timeout_s:g} s in one of {wanted}"
        time.sleep(0.05)
    return read(bootstrap, wanted)


def _ends(admin: AdminClient, places: Iterable[Place], isolation: IsolationLevel) -> dict[Place, int]:
    asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
    answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=READ_TIMEOUT_S)
    return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}


def values(records: Iterable[Record]) -> list[bytes]:
    return [record.value for record in records]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]
