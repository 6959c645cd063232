"""Java's own client, driven from Python (py4j, which Spark brings): producing, consuming, mistakes.

The jars are named by SEXTON_CLIENT_CLASSPATH. One JVM serves all scenarios of a version.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, find_jar_path, launch_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

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
Settings = Mapping[str, str | int]


@functools.cache
def gateway() -> Any:
    """A JVM of its own. It ends with this process."""
    classpath = os.environ["SEXTON_CLIENT_CLASSPATH"]
    options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    port = launch_gateway(
        classpath=classpath,
        jarpath=find_jar_path(),
        javaopts=options,
        die_on_exit=True,
        redirect_stdout=2,
        redirect_stderr=2,
    )
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=False))


def java() -> Any:
    """The JVM's packages as attributes."""
    return gateway().jvm


def kafka() -> Any:
    return java().org.apache.kafka


def properties(cluster: Cluster, settings: Settings) -> Any:
    found = java().java.util.Properties()
    for name, value in {"bootstrap.servers": cluster.bootstrap, **settings}.items():
        found.put(name, str(value))
    return found


def java_list(items: Iterable[Any]) -> Any:
    made = java().java.util.ArrayList()
    for item in items:
        made.add(item)
    return made


def java_map(items: Mapping[Any, Any]) -> Any:
    made = java().java.util.HashMap()
    for key, value in items.items():
        made.put(key, value)
    return made


def partition_of(topic: str, number: int = 0) -> Any:
    return kafka().common.TopicPartition(topic, number)


def wait(future: Any) -> Any:
    """What a KafkaFuture or a producer's future ends in."""
    return future.get(WAIT_S, java().java.util.concurrent.TimeUnit.SECONDS)


def is_missing(error: Exception) -> bool:
    """Whether the call failed because this version has no such method (py4j finds out only by calling)."""
    return isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError) and "does not exist" in str(error)


def describe(admin: Any, topic: str) -> Any:
    """The TopicDescription; the method has had its name since 3.1, the old one is gone in 4.0."""
    asked = admin.describeTopics(java_list([topic]))
    try:
        return wait(asked.allTopicNames()).get(topic)
    except Py4JError as error:
        if not is_missing(error):
            raise
        return wait(asked.all()).get(topic)


def cause_of(action: Callable[[], object]) -> str:
    """The simple name of the exception that it must end in."""
    thrown = raised_by(action, Py4JJavaError).java_exception
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return str(thrown.getClass().getSimpleName())


def admin_of(cluster: Cluster) -> Any:
    return kafka().clients.admin.AdminClient.create(properties(cluster, {}))


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str] | None = None) -> Any:
    return kafka().clients.admin.NewTopic(name, partitions, replication).configs(java_map(config or {}))


