"""`sexton compact` on the directories of brokers that were stopped, and what the brokers make of it afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from sexton.compaction.fates import Fate
from sexton.errors import LogInUseError
from sexton.harness.kafka import KafkaCluster
from sexton.harness.properties import Settings
from sexton.spark.compact import Report
from sexton.spark.offline import OfflineCoordination, Options, compact_directories
from tests.kafka.command import run_sexton, sexton_json
from tests.kafka.directories import digests, fold_dir, partition_dirs, read_log
from tests.kafka.workload import (
    DELIVERY_TIMEOUT_S,
    NO_CLEANING,
    QUIET,
    alter_config,
    consume_committed,
    delivered,
    flush,
    fold_rows,
    patiently,
)

WAIT_TIMEOUT_S: Final = 60
COMPACTED: Final[Settings] = {"cleanup.policy": "compact", "internal.segment.bytes": 8 * 1024, "delete.retention.ms": 0}
GROUP: Final = "readers"

Values = dict[bytes, bytes]


# ---- One broker.


@pytest.mark.kafka
@pytest.mark.spark
def test_a_broker_serves_every_latest_value_after_its_directory_was_compacted(
    tmp_path: Path, spark: SparkSession
) -> None:
    with KafkaCluster(base_dir=tmp_path / "kafka", settings=NO_CLEANING) as kafka:
        written = write_orders(kafka, partitions=8)
        keyless_count = write_keyless(kafka)
        commit_offsets(kafka, rounds=6)
        log_dir = kafka.log_dir(1)
        check_refused_while_running(log_dir)
        kafka.stop_node(1)

        before = digests(log_dir)
        foretold = compact_alone(spark, log_dir, dry_run=True)
        assert digests(log_dir) == before
        report = sexton_json("compact", log_dir)
        check_reports(foretold, report["partitions"])
        assert digests(log_dir) != before

        kafka.start_node(1)
        assert kafka.warnings(1) == []
        assert kafka.recoveries(1) == []
        served = consume_committed(kafka.bootstrap, [("orders", partition) for partition in range(8)])
        assert {key: value for rows in served.values() for key, (_, value) in fold_rows(rows).items()} == written
        (keyless,) = consume_committed(kafka.bootstrap, [("keyless", 0)]).values()
        assert sum(key is None for _, key, _ in keyless) == keyless_count, "Kafka's cleaner would have dropped them"
        assert committed_offsets(kafka) == {partition: 600 + partition for partition in range(8)}
        kafka.stop_node(1)

        assert log_errors(kafka) == []
        assert all(report.nothing_to_do for report in compact_alone(spark, log_dir))


def compact_alone(spark: SparkSession, log_dir: Path, *, dry_run: bool = False) -> list[Report]:
    """As the command does, without a start of Spark."""
    options = Options(time.time_ns() // 1_000_000, dry_run=dry_run)
    return compact_directories(spark.sparkContext, [log_dir], options)


def write_orders(kafka: KafkaCluster, partitions: int) -> Values:
    """Ten updates a key or so, every fifth a deletion. Returns each key's latest value."""
    kafka.create_topic("orders", partitions, config=COMPACTED)
    rng = random.Random(3)
    latest: Values = {}
    producer = Producer({**QUIET, "bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number in range(8_000):
        key = f"order-{rng.randrange(800)}".encode()
        value = None if rng.random() < 0.2 else f"state {number} ".encode() * 3
        producer.produce("orders", key=key, value=value, partition=int(key[6:]) % partitions, on_delivery=delivered)
        latest.pop(key, None)
        if value is not None:
            latest[key] = value
        if number % 100 == 0:
            flush(producer)
    flush(producer)
    return latest


def write_keyless(kafka: KafkaCluster) -> int:
    """A topic that was not compacted when they were written. Kafka refuses them in one that is."""
    kafka.create_topic("keyless", config={**COMPACTED, "cleanup.policy": "delete"})
    producer = Producer({**QUIET, "bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    for number in range(400):
        producer.produce(
            "keyless", key=None if number % 4 == 0 else f"{number % 7}", value=b"x" * 100, on_delivery=delivered
        )
        if number % 20 == 0:
            flush(producer)
    flush(producer)
    alter_config(kafka, "keyless", {"cleanup.policy": "compact"})
    return 100


def commit_offsets(kafka: KafkaCluster, rounds: int) -> None:
    """A group that commits again and again, to a topic of Kafka's own whose segments end every moment."""
    consumer = group_member(kafka)
    try:
        for number in range(1, rounds + 1):
            offsets = [TopicPartition("orders", partition, 100 * number + partition) for partition in range(8)]
            patiently(lambda offsets=offsets: consumer.commit(offsets=offsets, asynchronous=False))  # type: ignore[misc]
            if number == 1:
                alter_config(kafka, "__consumer_offsets", {"segment.ms": 50})
            time.sleep(0.1)  # past segment.ms: the next commit opens a segment
    finally:
        consumer.close()


def committed_offsets(kafka: KafkaCluster) -> dict[int, int]:
    consumer = group_member(kafka)
    try:
        found = consumer.committed([TopicPartition("orders", p) for p in range(8)], timeout=WAIT_TIMEOUT_S)
        return {each.partition: each.offset for each in found}
    finally:
        consumer.close()


def group_member(kafka: KafkaCluster) -> Consumer:
    return Consumer({**QUIET, "bootstrap.servers": kafka.bootstrap, "group.id": GROUP, "enable.auto.commit": False})


def check_refused_while_running(log_dir: Path) -> None:
    refused = run_sexton("compact", log_dir)
    assert refused.returncode == LogInUseError.exit_code == 75
    assert "holds the log directory's lock" in " ".join(refused.stderr.split())
    assert refused.stdout == ""


def check_reports(foretold: Sequence[Report], reports: Sequence[Mapping[str, Any]]) -> None:
    """The dry run says what then happens, and all that is compacted is there."""
    by_name = {report["partition"]: report for report in reports}
    assert {name for name, report in by_name.items() if report["changed"]} >= {f"orders-{p}" for p in range(8)}
    assert {
        report.name: {Fate(fate).label: count for fate, count in report.tally.counts.items()} for report in foretold
    } == {name: report["fates"] for name, report in by_name.items()}
    assert [report["error"] for report in reports if report["error"]] == []
    groups = [report for name, report in by_name.items() if name.startswith("__consumer_offsets-")]
    assert sum(report["changed"] for report in groups) == 1, "the group has one partition, with several segments"
    orders = by_name["orders-0"]
    assert orders["bytes_after"] < orders["bytes_before"] / 2
    assert orders["fates"]["tombstone_waits_for_replicas"] > 0, "other replicas may lag, for all it knows"


def log_errors(kafka: KafkaCluster) -> list[str]:
    """What the node said about logs while it ran, and stopped."""
    return [warning for warning in kafka.warnings(1) if "log" in warning.lower() and "AutoTopicCreation" not in warning]


# ---- Three brokers.

REPLICATED: Final[Settings] = {**COMPACTED, "min.insync.replicas": 2}
THREE_NODES: Final = {
    **NO_CLEANING,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "replica.lag.time.max.ms": 3_000,
}
ASSIGNMENT: Final = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
"""Each node is the preferred leader of one partition."""

KEYS: Final = [f"key-{number}".encode() for number in range(60)]
DELETED: Final = KEYS[:20]


@pytest.mark.kafka
@pytest.mark.spark
def test_tombstones_wait_for_the_replica_that_was_down(tmp_path: Path, spark: SparkSession) -> None:
    base_dir = tmp_path / "kafka"
    with KafkaCluster(nodes=3, base_dir=base_dir, settings=THREE_NODES, heap="512m") as kafka:
        latest = write_while_a_node_dies(kafka)
        data_dirs = [kafka.log_dir(node) for node in kafka.node_ids]
        kafka.stop()

        first = compact_replicas(spark, data_dirs)
        assert tombstones(data_dirs[0]) >= set(DELETED)
        assert total(first, Fate.TOMBSTONE_WAITS_FOR_REPLICAS) > 0
        assert total(first, Fate.TOMBSTONE_EXPIRED) == 0

        kafka.start()
        wait_until(lambda: in_sync_counts(kafka) == [3, 3, 3], "the node that was down to catch up")
        write_more(kafka, latest)
        kafka.stop()
        # Its word is in now: one run starts the horizons, which are over at once, the next one ends them.
        compact_replicas(spark, data_dirs)
        last = compact_replicas(spark, data_dirs)
        assert total(last, Fate.TOMBSTONE_EXPIRED) > 0
        for data_dir in data_dirs:
            assert not tombstones(data_dir) & set(DELETED)
            for directory in partition_dirs(data_dir, "t-").values():
                assert {key: value for key, (_, value) in fold_dir(directory).items()} == latest

        kafka.start()
        check_served_by_each_leader(kafka, latest)


def write_while_a_node_dies(kafka: KafkaCluster) -> Values:
    """Node 3 dies with two transactions open, and misses how they end and what is deleted after that."""
    admin = AdminClient({**QUIET, "bootstrap.servers": kafka.bootstrap})
    config = {name: str(value) for name, value in REPLICATED.items()}
    topic = NewTopic("t", num_partitions=len(ASSIGNMENT), replica_assignment=ASSIGNMENT, config=config)
    admin.create_topics([topic])["t"].result(WAIT_TIMEOUT_S)
    producer = Producer({**QUIET, "bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    committed, aborted = (transactional(kafka, name) for name in ("commits", "aborts"))
    for version in range(6):
        send(producer, dict.fromkeys(KEYS, b"value %d " % version * 8))
    for client in (committed, aborted):
        client.begin_transaction()
    send(committed, {KEYS[30]: b"committed"})
    send(aborted, {KEYS[31]: b"aborted"})
    for version in range(6, 8):
        send(producer, dict.fromkeys(KEYS[32:], b"value %d " % version * 8))
    time.sleep(2 * THREE_NODES["replica.high.watermark.checkpoint.interval.ms"] / 1000)
    kafka.kill_node(3)

    send(aborted, {KEYS[31]: b"aborted, too"})
    patiently(lambda: committed.commit_transaction(DELIVERY_TIMEOUT_S))
    patiently(lambda: aborted.abort_transaction(DELIVERY_TIMEOUT_S))
    send(producer, dict.fromkeys(DELETED))
    for version in range(8, 12):
        send(producer, dict.fromkeys(KEYS[32:], b"value %d " % version * 8))
    values = dict.fromkeys(KEYS[20:32], b"value 5 " * 8) | dict.fromkeys(KEYS[32:], b"value 11 " * 8)
    return values | {KEYS[30]: b"committed"}


def write_more(kafka: KafkaCluster, latest: Values) -> None:
    """Enough to close the segments that hold the tombstones, on every replica."""
    producer = Producer({**QUIET, "bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    for version in range(12, 16):
        send(producer, dict.fromkeys(KEYS[40:], b"value %d " % version * 8))
    latest.update(dict.fromkeys(KEYS[40:], b"value 15 " * 8))


def transactional(kafka: KafkaCluster, name: str) -> Producer:
    producer = Producer({**QUIET, "bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "transactional.id": name})
    patiently(lambda: producer.init_transactions(DELIVERY_TIMEOUT_S))
    return producer


def send(producer: Producer, values: Mapping[bytes, bytes | None]) -> None:
    """The same to all three partitions, on all replicas that are in sync when this returns."""
    for key, value in values.items():
        for partition in range(3):
            producer.produce("t", key=key, value=value, partition=partition, on_delivery=delivered)
    flush(producer)


def compact_replicas(spark: SparkSession, data_dirs: Sequence[Path]) -> list[Report]:
    """Kafka's own topics are in these directories, too, and are replicated and compacted as well."""
    options = Options(time.time_ns() // 1_000_000, OfflineCoordination.REPLICAS)
    reports = compact_directories(spark.sparkContext, data_dirs, options)
    assert [report.failure for report in reports if report.failure is not None] == []
    return [report for report in reports if report.name.startswith("t-")]


def total(reports: Sequence[Report], fate: Fate) -> int:
    return sum(report.tally.of(fate) for report in reports)


def tombstones(data_dir: Path) -> set[bytes]:
    """Keys with a tombstone in any of the partitions."""
    return {
        record.key
        for directory in partition_dirs(data_dir, "t-").values()
        for batch in read_log(directory)
        for record in batch.records
        if record.key is not None and record.is_tombstone
    }


def in_sync_counts(kafka: KafkaCluster) -> list[int]:
    return [len(partition.isrs) for partition in partitions_of(kafka)]


def leaders(kafka: KafkaCluster) -> list[int]:
    return [partition.leader for partition in partitions_of(kafka)]


def partitions_of(kafka: KafkaCluster) -> list[PartitionMetadata]:
    """As some broker has it: others may know more."""
    admin = AdminClient({**QUIET, "bootstrap.servers": kafka.bootstrap})
    partitions = admin.list_topics("t", timeout=WAIT_TIMEOUT_S).topics["t"].partitions
    return [partitions[number] for number in sorted(partitions)]


def check_served_by_each_leader(kafka: KafkaCluster, latest: Values) -> None:
    wait_until(lambda: in_sync_counts(kafka) == [3, 3, 3], "all replicas to be in sync")
    admin = AdminClient({**QUIET, "bootstrap.servers": kafka.bootstrap})
    names = [TopicPartition("t", partition) for partition in range(3)]
    admin.elect_leaders(ElectionType.PREFERRED, names).result(WAIT_TIMEOUT_S)
    wait_until(lambda: leaders(kafka) == [1, 2, 3], "each node to lead one partition")
    for rows in consume_committed(kafka.bootstrap, [("t", partition) for partition in range(3)]).values():
        assert {key: value for key, (_, value) in fold_rows(rows).items()} == latest
    for node in kafka.node_ids:
        assert kafka.recoveries(node) == []


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline_s, f"waited {WAIT_TIMEOUT_S} s for {what}"
        time.sleep(0.2)
