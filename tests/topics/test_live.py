"""`sexton topic stats` on Apache Kafka and on Sexton."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from sexton.harness.kafka import KafkaCluster
from tests.topics.conftest import run

pytestmark = pytest.mark.spark

KEYS = 50
EACH = 4
QUIET = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0", "segment.ms": "3600000"}
"""Of a topic that no cleaner touches within a test."""
CLEANED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "300"}


def make_topic(bootstrap: str, name: str, partitions: int, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
    made.result(60)


def wait_for_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Brokers learn of a change one after the other."""
    deadline_s = time.monotonic() + 60
    for broker in bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": broker})
        while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) < count:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def write(bootstrap: str, topic: str) -> None:
    """Each key in the partition that Kafka's own clients choose, several times; then tombstones, and a transaction that
    is aborted and one that is not."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5})
    for round_number in range(EACH):
        for number in range(KEYS):
            producer.produce(topic, key=f"key {number}", value=f"{round_number}: " + "x" * 200)
    for number in range(3):
        producer.produce(topic, key=f"key {number}", value=None)
    assert producer.flush(60) == 0
    transactional = Producer(
        {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "transactional.id": f"t-{topic}"}
    )
    transactional.init_transactions(60)
    for end in (transactional.abort_transaction, transactional.commit_transaction):
        transactional.begin_transaction()
        transactional.produce(topic, key="in a transaction", value="v")
        transactional.flush()
        end()


def stats_of(bootstrap: str, topic: str, *options: object) -> Any:
    done = run("topic", "stats", topic, "--bootstrap", bootstrap, "--rate", 0, "--json", *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_records_keys_and_savings_are_counted_exactly(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "counted", 3, QUIET)
    write(bootstrap, "counted")
    found = stats_of(bootstrap, "counted")
    total = found["total"]
    assert total["records"] == EACH * KEYS + 3 + 1
    assert (total["keys"], total["deleted_keys"], total["tombstones"]) == (KEYS + 1, 3, 3)
    assert total["aborted_records"] == 1
    assert total["would_save"]["records"] == (EACH - 1) * KEYS + 3 + 1
    assert 0.6 < total["would_save"]["bytes"] / total["size_bytes"] < 0.8
    assert found["keys_in_several_partitions"]["keys"] == 0
    assert [each["compacted"] for each in found["partitions"]] == [None] * 3
    assert all(each["disk_bytes"] for each in found["partitions"])
    (one,) = stats_of(bootstrap, "counted", "--partition", 1)["partitions"]
    assert one == found["partitions"][1]


def test_keys_that_went_to_another_partition_are_named_on_request(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "grown", 1, QUIET)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for number in range(20):
        producer.produce("grown", key=f"key {number}", value="old")
    producer.flush()
    done = run("topic", "alter", "grown", "--partitions", 2, "--bootstrap", bootstrap)
    assert done.exit_code == 0, done.output
    wait_for_partitions(bootstrap, "grown", 2)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        producer.produce("grown", key=f"key {number}", value=None if number == 3 else "new", partition=1)
    assert producer.flush(60) == 0
    shared = stats_of(bootstrap, "grown", "--show-keys", "--limit", 2)["keys_in_several_partitions"]
    assert (shared["keys"], shared["with_a_value_in_several"]) == (20, 19)
    assert len(shared["examples"]) == 2
    for example in shared["examples"]:
        number = int(example["key"]["utf8"].removeprefix("key "))
        assert [place["offset"] for place in example["places"]] == [number, number]
    shown = run("topic", "stats", "grown", "--bootstrap", bootstrap)
    assert "20 keys are in more than one partition" in shown.stdout
    assert '"key ' not in shown.stdout


@pytest.mark.kafka
def test_gaps_tell_how_far_kafkas_cleaner_has_been(spark: SparkSession, kafka: KafkaCluster) -> None:
    make_topic(kafka.bootstrap, "cleaned", 1, CLEANED)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    deadline_s = time.monotonic() + 60
    while True:
        for number in range(20):
            producer.produce("cleaned", key=f"key {number % 5}", value="v" * 100)
        assert producer.flush(60) == 0
        (part,) = stats_of(kafka.bootstrap, "cleaned")["partitions"]
        if part["compacted"] is not None:
            break
        assert time.monotonic() < deadline_s
        time.sleep(0.3)
    assert 0 < part["compacted"]["up_to_offset"] <= part["last_stable_offset"]
    assert part["compacted"]["kept_share"] < 1
    assert part["compacted"]["not_before_ms"] <= time.time() * 1000
    assert "% left" in run("topic", "stats", "cleaned", "--bootstrap", kafka.bootstrap).stdout
