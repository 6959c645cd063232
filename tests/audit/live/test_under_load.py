"""Healthy replicas that are written, compacted and led by others in turn while they are read: nobody is accused. And a
planted corruption is found among them, each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sexton.audit.classes import Class
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.run import audit
from sexton.harness.kafka import KafkaCluster
from tests.audit.live.load import load
from tests.audit.live.planting import BAD, CLEANED, EAGER, PLANTED, plant
from tests.audit.live.reading import source_at

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.soak]  # tests/audit/test_settling.py has it in memory

TOPIC = "users"
AUDITS_COUNT = 3


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Partition 0 has a corruption; partition 1 is healthy."""
    with KafkaCluster(nodes=3, settings=EAGER, heap="500m") as kafka:
        kafka.create_topic(TOPIC, 2, 3, CLEANED)
        plant(kafka, TOPIC)
        yield kafka


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


def look_under_load(spark: SparkSession, kafka: KafkaCluster, count: int) -> None:
    with load(kafka.bootstrap, TOPIC, 2) as working:
        for number in range(count):
            found = look(spark, kafka)
            for each in found.values():
                print(number, each.name, each.verdict, each.counts, [finding.because for finding in each.findings])
            assert not found[1].verdict.is_error, found[1]
            assert not found[1].cases
            assert not found[1].findings
            assert_only_the_planted_key(found[0])
        print(working.written_count, working.transactions_count, working.moved_count)
        assert working.written_count > 1_000
        assert working.transactions_count > 10
        assert working.moved_count > 0


def test_nobody_is_accused_who_is_right_and_who_is_wrong_is_accused_each_time(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    look_under_load(spark, kafka, AUDITS_COUNT)
    found = look(spark, kafka)
    assert found[1].verdict is Verdict.AGREE, found[1]
    assert_only_the_planted_key(found[0])


@pytest.mark.soak
def test_twenty_times_in_a_row_and_among_a_hundred_thousand_keys(spark: SparkSession, kafka: KafkaCluster) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 20})
    for number in range(100_000):
        producer.produce(TOPIC, key=f"still-{number}", value="v", partition=0)
        producer.poll(0)
    assert producer.flush(120) == 0
    look_under_load(spark, kafka, 20)
