"""Plants a corruption on a real cluster of Apache Kafka, as it comes about: a broker is away while a key is deleted."""

from __future__ import annotations

import asyncio
import shutil
import time

from confluent_kafka import Producer

from sexton.audit.live.connecting import Connecting
from sexton.client.raw import raw_batches
from sexton.harness.kafka import KafkaCluster
from sexton.harness.properties import Settings

PLANTED = b"planted"
BAD = 3
CLEANED: Settings = {
    "cleanup.policy": "compact",
    "delete.retention.ms": 0,
    "segment.ms": 300,
    "min.cleanable.dirty.ratio": 0.01,
    "max.compaction.lag.ms": 500,
}
"""A topic's settings under which a tombstone is gone within seconds."""
EAGER: Settings = {
    "log.cleaner.backoff.ms": 50,
    "producer.id.expiration.ms": 10_000,
    "broker.session.timeout.ms": 3_000,
}
"""A broker's."""


def plant(kafka: KafkaCluster, topic: str, partition: int = 0) -> None:
    """Returns when the broker that was away is back, and shows what was deleted."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def write(key: bytes, value: bytes | None) -> None:
        producer.produce(topic, key=key, value=value, partition=partition)
        assert producer.flush(60) == 0

    write(PLANTED, b"value")
    kafka.kill_node(BAD)
    write(PLANTED, None)
    deadline_s = time.monotonic() + 120
    while PLANTED in asyncio.run(keys_left(kafka, topic, partition)):
        assert time.monotonic() < deadline_s
        write(b"filler", b"%d" % time.time_ns())
        time.sleep(0.2)
    kafka.start_node(BAD)


async def keys_left(kafka: KafkaCluster, topic: str, partition: int) -> set[bytes | None]:
    """In the leader's log."""
    host, port = kafka.bootstrap.split(",")[0].split(":")
    client = Connecting(((host, int(port)),)).client()
    await client.open()
    try:

        async def attempt() -> set[bytes | None]:
            batches = raw_batches(client, topic, partition, 0)
            return {record.key async for batch in batches if not batch.is_control for record in batch.records}

        return await client.retry(attempt)
    finally:
        client.close()


def rebuild(kafka: KafkaCluster, topic: str, partition: int = 0) -> None:
    """As a plan of repair says: the broker that is wrong copies the partition anew."""
    kafka.stop_node(BAD)
    shutil.rmtree(kafka.partition_dir(BAD, topic, partition))
    kafka.start_node(BAD)
