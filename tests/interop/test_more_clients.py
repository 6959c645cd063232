"""KafkaJS, Sarama and kafka-go: written with `acks=all`, read in a group while brokers are killed, and counted. And who
watches the group's lag meanwhile, as kafka_exporter does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.frameworks.programs import fault_settings, kill_and_start, wait_until
from tests.interop.more.programs import OTHERS, SARAMA, OtherClient, Program
from tests.transactions.reading import places_of, settled

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

BROKERS: Final = 3
PARTITIONS: Final = 4
TOPIC: Final = "counted"


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in OTHERS])
def test_every_record_is_written_and_read_whichever_broker_is_killed(
    client: OtherClient, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.command()  # built first, if need be
    with start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster:
        assert cluster.running is not None
        cluster.running.create_topic(TOPIC, PARTITIONS, BROKERS, {"min.insync.replicas": 2})
        writer, reader = (
            Program(client, role, cluster.bootstrap, TOPIC, tmp_path / f"{role}.log") for role in ("writer", "reader")
        )
        try:
            for node_id in range(1, BROKERS + 1):
                wait_until(going_on(writer), "records are written")
                wait_until(going_on(reader), "records are read")
                kill_and_start(cluster, node_id, [TOPIC, "__consumer_offsets"], both(writer, reader))
            writer.stop()
            acknowledged = writer.lines
            assert len(acknowledged) == len(set(acknowledged)) > 100
            in_log = Counter(record.value.decode() for record in settled(cluster.bootstrap, places()))
            assert set(in_log) == set(acknowledged), "no more and no less than was acknowledged"
            if client.is_idempotent:
                assert set(in_log.values()) == {1}
            wait_until(lambda: values(reader) == set(in_log), "everything is read")
            wait_until(lambda: committed(cluster) == ends(cluster), "the group has committed all that it read")
            reader.stop()
        finally:
            writer.kill()
            reader.kill()


@pytest.mark.parametrize("client", [pytest.param(SARAMA, id=SARAMA.label)])
def test_a_monitor_is_told_the_lag_of_a_group_whichever_broker_is_killed(
    client: OtherClient, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.command()
    with start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster:
        assert cluster.running is not None
        cluster.running.create_topic(TOPIC, PARTITIONS, BROKERS, {"min.insync.replicas": 2})
        writer, reader, monitor = programs = [
            Program(client, role, cluster.bootstrap, TOPIC, tmp_path / f"{role}.log")
            for role in ("writer", "reader", "monitor")
        ]
        try:
            for node_id in range(1, BROKERS + 1):
                wait_until(going_on(reader), "records are read")
                wait_until(going_on(monitor, 5), "the lag is told")
                kill_and_start(cluster, node_id, [TOPIC, "__consumer_offsets"], going_on(monitor, 5))
            writer.stop()
            wait_until(lambda: committed(cluster) == ends(cluster), "the group has committed all that it read")
            true = {partition: (end, end) for partition, end in ends(cluster).items()}
            wait_until(going_on(monitor, 2), "the lag is told")
            wait_until(lambda: lag(monitor.lines[-1]) == (1, true), "one member, and no lag")
            beyond = [line for line in monitor.lines for offset, end in lag(line)[1].values() if offset > end]
            assert beyond == []
            monitor.stop()
            reader.stop()
        finally:
            for program in programs:
                program.kill()


def lag(line: str) -> tuple[int, dict[int, tuple[int, int]]]:
    """How many members the group has, and by partition what was committed and where the log ends."""
    members, *parts = line.split()
    numbers = [[int(number) for number in part.split(":")] for part in parts]
    return int(members), {partition: (offset, end) for partition, offset, end in numbers}


def places() -> list[tuple[str, int]]:
    return list(places_of([TOPIC], PARTITIONS))


def values(reader: Program) -> set[str]:
    return {line.split()[2] for line in reader.lines}


def going_on(program: Program, count: int = 50) -> Callable[[], bool]:
    """Whether so many more have come since now."""
    wanted = len(program.lines) + count
    return lambda: len(program.lines) >= wanted


def both(writer: Program, reader: Program) -> Callable[[], bool]:
    written, read = going_on(writer), going_on(reader)
    return lambda: written() and read()


def ends(cluster: ClusterUnderTest) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "asks-for-ends", "log_level": 0})
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for topic, partition in places()
        }
    finally:
        consumer.close()


def committed(cluster: ClusterUnderTest) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    group = f"{TOPIC}-readers"
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places()])
    found = admin.list_consumer_group_offsets([asked])[group].result(timeout=30)
    return {each.partition: each.offset for each in found.topic_partitions}
