"""aiokafka: all scenarios, as coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import __version__ as aiokafka_version
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

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
    text_of,
    wait_for_topic,
)

scenarios = Scenarios()


async def wait_for(reached: Callable[[], Awaitable[object]], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not await reached():
        assert time.monotonic() < deadline_s, f"waited {WAIT_S} s for {what}"
        await asyncio.sleep(0.05)


async def raised_in(action: Awaitable[object], kind: type[Exception]) -> Any:
    """The error that it must raise."""
    try:
        done = await action
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised; it returned {done!r}")


@asynccontextmanager
async def admin_of(cluster: Cluster) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@asynccontextmanager
async def consumer_of(cluster: Cluster, group: str | None = None, *topics: str, **settings: Any) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=cluster.bootstrap,
        **{"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings},
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def create(cluster: Cluster, what: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """A new topic, replicated, that has its leaders."""
    topic = cluster.name(what)
    async with admin_of(cluster) as admin:
        new = NewTopic(topic, partitions, cluster.replication, topic_configs=dict(config or {}))
        answer = await admin.create_topics([new])
        assert [each[1] for each in answer.topic_errors] == [0], answer

    await asyncio.to_thread(wait_for_topic, cluster, topic, partitions)
    return topic


async def produce(
    cluster: Cluster,
    topic: str,
    values: Iterable[bytes | None],
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    """Writes and returns the records' metadata; a failure raises."""
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, **{"linger_ms": 5, "acks": "all", **(settings or {})}
    )
    await producer.start()
    try:
        futures = [await producer.send(topic, value=value, **options) for value in values]
        return [await future for future in futures]
    finally:
        await producer.stop()


async def take(consumer: Any, count: int, timeout_s: float = WAIT_S) -> list[Any]:
    """The next `count` records; fewer only when time is up."""
    records: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline_s:
        for part in (await consumer.getmany(timeout_ms=200, max_records=count - len(records))).values():
            records += part
    return records


async def read(cluster: Cluster, topic: str, count: int, start: int = 0) -> list[Any]:
    """The first records of partition 0."""
    async with consumer_of(cluster) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), start)
        return await take(consumer, count)


def values_of(records: Iterable[Any]) -> list[bytes]:
    return [record.value for record in records]


@scenarios("codecs")
async def codecs(cluster: Cluster) -> None:
    topic = await create(cluster, "codecs")
    expected = []
    for codec in CODECS:
        values = text_of(codec)
        await produce(cluster, topic, values, {"compression_type": None if codec == "none" else codec})
        expected += values
    assert values_of(await read(cluster, topic, len(expected))) == expected
    knows_zstd = not aiokafka_version.startswith("0.8")  # which fetches in a version to which no zstd is given
    for own in [own for own in TOPIC_CODECS if own != "zstd" or knows_zstd]:
        topic = await create(cluster, own, config={"compression.type": own})
        for codec in ("none", "lz4"):
            await produce(cluster, topic, text_of(codec), {"compression_type": None if codec == "none" else codec})
        assert values_of(await read(cluster, topic, 40)) == text_of("none") + text_of("lz4")


@scenarios("acks")
async def acks(cluster: Cluster) -> None:
    topic = await create(cluster, "acks")
    for count, level in enumerate(("all", 1, 0), start=1):
        await produce(cluster, topic, [str(level).encode()] * 3, {"acks": level})
        assert len(await read(cluster, topic, 3 * count)) == 3 * count
    assert values_of(await read(cluster, topic, 9)) == [b"all"] * 3 + [b"1"] * 3 + [b"0"] * 3


@scenarios("idempotent")
async def idempotent(cluster: Cluster) -> None:
    topic = await create(cluster, "idempotent")
    settings = {"enable_idempotence": True, "linger_ms": 0, "max_batch_size": 200}
    written = await produce(cluster, topic, numbers(300), settings)
    assert [record.offset for record in written] == list(range(300))
    assert values_of(await read(cluster, topic, 300)) == numbers(300)


@scenarios("headers")
async def headers(cluster: Cluster) -> None:
    topic = await create(cluster, "headers")
    sent = [("trace", b"1"), ("trace", b"2"), ("empty", b"")]
    await produce(cluster, topic, [b"v"], headers=sent)
    (record,) = await read(cluster, topic, 1)
    assert list(map(tuple, record.headers)) == sent


@scenarios("nulls")
async def nulls(cluster: Cluster) -> None:
    topic = await create(cluster, "nulls")
    await produce(cluster, topic, [b"", b"v"], key=None)
    await produce(cluster, topic, [None, b"", b"v"], key=b"k")
    got = [(record.key, record.value) for record in await read(cluster, topic, 5)]
    assert got == [(None, b""), (None, b"v"), (b"k", None), (b"k", b""), (b"k", b"v")]


@scenarios("large")
async def large(cluster: Cluster) -> None:
    topic = await create(cluster, "large")
    values = [bytes([65 + number]) * LARGE_BYTES for number in range(8)]
    await produce(cluster, topic, values)
    assert values_of(await read(cluster, topic, 8)) == values


@scenarios("create_time")
async def create_time(cluster: Cluster) -> None:
    topic = await create(cluster, "create-time", config=KEPT)
    await produce(cluster, topic, [b"v"], timestamp_ms=PAST_MS)
    (record,) = await read(cluster, topic, 1)
    assert (record.timestamp_type, record.timestamp) == (0, PAST_MS)