def create(cluster: Cluster, what: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A new topic, replicated, that has its leaders."""
    topic = cluster.name(what)
    admin = admin_of(cluster)
    try:
        new = new_topic(topic, partitions, cluster.replication, config)
        wait(admin.createTopics(java_list([new])).all())

        wait_for_topic(cluster, topic, partitions)
    finally:
        admin.close()
    return topic


def record_of(topic: str, value: bytes | None, key: bytes | None, partition: int | None, at_ms: int | None) -> Any:
    return kafka().clients.producer.ProducerRecord(topic, partition, at_ms, key, value, None)


def producer_of(cluster: Cluster, settings: Settings) -> Any:
    serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
    defaults: Settings = {
        "key.serializer": serializer,
        "value.serializer": serializer,
        "linger.ms": 5,
        "acks": "all",
        "retries": 10,
    }
    return kafka().clients.producer.KafkaProducer(properties(cluster, {**defaults, **settings}))


def produce(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes | None],
    settings: Settings | None = None,
    key: bytes | None = None,
    partition: int | None = None,
    at_ms: int | None = None,
) -> list[Any]:
    """Writes and returns the records' metadata; a failure raises."""
    producer = producer_of(cluster, settings or {})
    try:
        futures = [producer.send(record_of(topic, value, key, partition, at_ms)) for value in values]
        return [wait(future) for future in futures]
    finally:
        producer.close()


def consumer_of(cluster: Cluster, settings: Settings | None = None) -> Any:
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    defaults: Settings = {
        "key.deserializer": deserializer,
        "value.deserializer": deserializer,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "heartbeat.interval.ms": 200,
    }
    settings = {**defaults, **(settings or {})}
    if settings.get("group.protocol") == "consumer":
        settings = {name: value for name, value in settings.items() if name != "heartbeat.interval.ms"}
    return kafka().clients.consumer.KafkaConsumer(properties(cluster, settings))


def poll(consumer: Any, timeout_ms: int = 100) -> list[Any]:
    """With a Duration where there is one (since 2.0), else with a number."""
    try:
        found = consumer.poll(java().java.time.Duration.ofMillis(timeout_ms))
    except Py4JError as error:
        if not is_missing(error):
            raise
        found = consumer.poll(timeout_ms)
    return list(found.iterator())


def close_at_once(consumer: Any) -> None:
    """Without waiting for the fetch that is under way."""
    try:
        consumer.close(java().java.time.Duration.ofMillis(0))
    except Py4JError as error:  # before 2.0 it took a number and a unit
        if not is_missing(error):
            raise
        consumer.close(0, java().java.util.concurrent.TimeUnit.MILLISECONDS)


def take(consumer: Any, count: int, timeout_s: float = WAIT_S) -> list[Any]:
    """The next `count` records, or a few more; fewer only when time is up."""
    records: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline_s:
        records += poll(consumer)
    return records


def read(cluster: Cluster, topic: str, count: int, start: int = 0) -> list[Any]:
    """The first records of partition 0."""
    consumer = consumer_of(cluster)
    try:
        consumer.assign(java_list([partition_of(topic)]))
        consumer.seek(partition_of(topic), start)
        return take(consumer, count)
    finally:
        consumer.close()


def values_of(records: Iterable[Any]) -> list[bytes]:
    return [record.value() for record in records]


@scenarios("codecs")
def codecs(cluster: Cluster) -> None:
    topic = create(cluster, "codecs")
    has_zstd = not kafka().common.utils.AppInfoParser.getVersion().startswith("1.")  # since 2.1
    used = [codec for codec in CODECS if codec != "zstd" or has_zstd]
    expected = []
    for codec in used:
        values = text_of(codec)
        produce(cluster, topic, values, {"compression.type": codec})
        expected += values
    assert values_of(read(cluster, topic, len(expected))) == expected
    for own in [own for own in TOPIC_CODECS if own != "zstd" or has_zstd]:
        topic = create(cluster, own, config={"compression.type": own})
        for codec in ("none", "lz4"):
            produce(cluster, topic, text_of(codec), {"compression.type": codec})
        assert values_of(read(cluster, topic, 40)) == text_of("none") + text_of("lz4")


@scenarios("acks")
def acks(cluster: Cluster) -> None:
    topic = create(cluster, "acks")
    for count, level in enumerate(("all", "1", "0"), start=1):
        produce(cluster, topic, [level.encode()] * 3, {"acks": level, "enable.idempotence": "false"})
        assert len(read(cluster, topic, 3 * count)) == 3 * count
    assert values_of(read(cluster, topic, 9)) == [b"all"] * 3 + [b"1"] * 3 + [b"0"] * 3


@scenarios("idempotent")
def idempotent(cluster: Cluster) -> None:
    topic = create(cluster, "idempotent")
    written = produce(cluster, topic, numbers(200), {"enable.idempotence": "true", "linger.ms": 0, "batch.size": 100})
    assert [record.offset() for record in written] == list(range(200))
    assert values_of(read(cluster, topic, 200)) == numbers(200)


@scenarios("headers")
def headers(cluster: Cluster) -> None:
    topic = create(cluster, "headers")
    sent = [("trace", b"1"), ("trace", b"2"), ("empty", b""), ("none", None)]
    producer = producer_of(cluster, {})
    record = record_of(topic, b"v", None, None, None)
    for name, value in sent:
        record.headers().add(kafka().common.header.internals.RecordHeader(name, value))
    wait(producer.send(record))
    producer.close()
    (got,) = read(cluster, topic, 1)
    assert [(each.key(), each.value()) for each in got.headers().iterator()] == sent


@scenarios("nulls")
def nulls(cluster: Cluster) -> None:
    topic = create(cluster, "nulls")
    produce(cluster, topic, [None, b"", b"v"])
    produce(cluster, topic, [None, b"", b"v"], key=b"")
    got = [(record.key(), record.value()) for record in read(cluster, topic, 6)]
    assert got == [(None, None), (None, b""), (None, b"v"), (b"", None), (b"", b""), (b"", b"v")]


@scenarios("large")
def large(cluster: Cluster) -> None:
    topic = create(cluster, "large")
    values = [bytes([65 + number]) * LARGE_BYTES for number in range(4)]
    produce(cluster, topic, values)
    assert values_of(read(cluster, topic, 4)) == values


@scenarios("create_time")
def create_time(cluster: Cluster) -> None:
    topic = create(cluster, "create-time", config=KEPT)
    produce(cluster, topic, [b"v"], at_ms=PAST_MS)
    (record,) = read(cluster, topic, 1)
    assert (record.timestampType().toString(), record.timestamp()) == ("CreateTime", PAST_MS)


@scenarios("append_time")
def append_time(cluster: Cluster) -> None:
    topic = create(cluster, "append-time", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000 - 1_000
    (written,) = produce(cluster, topic, [b"v"], at_ms=PAST_MS)
    (record,) = read(cluster, topic, 1)
    assert record.timestampType().toString() == "LogAppendTime"
    assert before_ms <= record.timestamp() <= before_ms + 60_000
    assert written.timestamp() == record.timestamp()


@scenarios("positions")
def positions(cluster: Cluster) -> None:
    topic = create(cluster, "positions")
    produce(cluster, topic, numbers(10))
    assert values_of(read(cluster, topic, 3, start=7)) == numbers(3, 7)
    partition = partition_of(topic)
    consumer = consumer_of(cluster)
    try:
        consumer.assign(java_list([partition]))
        consumer.seekToBeginning(java_list([partition]))
        assert values_of(take(consumer, 10)) == numbers(10)
        consumer.seekToEnd(java_list([partition]))
        assert consumer.position(partition) == 10
        produce(cluster, topic, [b"new"])
        assert values_of(take(consumer, 1)) == [b"new"]
        consumer.seek(partition, 1_000)  # out of range: auto.offset.reset applies
        assert values_of(take(consumer, 11)) == [*numbers(10), b"new"]
        assert consumer.beginningOffsets(java_list([partition])).get(partition) == 0
        assert consumer.endOffsets(java_list([partition])).get(partition) == 11
    finally:
        consumer.close()


@scenarios("times")
def times(cluster: Cluster) -> None:
    topic = create(cluster, "times", config=KEPT)
    for number in range(5):
        produce(cluster, topic, [b"%d" % number], at_ms=PAST_MS + number * 1_000)
    partition = partition_of(topic)
    consumer = consumer_of(cluster)
    try:
        for asked_ms, offset in ((PAST_MS - 1, 0), (PAST_MS + 1_500, 2), (PAST_MS + 3_000, 3)):
            assert consumer.offsetsForTimes(java_map({partition: asked_ms})).get(partition).offset() == offset
        assert consumer.offsetsForTimes(java_map({partition: PAST_MS + 4_001})).get(partition) is None
    finally:
        consumer.close()


@scenarios("long_poll")
def long_poll(cluster: Cluster) -> None:
    topic = create(cluster, "long-poll")
    consumer = consumer_of(cluster, {"fetch.max.wait.ms": 20_000, "fetch.min.bytes": 1})
    try:
        consumer.assign(java_list([partition_of(topic)]))
        assert take(consumer, 1, timeout_s=1.0) == []
        started_s = time.monotonic()
        produce(cluster, topic, [b"v"])
        assert values_of(take(consumer, 1)) == [b"v"]
        assert time.monotonic() - started_s < 15, "the fetch was answered only when its time was up"
    finally:
        close_at_once(consumer)


@scenarios("pause")
def pause(cluster: Cluster) -> None:
    topic = create(cluster, "pause", partitions=2)
    consumer = consumer_of(cluster)
    try:
        first, second = partition_of(topic, 0), partition_of(topic, 1)
        consumer.assign(java_list([first, second]))
        consumer.pause(java_list([first]))
        for number in (0, 1):
            produce(cluster, topic, numbers(5), partition=number)
        assert {record.partition() for record in take(consumer, 6, timeout_s=1.0)} == {1}
        consumer.resume(java_list([first]))
        assert values_of(take(consumer, 5)) == numbers(5)
    finally:
        consumer.close()


@scenarios("sessions")
def sessions(cluster: Cluster) -> None:
    topic = create(cluster, "sessions", partitions=30)
    consumer = consumer_of(cluster)
    try:
        consumer.assign(java_list(partition_of(topic, number) for number in range(30)))
        for number in (3, 17, 3, 29, 0):
            produce(cluster, topic, [b"%d" % number], partition=number)
            (record,) = take(consumer, 1)
            assert (record.partition(), record.value()) == (number, b"%d" % number)
    finally:
        consumer.close()


# ---- Mistakes.


@scenarios("unknown_topic")
def unknown_topic(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    name = cluster.name("unknown")
    assert cause_of(lambda: describe(admin, name)) == "UnknownTopicOrPartitionException"
    admin.close()


@scenarios("existing_topic")
def existing_topic(cluster: Cluster) -> None:
    topic = create(cluster, "existing")
    admin = admin_of(cluster)
    wrong = {
        "TopicExistsException": new_topic(topic, 1, cluster.replication),
        "InvalidReplicationFactorException": new_topic(cluster.name("w"), 1, 100),
        "InvalidPartitionsException": new_topic(cluster.name("w"), 0, 1),
        "InvalidTopicException": new_topic("no/slash", 1, 1),
        "InvalidConfigurationException": new_topic(cluster.name("w"), 1, 1, {"retention.ms": "soon"}),
    }
    for name, new in wrong.items():
        creating = admin.createTopics(java_list([new])).all()
        assert cause_of(functools.partial(wait, creating)) == name
    admin.close()


@scenarios("too_large")
def too_large(cluster: Cluster) -> None:
    topic = create(cluster, "too-large")
    permissive = {"max.request.size": 10 * TOO_LARGE_BYTES}
    refused = cause_of(lambda: produce(cluster, topic, [b"x" * TOO_LARGE_BYTES], permissive))
    assert refused == "RecordTooLargeException"
    (written,) = produce(cluster, topic, [b"small"])
    assert written.offset() == 0


@scenarios("keyless_compacted")
def keyless_compacted(cluster: Cluster) -> None:
    topic = create(cluster, "compacted", config={"cleanup.policy": "compact"})
    refused = cause_of(lambda: produce(cluster, topic, [b"v"]))
    # Clients before 2.4 have no name for the error.
    assert refused in ("InvalidRecordException", "UnknownServerException"), refused
    (written,) = produce(cluster, topic, [b"v"], key=b"k")
    assert written.offset() == 0
    if kafka().common.utils.AppInfoParser.getVersion()[0] >= "3":
        others = "KafkaException"  # they may be sent again
        assert fates_in_one_batch(cluster, topic, [b"k", None, b"k"]) == [others, refused, others]


def fates_in_one_batch(cluster: Cluster, topic: str, keys: Sequence[bytes | None]) -> list[str]:
    producer = producer_of(cluster, {"linger.ms": 500})
    try:
        futures = [producer.send(record_of(topic, b"v", key, 0, None)) for key in keys]
        return [cause_of(functools.partial(wait, future)) for future in futures]
    finally:
        producer.close()
