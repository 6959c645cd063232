"""A follower of Apache Kafka that answers, and lags: it is judged as far as it has come, and no further."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.live.source import LiveSource
from sexton.audit.replica import Replica
from sexton.audit.run import audit
from sexton.harness.kafka import KafkaCluster
from tests.audit.live.reading import read, source_at
from tests.spark.local_context import LocalContext

pytestmark = pytest.mark.kafka

TOPIC = "users"
RECORDS_COUNT = 3_000
SETTINGS = {
    "replica.lag.time.max.ms": 1_500,
    "broker.session.timeout.ms": 4_000,
    "replica.fetch.max.bytes": 20_000,
    # A throttle measures over so many windows of a second.
    "replication.quota.window.num": 60,
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes=3, settings=SETTINGS, heap="400m") as kafka:
        kafka.create_topic(TOPIC, 1, 3, {"cleanup.policy": "compact"})
        write(kafka, 100)
        yield kafka


def write(kafka: KafkaCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "batch.size": 4_000})
    for number in range(count):
        producer.produce(TOPIC, key=f"k{number % 100}", value="x" * 500, partition=0)
    assert producer.flush(60) == 0


def throttle(kafka: KafkaCluster, brokers: list[int], *, is_on: bool) -> None:
    """Only replicas that are not in sync are held back, in Kafka."""
    operation = AlterConfigOpType.SET if is_on else AlterConfigOpType.DELETE
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def changed(kind: ResourceType, name: str, values: dict[str, str]) -> ConfigResource:
        entries = [ConfigEntry(key, value, incremental_operation=operation) for key, value in values.items()]
        return ConfigResource(kind, name, incremental_configs=entries)

    rate = {f"{side}.replication.throttled.rate": "1000" for side in ("leader", "follower")}
    replicas = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    resources = [changed(ResourceType.TOPIC, TOPIC, replicas)]
    resources += [changed(ResourceType.BROKER, str(broker), rate) for broker in brokers]
    for resource in resources:  # librdkafka takes one broker a call
        admin.incremental_alter_configs([resource])[resource].result(30)


def until(source: LiveSource, ids: Replica, reached: Callable[[Replica], bool]) -> Replica:
    deadline_s = time.monotonic() + 120
    while True:
        (now,) = source.now([ids.id])
        if reached(now):
            return now
        assert time.monotonic() < deadline_s, now
        time.sleep(0.1)


def judged(source: LiveSource) -> PartitionReport:
    (report,) = audit(LocalContext(random.Random(1)).as_spark, [source]).partitions
    assert not report.cases
    assert not report.findings
    return report


def found_with(source: LiveSource, replica: Replica) -> dict[int, Replica]:
    """By broker, once all brokers know that it is back."""
    deadline_s = time.monotonic() + 120
    while True:
        found = {each.id.broker: each for each in source.find()}
        if found[replica.id.broker].is_read:
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)


def test_a_follower_that_lags_is_read_as_far_as_it_has_come_and_passes_the_barrier_when_it_has_caught_up(
    kafka: KafkaCluster,
) -> None:
    with source_at(kafka.bootstrap) as source:
        before = source.find()
        assert all(each.barrier is not None for each in before)
        follower = next(each for each in before if not each.is_leader)
        others = [broker for broker in kafka.node_ids if broker != follower.id.broker]
        throttle(kafka, others, is_on=True)
        kafka.pause_node(follower.id.broker)
        with source_at(",".join(kafka.bootstrap.split(",")[broker - 1] for broker in others)) as awake:
            awake.find()
            leader = next(each for each in before if each.is_leader)
            until(awake, follower, lambda each: each.is_in_sync is False)
            write(kafka, RECORDS_COUNT)
            assert until(awake, leader, lambda each: each.is_read).high_watermark == 100 + RECORDS_COUNT
        kafka.resume_node(follower.id.broker)
        found = found_with(source, follower)
        lagging = found[follower.id.broker]
        assert lagging.is_in_sync is False
        assert (lagging.cut, lagging.barrier) == (None, None)
        assert (lagging.high_watermark or 0) < 100 + RECORDS_COUNT
        assert all(found[broker].barrier == 100 + RECORDS_COUNT for broker in others)
        whole, part = read(source, found[others[0]]).records, read(source, lagging).records
        assert part == whole[: len(part)]
        assert len(part) < len(whole)
        assert judged(source).verdict is Verdict.LAGGING
        throttle(kafka, others, is_on=False)
        until(source, follower, lambda each: each.is_in_sync is True)
        caught_up = next(each for each in source.find() if each.id == follower.id)
        assert caught_up.barrier == 100 + RECORDS_COUNT
        assert read(source, caught_up).records == whole
        assert judged(source).verdict is Verdict.AGREE
