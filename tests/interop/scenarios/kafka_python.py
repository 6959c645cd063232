"""kafka-python, 2.0.2 and later: producing, consuming, mistakes. Groups and administration: kafka_python_groups."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

if sys.version_info >= (3, 12):  # kafka-python 2.0.2 carries a copy of six that such a Python cannot import from
    import types

    import six.moves  # type: ignore[import-untyped]

    sys.modules.setdefault("kafka.vendor.six.moves", types.ModuleType("kafka.vendor.six.moves"))
    sys.modules["kafka.vendor.six.moves"] = six.moves

from kafka.admin import KafkaAdminClient, NewTopic

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka import __version__ as kafka_version
from kafka import errors as kafka_errors
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


def servers(cluster: Cluster) -> list[str]:
    return cluster.bootstrap.split(",")


def admin_of(cluster: Cluster) -> Any:
    return KafkaAdminClient(bootstrap_servers=servers(cluster))


def described_partitions(admin: Any, topic: str) -> list[Mapping[str, Any]]:
    """The topic's partitions as the metadata has them now; none while it is unknown."""
    (described,) = admin.describe_topics([topic])
    partitions: list[Mapping[str, Any]] = described["partitions"]
    return partitions


def leader_of(partition: Mapping[str, Any]) -> int:
    leader: int = partition["leader_id"] if "leader_id" in partition else partition["leader"]
    return leader


def create(cluster: Cluster, what: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A new topic, replicated, that has its leaders."""
    topic = cluster.name(what)
    admin = admin_of(cluster)
    admin.create_topics([NewTopic(topic, partitions, cluster.replication, topic_configs=dict(config or {}))])

    wait_for_topic(cluster, topic, partitions)
    admin.close()
    return topic


def produce(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes | None],
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Writes and returns the records' metadata; a failure raises."""
    producer = KafkaProducer(bootstrap_servers=servers(cluster), **{"linger_ms": 5, "acks": "all", **(settings or {})})
    try:
        futures = [producer.send(topic, value=value, **options) for value in values]
        producer.flush(WAIT_S)
        return [future.get(WAIT_S) for future in futures]
    finally:
        producer.close()


def consumer_of(cluster: Cluster, group: str | None = None, **settings: Any) -> Any:
    return KafkaConsumer(
        bootstrap_servers=servers(cluster),
        **{"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings},
    )


def take(consumer: Any, count: int, timeout_s: float = WAIT_S) -> list[Any]:
    """The next `count` records; fewer only when time is up."""
    records: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline_s:
        for part in consumer.poll(timeout_ms=500, max_records=count - len(records)).values():
            records += part
    return records


def read(cluster: Cluster, topic: str, count: int, start: int = 0) -> list[Any]:
    """The first records of partition 0."""
    consumer = consumer_of(cluster)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), start)
        return take(consumer, count)
    finally:
        consumer.close()


def values_of(records: Iterable[Any]) -> list[bytes]:
    return [record.value for record in records]


@scenarios("codecs")
def codecs(cluster: Cluster) -> None:
    topic = create(cluster, "codecs")
    expected = []
    for codec in CODECS:
        values = text_of(codec)
        produce(cluster, topic, values, {"compression_type": None if codec == "none" else codec})
        expected += values
    assert values_of(read(cluster, topic, len(expected))) == expected
    knows_zstd = not kafka_version.startswith("2.0")  # which fetches in a version to which no zstd is given
    for own in [own for own in TOPIC_CODECS if own != "zstd" or knows_zstd]:
        topic = create(cluster, own, config={"compression.type": own})
        for codec in ("none", "lz4"):
            produce(cluster, topic, text_of(codec), {"compression_type": None if codec == "none" else codec})
        assert values_of(read(cluster, topic, 40)) == text_of("none") + text_of("lz4")


@scenarios("acks")
def acks(cluster: Cluster) -> None:
    topic = create(cluster, "acks")
    plain = {"enable_idempotence": False} if "enable_idempotence" in KafkaProducer.DEFAULT_CONFIG else {}
    for count, level in enumerate(("all", 1, 0), start=1):
        produce(cluster, topic, [str(level).encode()] * 3, {"acks": level, **plain})
        assert len(read(cluster, topic, 3 * count)) == 3 * count
    assert values_of(read(cluster, topic, 9)) == [b"all"] * 3 + [b"1"] * 3 + [b"0"] * 3


@scenarios("idempotent")
def idempotent(cluster: Cluster) -> None:
    topic = create(cluster, "idempotent")
    written = produce(cluster, topic, numbers(300), {"enable_idempotence": True, "linger_ms": 0, "batch_size": 100})
    assert [record.offset for record in written] == list(range(300))
    assert values_of(read(cluster, topic, 300)) == numbers(300)


@scenarios("headers")
def headers(cluster: Cluster) -> None:
    topic = create(cluster, "headers")
    sent = [("trace", b"1"), ("trace", b"2"), ("empty", b"")]
    produce(cluster, topic, [b"v"], headers=sent)
    (record,) = read(cluster, topic, 1)
    assert list(map(tuple, record.headers)) == sent


@scenarios("nulls")
def nulls(cluster: Cluster) -> None:
    topic = create(cluster, "nulls")
    produce(cluster, topic, [b"", b"v"], key=None)
    produce(cluster, topic, [None, b"", b"v"], key=b"k")
    got = [(record.key, record.value) for record in read(cluster, topic, 5)]
    assert got == [(None, b""), (None, b"v"), (b"k", None), (b"k", b""), (b"k", b"v")]


