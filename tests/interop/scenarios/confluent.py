"""confluent-kafka (librdkafka): producing, consuming, mistakes. Groups and administration: confluent_groups."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.scenarios.common import (
    CODECS,
    KEPT,
    LARGE_BYTES,
    PAST_MS,
    TOO_LARGE_BYTES,
    TOPIC_CODECS,
    WAIT_S,
    Cluster,
    Scenarios,
    numbers,
    raised_by,
    text_of,
    wait_for_topic,
)

scenarios = Scenarios()
Settings = Mapping[str, Any]


def admin_of(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def create(cluster: Cluster, what: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A new topic, replicated, that has its leaders."""
    topic = cluster.name(what)
    admin = admin_of(cluster)
    new = NewTopic(topic, partitions, cluster.replication, config=dict(config or {}))
    admin.create_topics([new])[topic].result(WAIT_S)

    wait_for_topic(cluster, topic, partitions)
    return topic


def produce(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes | None],
    settings: Settings | None = None,
    **options: Any,
) -> list[Any]:
    """Writes and returns the delivered messages; a failure raises."""
    delivered: list[Any] = []
    failures: list[KafkaError] = []

    def report(error: KafkaError | None, message: Any) -> None:
        failures.append(error) if error else delivered.append(message)

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, **(settings or {})})
    for value in values:
        producer.produce(topic, value=value, on_delivery=report, **options)
    assert producer.flush(WAIT_S) == 0, "not all records were acknowledged in time"
    if failures:
        raise KafkaException(failures[0])
    return delivered


def consumer_of(cluster: Cluster, group: str, settings: Settings | None = None) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **(settings or {}),
        }
    )


def take(consumer: Consumer, count: int, timeout_s: float = WAIT_S) -> list[Any]:
    """The next `count` messages; fewer only when time is up."""
    messages: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(messages) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(count - len(messages), timeout=0.2):
            if message.error() is not None:
                raise KafkaException(message.error())
            messages.append(message)
    return messages


def read(cluster: Cluster, topic: str, count: int, start: int = OFFSET_BEGINNING) -> list[Any]:
    """The first messages of partition 0."""
    consumer = consumer_of(cluster, cluster.name("reader"))
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        return take(consumer, count)
    finally:
        consumer.close()


def values_of(messages: Sequence[Any]) -> list[bytes]:
    return [message.value() for message in messages]


@scenarios("codecs")
def codecs(cluster: Cluster) -> None:
    topic = create(cluster, "codecs")
    expected = []
    for codec in CODECS:
        values = text_of(codec)
        produce(cluster, topic, values, {"compression.type": codec})
        expected += values
    assert values_of(read(cluster, topic, len(expected))) == expected
    for own in TOPIC_CODECS:
        topic = create(cluster, own, config={"compression.type": own})
        for codec in ("none", "lz4"):
            produce(cluster, topic, text_of(codec), {"compression.type": codec})
        large = [random.Random(number).randbytes(100_000) for number in range(20)]
        produce(cluster, topic, large, {"enable.idempotence": True, "batch.size": 200_000})
        assert values_of(read(cluster, topic, 60)) == text_of("none") + text_of("lz4") + large


@scenarios("acks")
def acks(cluster: Cluster) -> None:
    topic = create(cluster, "acks")
    for level in ("all", "1", "0"):
        produce(cluster, topic, [level.encode()] * 3, {"acks": level})
        assert len(read(cluster, topic, 3)) == 3  # what was not acknowledged arrives as well, in its place
    assert values_of(read(cluster, topic, 9)) == [b"all"] * 3 + [b"1"] * 3 + [b"0"] * 3


@scenarios("idempotent")
def idempotent(cluster: Cluster) -> None:
    topic = create(cluster, "idempotent")
    delivered = produce(
        cluster, topic, numbers(500), {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 10}
    )
    assert [message.offset() for message in delivered] == list(range(500))
    assert values_of(read(cluster, topic, 500)) == numbers(500)


@scenarios("headers")
def headers(cluster: Cluster) -> None:
    topic = create(cluster, "headers")
    sent = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("none", None)]
    produce(cluster, topic, [b"v"], headers=sent)
    (message,) = read(cluster, topic, 1)
    assert message.headers() == sent


@scenarios("nulls")
def nulls(cluster: Cluster) -> None:
    topic = create(cluster, "nulls")
    produce(cluster, topic, [None, b"", b"v"], key=None)
    produce(cluster, topic, [None, b"", b"v"], key=b"")
    got = [(message.key(), message.value()) for message in read(cluster, topic, 6)]
    # librdkafka gives an empty key or value back as empty, and a null as None.
    assert got == [(None, None), (None, b""), (None, b"v"), (b"", None), (b"", b""), (b"", b"v")]


@scenarios("large")
def large(cluster: Cluster) -> None:
    topic = create(cluster, "large")
    values = [bytes([65 + number]) * LARGE_BYTES for number in range(8)]
    produce(cluster, topic, values, {"message.max.bytes": 1_000_012})
    assert values_of(read(cluster, topic, 8)) == values


@scenarios("create_time")
def create_time(cluster: Cluster) -> None:
    topic = create(cluster, "create-time", config=KEPT)
    produce(cluster, topic, [b"v"], timestamp=PAST_MS)
    (message,) = read(cluster, topic, 1)
    assert message.timestamp() == (1, PAST_MS)


