"""Healthy replicas that are written, compacted and led by others in turn while they are read: nobody is accused. And a
planted corruption is found among them, each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sexton.audit.classes import Class
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.live.connecting import Connecting
from sexton.audit.run import audit
from sexton.client.raw import raw_batches
from sexton.harness.kafka import KafkaCluster
from sexton.harness.properties import Settings
from tests.audit.live.load import load
from tests.audit.live.reading import source_at

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long]

TOPIC = "users"
PLANTED = b"planted"
CLEANED: Settings = {
    "cleanup.policy": "compact",
    "delete.retention.ms": 0,
    "segment.ms": 300,
    "min.cleanable.dirty.ratio": 0.01,
    "max.compaction.lag.ms": 500,
}
EAGER: Settings = {"log.cleaner.backoff.ms": 50, "producer.id.expiration.ms": 10_000}
AUDITS_COUNT = 3
BAD = 3


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Partition 0 has a corruption on broker 3; partition 1 is healthy."""
    with KafkaCluster(nodes=3, settings={**EAGER, "broker.session.timeout.ms": 3_000}, heap="500m") as kafka:
        kafka.create_topic(TOPIC, 2, 3, CLEANED)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})

        def write(key: bytes, value: bytes | None) -> None:
            producer.produce(TOPIC, key=key, value=value, partition=0)
            assert producer.flush(60) == 0

        write(PLANTED, b"value")
        kafka.kill_node(BAD)
        write(PLANTED, None)
        deadline_s = time.monotonic() + 120
        while PLANTED in asyncio.run(keys_left(kafka)):
            assert time.monotonic() < deadline_s
            write(b"filler", b"%d" % time.time_ns())
            time.sleep(0.2)
        kafka.start_node(BAD)
        yield kafka


async def keys_left(kafka: KafkaCluster) -> set[bytes | None]:
    host, port = kafka.bootstrap.split(",")[0].split(":")
    client = Connecting(((host, int(port)),)).client()
    await client.open()
    try:

        async def attempt() -> set[bytes | None]:
            return {
                record.key
                async for batch in raw_batches(client, TOPIC, 0, 0)
                for record in batch.records
                if not batch.is_control
            }

        return await client.retry(attempt)
    finally:
        client.close()


def look(spark: SparkSession, kafka: KafkaCluster) -> dict[int, PartitionReport]:
    with source_at(kafka.bootstrap, TOPIC) as source:
        report = audit(spark.sparkContext, [source])
    return {each.topic_partition[1]: each for each in report.partitions}


def assert_only_the_planted_key(found: PartitionReport) -> None:
    assert [case.key.key for case in found.cases] == [PLANTED], found
    (case,) = found.cases
    assert case.explained.is_class == Class.TOMBSTONE
    assert {found.standings[number].replica.id.broker for number in case.explained.accused} == {BAD}
    assert not found.findings


def test_nobody_is_accused_who_is_right_and_who_is_wrong_is_accused_each_time(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    with load(kafka.bootstrap, TOPIC, 2) as working:
        for number in range(AUDITS_COUNT):
            found = look(spark, kafka)
            for each in found.values():
                print(number, each.name, each.verdict, each.counts, [finding.because for finding in each.findings])
            assert not found[1].verdict.is_error, found[1]
            assert not found[1].cases
            assert not found[1].findings
            assert_only_the_planted_key(found[0])
        assert working.written_count > 1_000
        assert working.transactions_count > 10
        assert working.moved_count > 0
    found = look(spark, kafka)
    assert found[1].verdict is Verdict.AGREE, found[1]
    assert_only_the_planted_key(found[0])
