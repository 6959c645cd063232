"""A copy loop under kill -9 of brokers: every record of the source is in the target once, in order.

The copiers are Kafka's own (`TransactionalMessageCopier`, which its system tests use): consume, produce and commit the
consumed offsets in one transaction, a third of which is aborted on purpose.
"""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sexton.harness.kafka_tools import tool_command
from sexton.verify.clients.base import Place
from tests.transactions.reading import places_of, settled
from tests.transactions.under_test import UnderTest

pytestmark = [pytest.mark.cluster, pytest.mark.kafka]

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS = 2
RECORDS = 4_000
KILLS = 2
SEED = 2
COPY_TIMEOUT_S = 240


def fill(cluster: UnderTest, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def start_copier(
    cluster: UnderTest, source: str, target: str, group: str, partition: int, log: Path
) -> subprocess.Popen[bytes]:
    options = {
        "--broker-list": cluster.bootstrap,
        "--input-topic": source,
        "--output-topic": target,
        "--input-partition": str(partition),
        "--consumer-group": group,
        "--transactional-id": f"{group}-{partition}",
        "--transaction-size": "50",
        "--transaction-timeout": "10000",
    }
    words = [word for option in options.items() for word in option]
    command = tool_command(COPIER, *words, "--enable-random-aborts", "--use-group-metadata")
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def kill_brokers(cluster: UnderTest, rng: random.Random) -> None:
    running = cluster.running
    assert running is not None
    for _ in range(KILLS):
        time.sleep(rng.uniform(1, 3))
        victim = rng.choice(running.node_ids)
        running.kill_node(victim)
        time.sleep(rng.uniform(1, 4))
        running.start_node(victim)


@pytest.mark.timeout(600)
def test_a_copy_loop_copies_everything_once_though_brokers_are_killed(mortal: UnderTest, tmp_path: Path) -> None:
    source, target = mortal.topic("source", PARTITIONS), mortal.topic("target", PARTITIONS)
    fill(mortal, source)
    group = mortal.name("copiers")
    copiers = [
        start_copier(mortal, source, target, group, partition, tmp_path / f"copier-{partition}.log")
        for partition in range(PARTITIONS)
    ]
    try:
        kill_brokers(mortal, random.Random(SEED))
        ends = [copier.wait(COPY_TIMEOUT_S) for copier in copiers]
    finally:
        for copier in copiers:
            copier.kill()
    for partition, end in enumerate(ends):
        log = (tmp_path / f"copier-{partition}.log").read_text(errors="replace")
        assert end == 0, "\n".join(log.splitlines()[-20:])
    copied: dict[Place, list[bytes]] = {place: [] for place in places_of([target], PARTITIONS)}
    for record in settled(mortal.bootstrap, copied):
        copied[record.topic, record.partition].append(record.value)
    for (_, partition), found in copied.items():
        assert found == [b"%d" % number for number in range(partition, RECORDS, PARTITIONS)]