@scenarios("append_time")
def append_time(cluster: Cluster) -> None:
    topic = create(cluster, "append-time", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000 - 1_000
    (delivered,) = produce(cluster, topic, [b"v"], timestamp=PAST_MS)
    (message,) = read(cluster, topic, 1)
    kind, stamp_ms = message.timestamp()
    assert kind == 2
    assert before_ms <= stamp_ms <= before_ms + 60_000
    assert delivered.timestamp() == (2, stamp_ms)


@scenarios("positions")
def positions(cluster: Cluster) -> None:
    topic = create(cluster, "positions")
    produce(cluster, topic, numbers(10))
    assert values_of(read(cluster, topic, 10)) == numbers(10)
    assert values_of(read(cluster, topic, 3, start=7)) == numbers(3, 7)
    consumer = consumer_of(cluster, cluster.name("positions"))
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert take(consumer, 1, timeout_s=0.5) == []
        produce(cluster, topic, [b"new"])
        assert values_of(take(consumer, 1)) == [b"new"]
        consumer.seek(TopicPartition(topic, 0, 5))
        assert values_of(take(consumer, 1)) == [b"5"]
        consumer.seek(TopicPartition(topic, 0, 1_000))  # out of range: auto.offset.reset applies
        assert values_of(take(consumer, 1)) == [b"0"]
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S) == (0, 11)
    finally:
        consumer.close()


@scenarios("times")
def times(cluster: Cluster) -> None:
    topic = create(cluster, "times", config=KEPT)
    for number in range(5):
        produce(cluster, topic, [b"%d" % number], timestamp=PAST_MS + number * 1_000)
    consumer = consumer_of(cluster, cluster.name("times"))
    try:
        for asked_ms, offset in ((0, 0), (PAST_MS + 1_500, 2), (PAST_MS + 3_000, 3), (PAST_MS + 4_001, OFFSET_END)):
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, asked_ms)], timeout=WAIT_S)
            assert found.offset == offset, (asked_ms, found)
    finally:
        consumer.close()


@scenarios("long_poll")
def long_poll(cluster: Cluster) -> None:
    topic = create(cluster, "long-poll")
    settings = {"fetch.wait.max.ms": 20_000, "fetch.min.bytes": 1, "socket.timeout.ms": 60_000}
    consumer = consumer_of(cluster, cluster.name("long-poll"), settings)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert take(consumer, 1, timeout_s=1.0) == []
        started_s = time.monotonic()
        produce(cluster, topic, [b"v"])
        assert values_of(take(consumer, 1)) == [b"v"]
        assert time.monotonic() - started_s < 15, "the fetch was answered only when its time was up"
    finally:
        consumer.close()


@scenarios("pause")
def pause(cluster: Cluster) -> None:
    topic = create(cluster, "pause", partitions=2)
    consumer = consumer_of(cluster, cluster.name("pause"))
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in (0, 1)])
        consumer.pause([TopicPartition(topic, 0)])
        for number in (0, 1):
            produce(cluster, topic, numbers(5), partition=number)
        assert {message.partition() for message in take(consumer, 6, timeout_s=1.0)} == {1}
        consumer.resume([TopicPartition(topic, 0)])
        assert values_of(take(consumer, 5)) == numbers(5)
    finally:
        consumer.close()


@scenarios("sessions")
def sessions(cluster: Cluster) -> None:
    topic = create(cluster, "sessions", partitions=30)
    consumer = consumer_of(cluster, cluster.name("sessions"))
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(30)])
        for number in (3, 17, 3, 29, 0):
            produce(cluster, topic, [b"%d" % number], partition=number)
            (message,) = take(consumer, 1)
            assert (message.partition(), message.value()) == (number, b"%d" % number)
    finally:
        consumer.close()


def code_of(action: Callable[[], object]) -> int:
    """The code of the error that it must end in."""
    code: int = raised_by(action, KafkaException).args[0].code()
    return code


@scenarios("unknown_topic")
def unknown_topic(cluster: Cluster) -> None:
    consumer = consumer_of(cluster, cluster.name("unknown"), {"allow.auto.create.topics": False})
    try:
        consumer.subscribe([cluster.name("unknown")])
        assert code_of(lambda: take(consumer, 1)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    finally:
        consumer.close()


@scenarios("too_large")
def too_large(cluster: Cluster) -> None:
    topic = create(cluster, "too-large")
    permissive = {"message.max.bytes": 10 * TOO_LARGE_BYTES}
    refused = code_of(lambda: produce(cluster, topic, [b"x" * TOO_LARGE_BYTES], permissive))
    assert refused == KafkaError.MSG_SIZE_TOO_LARGE
    (delivered,) = produce(cluster, topic, [b"small"])
    assert delivered.offset() == 0


@scenarios("keyless_compacted")
def keyless_compacted(cluster: Cluster) -> None:
    topic = create(cluster, "compacted", config={"cleanup.policy": "compact"})
    assert code_of(lambda: produce(cluster, topic, [b"v"])) == KafkaError.INVALID_RECORD
    (delivered,) = produce(cluster, topic, [b"v"], key=b"k")
    assert delivered.offset() == 0