@scenarios("large")
def large(cluster: Cluster) -> None:
    topic = create(cluster, "large")
    values = [bytes([65 + number]) * LARGE_BYTES for number in range(8)]
    produce(cluster, topic, values)
    assert values_of(read(cluster, topic, 8)) == values


@scenarios("create_time")
def create_time(cluster: Cluster) -> None:
    topic = create(cluster, "create-time", config=KEPT)
    produce(cluster, topic, [b"v"], timestamp_ms=PAST_MS)
    (record,) = read(cluster, topic, 1)
    assert (record.timestamp_type, record.timestamp) == (0, PAST_MS)


@scenarios("append_time")
def append_time(cluster: Cluster) -> None:
    topic = create(cluster, "append-time", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000 - 1_000
    (written,) = produce(cluster, topic, [b"v"], timestamp_ms=PAST_MS)
    (record,) = read(cluster, topic, 1)
    assert record.timestamp_type == 1
    assert before_ms <= record.timestamp <= before_ms + 60_000
    assert written.timestamp == record.timestamp


@scenarios("positions")
def positions(cluster: Cluster) -> None:
    topic = create(cluster, "positions")
    produce(cluster, topic, numbers(10))
    assert values_of(read(cluster, topic, 3, start=7)) == numbers(3, 7)
    partition = TopicPartition(topic, 0)
    consumer = consumer_of(cluster)
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        assert values_of(take(consumer, 10)) == numbers(10)
        consumer.seek_to_end(partition)
        assert take(consumer, 1, timeout_s=0.5) == []
        assert consumer.position(partition) == 10
        produce(cluster, topic, [b"new"])
        assert values_of(take(consumer, 1)) == [b"new"]
        consumer.seek(partition, 1_000)  # out of range: auto_offset_reset applies
        assert values_of(take(consumer, 1)) == [b"0"]
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 11}
    finally:
        consumer.close()


@scenarios("times")
def times(cluster: Cluster) -> None:
    topic = create(cluster, "times", config=KEPT)
    for number in range(5):
        produce(cluster, topic, [b"%d" % number], timestamp_ms=PAST_MS + number * 1_000)
    partition = TopicPartition(topic, 0)
    consumer = consumer_of(cluster)
    try:
        for asked_ms, offset in ((0, 0), (PAST_MS + 1_500, 2), (PAST_MS + 3_000, 3)):
            assert consumer.offsets_for_times({partition: asked_ms})[partition].offset == offset
        assert consumer.offsets_for_times({partition: PAST_MS + 4_001})[partition] is None
    finally:
        consumer.close()


@scenarios("long_poll")
def long_poll(cluster: Cluster) -> None:
    topic = create(cluster, "long-poll")
    consumer = consumer_of(cluster, fetch_max_wait_ms=20_000, fetch_min_bytes=1)
    try:
        consumer.assign([TopicPartition(topic, 0)])
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
    consumer = consumer_of(cluster)
    try:
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        consumer.assign([first, second])
        consumer.pause(first)
        for number in (0, 1):
            produce(cluster, topic, numbers(5), partition=number)
        assert {record.partition for record in take(consumer, 6, timeout_s=1.0)} == {1}
        consumer.resume(first)
        assert values_of(take(consumer, 5)) == numbers(5)
    finally:
        consumer.close()


@scenarios("sessions")
def sessions(cluster: Cluster) -> None:
    topic = create(cluster, "sessions", partitions=30)
    consumer = consumer_of(cluster)
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(30)])
        for number in (3, 17, 3, 29, 0):
            produce(cluster, topic, [b"%d" % number], partition=number)
            (record,) = take(consumer, 1)
            assert (record.partition, record.value) == (number, b"%d" % number)
    finally:
        consumer.close()


# ---- Mistakes.


@scenarios("unknown_topic")
def unknown_topic(cluster: Cluster) -> None:
    topic = cluster.name("unknown")
    consumer = consumer_of(cluster)
    try:
        assert consumer.partitions_for_topic(topic) in (None, set())
    finally:
        consumer.close()
    admin = admin_of(cluster)
    raised_by(lambda: admin.delete_topics([topic]), kafka_errors.UnknownTopicOrPartitionError)
    admin.close()


@scenarios("too_large")
def too_large(cluster: Cluster) -> None:
    topic = create(cluster, "too-large")
    permissive = {"max_request_size": 10 * TOO_LARGE_BYTES}
    raised_by(
        lambda: produce(cluster, topic, [b"x" * TOO_LARGE_BYTES], permissive), kafka_errors.MessageSizeTooLargeError
    )
    (written,) = produce(cluster, topic, [b"small"])
    assert written.offset == 0


@scenarios("keyless_compacted")
def keyless_compacted(cluster: Cluster) -> None:
    topic = create(cluster, "compacted", config={"cleanup.policy": "compact"})
    error: Any = raised_by(lambda: produce(cluster, topic, [b"v"]), kafka_errors.KafkaError)
    assert error.errno in (87, -1), repr(error)  # INVALID_RECORD; 2.0.2 has no name for it
    (written,) = produce(cluster, topic, [b"v"], key=b"k")
    assert written.offset == 0
