"""Brokers that go and come back under load, without a supervisor: nothing is lost, and clients hardly notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from sexton.harness.brokers import SextonCluster
from tests.robustness.conftest import Watched, wait_until

pytestmark = pytest.mark.cluster

FAILOVER_S = 10
"""The issue's bound, with default settings: a lease is 5 s."""

RESTART_GAP_S = 5
"""What is aimed at is one second, and measured on a quiet machine; a busy one gets more."""

PARTITIONS_COUNT = 6

READ_PATIENCE_S = 30
"""How long a consumer may be silent at the end before what it has not read counts as lost."""

REPEATED_S = 1
"""How long it goes on once it has read all, in case that something comes twice."""


class Load:
    """A producer with acks=all that sends a record to each partition now and then, and a consumer in a group."""

    def __init__(self, cluster: SextonCluster, topic: str) -> None:
        self._topic = topic
        common = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        self._producer = Producer({**common, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
        self._consumer = Consumer(
            {**common, "group.id": f"{topic}-readers", "auto.offset.reset": "earliest", "session.timeout.ms": 45_000}
        )
        self.delivered: dict[int, list[tuple[float, int]]] = {number: [] for number in range(PARTITIONS_COUNT)}
        """Partition to (when, which number)."""
        self.errors: list[str] = []
        self.read: dict[int, list[tuple[float, int]]] = {number: [] for number in range(PARTITIONS_COUNT)}
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._produce, self._consume)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: all(self.delivered.values()) and all(self.read.values()))
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        self._consumer.close()

    def check_nothing_is_lost_or_repeated(self) -> None:
        assert not self.errors
        for partition, delivered in self.delivered.items():
            assert [number for _, number in delivered] == list(range(len(delivered)))
            assert [number for _, number in self.read[partition]] == list(range(len(delivered)))

    def _produce(self) -> None:
        number = 0
        while not self._is_over.is_set():
            for partition in range(PARTITIONS_COUNT):
                self._producer.produce(self._topic, str(number), b"key", partition, on_delivery=self._on_delivery)
            number += 1
            self._producer.poll(0.02)
        if self._producer.flush(30):
            self.errors.append("records are left that were never answered")

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.delivered[message.partition()].append((time.monotonic(), int(message.value())))

    def _consume(self) -> None:
        """Until it has read what was delivered, or nothing comes any more.

        librdkafka waits up to ten seconds before it connects again to a broker that was away: silence of a few seconds
        says nothing."""
        self._consumer.subscribe([self._topic])
        read_s = time.monotonic()
        while not self._is_over.is_set() or time.monotonic() - read_s < self._patience_s():
            message = self._consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            read_s = time.monotonic()
            self.read[message.partition() or 0].append((read_s, int(message.value() or b"")))

    def _patience_s(self) -> float:
        is_producing = self._threads[0].is_alive()
        is_behind = any(len(self.read[each]) < len(self.delivered[each]) for each in self.delivered)
        return READ_PATIENCE_S if is_producing or is_behind else REPEATED_S


def longest_gap_s(happened: dict[int, list[tuple[float, int]]]) -> float:
    """Between two of a partition."""
    return max(later - earlier for times in happened.values() for (earlier, _), (later, _) in pairwise(times))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SextonCluster]:
    folder = tmp_path / "cluster"
    settings = {"min.insync.replicas": 2, "offsets.topic.replication.factor": 3}
    with SextonCluster(3, folder, settings) as started:
        yield started


def in_sync_everywhere(cluster: SextonCluster, topic: str) -> bool:
    with Watched(cluster, 1).wire() as wire:
        return all(wire.leader_and_isr(topic, number)[1] == [1, 2, 3] for number in range(PARTITIONS_COUNT))


def test_brokers_restarted_one_after_another_go_unnoticed(cluster: SextonCluster) -> None:
    cluster.create_topic("rolling", PARTITIONS_COUNT, 3)
    with Load(cluster, "rolling") as load:
        for node_id in cluster.node_ids:
            leads = [number for number, leader in cluster.leaders("rolling").items() if leader == node_id]
            cluster.stop_node(node_id)
            assert all(cluster.leaders("rolling")[number] not in (node_id, -1) for number in leads)
            cluster.start_node(node_id)
            wait_until(lambda: in_sync_everywhere(cluster, "rolling"))
    load.check_nothing_is_lost_or_repeated()
    gaps_s = longest_gap_s(load.delivered), longest_gap_s(load.read)
    print(f"longest gap between two records of a partition: {gaps_s[0]:.2f} s to produce, {gaps_s[1]:.2f} s to consume")
    assert max(gaps_s) < RESTART_GAP_S


def test_after_the_death_of_a_leader_producers_go_on_within_ten_seconds(cluster: SextonCluster) -> None:
    cluster.create_topic("killed", PARTITIONS_COUNT, 3)
    with Load(cluster, "killed") as load:
        leaders = cluster.leaders("killed")
        victim = leaders[0]
        killed_s = time.monotonic()
        cluster.kill_node(victim)
        orphaned = [number for number, leader in leaders.items() if leader == victim]
        wait_until(lambda: all(load.delivered[number][-1][0] > killed_s + 2 for number in orphaned))
        time.sleep(1)
    cluster.start_node(victim)
    load.check_nothing_is_lost_or_repeated()
    gap_s = longest_gap_s(load.delivered)
    print(f"a producer with acks=all waited {gap_s:.2f} s after kill -9 of a leader")
    assert gap_s < FAILOVER_S