@scenarios("append_time")
async def append_time(cluster: Cluster) -> None:
    topic = await create(cluster, "append-time", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000 - 1_000
    (written,) = await produce(cluster, topic, [b"v"], timestamp_ms=PAST_MS)
    (record,) = await read(cluster, topic, 1)
    assert record.timestamp_type == 1
    assert before_ms <= record.timestamp <= before_ms + 60_000
    assert (written.timestamp_type, written.timestamp) == (1, record.timestamp)


@scenarios("positions")
async def positions(cluster: Cluster) -> None:
    topic = await create(cluster, "positions")
    await produce(cluster, topic, numbers(10))
    assert values_of(await read(cluster, topic, 3, start=7)) == numbers(3, 7)
    partition = TopicPartition(topic, 0)
    async with consumer_of(cluster) as consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        assert values_of(await take(consumer, 10)) == numbers(10)
        await consumer.seek_to_end(partition)
        assert await take(consumer, 1, timeout_s=0.5) == []
        assert await consumer.position(partition) == 10
        await produce(cluster, topic, [b"new"])
        assert values_of(await take(consumer, 1)) == [b"new"]
        consumer.seek(partition, 1_000)  # out of range: auto_offset_reset applies
        assert values_of(await take(consumer, 1)) == [b"0"]
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 11}


@scenarios("times")
async def times(cluster: Cluster) -> None:
    topic = await create(cluster, "times", config=KEPT)
    for number in range(5):
        await produce(cluster, topic, [b"%d" % number], timestamp_ms=PAST_MS + number * 1_000)
    partition = TopicPartition(topic, 0)
    async with consumer_of(cluster) as consumer:
        consumer.assign([partition])
        for asked_ms, offset in ((0, 0), (PAST_MS + 1_500, 2), (PAST_MS + 3_000, 3)):
            assert (await consumer.offsets_for_times({partition: asked_ms}))[partition].offset == offset
        assert (await consumer.offsets_for_times({partition: PAST_MS + 4_001}))[partition] is None


@scenarios("long_poll")
async def long_poll(cluster: Cluster) -> None:
    topic = await create(cluster, "long-poll")
    async with consumer_of(cluster, fetch_max_wait_ms=20_000, fetch_min_bytes=1) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await take(consumer, 1, timeout_s=1.0) == []
        started_s = time.monotonic()
        await produce(cluster, topic, [b"v"])
        assert values_of(await take(consumer, 1)) == [b"v"]
        assert time.monotonic() - started_s < 15, "the fetch was answered only when its time was up"


@scenarios("pause")
async def pause(cluster: Cluster) -> None:
    topic = await create(cluster, "pause", partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with consumer_of(cluster) as consumer:
        consumer.assign([first, second])
        consumer.pause(first)
        for number in (0, 1):
            await produce(cluster, topic, numbers(5), partition=number)
        assert {record.partition for record in await take(consumer, 6, timeout_s=1.0)} == {1}
        consumer.resume(first)
        assert values_of(await take(consumer, 5)) == numbers(5)


@scenarios("sessions")
async def sessions(cluster: Cluster) -> None:
    topic = await create(cluster, "sessions", partitions=30)
    async with consumer_of(cluster) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(30)])
        for number in (3, 17, 3, 29, 0):
            await produce(cluster, topic, [b"%d" % number], partition=number)
            (record,) = await take(consumer, 1)
            assert (record.partition, record.value) == (number, b"%d" % number)


# ---- Mistakes.


@scenarios("unknown_topic")
async def unknown_topic(cluster: Cluster) -> None:
    topic = cluster.name("unknown")
    settings = {"request_timeout_ms": 2_000}  # how long it asks for a topic that may yet appear
    await raised_in(produce(cluster, topic, [b"v"], settings), kafka_errors.KafkaError)
    async with admin_of(cluster) as admin:
        answer = await admin.delete_topics([topic])
        assert [tuple(each[:2]) for each in answer.topic_error_codes] == [(topic, 3)]


@scenarios("existing_topic")
async def existing_topic(cluster: Cluster) -> None:
    topic = await create(cluster, "existing")
    async with admin_of(cluster) as admin:
        wrong = {
            36: NewTopic(topic, 1, cluster.replication),
            38: NewTopic(cluster.name("w"), 1, 100),
            37: NewTopic(cluster.name("w"), 0, 1),
            17: NewTopic("no/slash", 1, 1),
            40: NewTopic(cluster.name("w"), 1, 1, topic_configs={"retention.ms": "soon"}),
        }
        for code, new in wrong.items():
            answer = await admin.create_topics([new])
            assert [each[1] for each in answer.topic_errors] == [code], answer


@scenarios("too_large")
async def too_large(cluster: Cluster) -> None:
    topic = await create(cluster, "too-large")
    permissive = {"max_request_size": 10 * TOO_LARGE_BYTES}
    sending = produce(cluster, topic, [b"x" * TOO_LARGE_BYTES], permissive)
    await raised_in(sending, kafka_errors.MessageSizeTooLargeError)
    (written,) = await produce(cluster, topic, [b"small"])
    assert written.offset == 0


@scenarios("keyless_compacted")
async def keyless_compacted(cluster: Cluster) -> None:
    topic = await create(cluster, "compacted", config={"cleanup.policy": "compact"})
    error = await raised_in(produce(cluster, topic, [b"v"]), kafka_errors.KafkaError)
    assert error.errno in (87, -1), repr(error)  # INVALID_RECORD; older versions have no name for it
    (written,) = await produce(cluster, topic, [b"v"], key=b"k")
    assert written.offset == 0
