"""Damaged bytes in one replica of a live cluster: it is uncleanable, which is told, and nothing else suffers."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from sexton.harness.brokers import SextonCluster
from sexton.records.header import HEADER_BYTES
from tests.compactor.live import (
    NODES,
    SETTINGS,
    TOPIC_SETTINGS,
    RunningCompactor,
    Writer,
    check_folds,
    sexton,
    status_of,
    wait_until,
)

pytestmark = pytest.mark.cluster


def test_a_damaged_replica_is_uncleanable_until_it_is_copied_again() -> None:
    with SextonCluster(nodes=3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        writer = Writer(cluster.bootstrap)
        writer.write(300)
        damaged = next(node for node, one in status_of(cluster, "t").items() if one["role"] == "leader")
        path = cluster.partition_dir(damaged, "t", 0) / f"{0:020d}.log"
        path.write_bytes(_with_a_flipped_bit(path.read_bytes()))
        with RunningCompactor(cluster):
            wait_until("it is uncleanable", lambda: status_of(cluster, "t")[damaged]["uncleanable"] is not None, 120)
            others = [node for node in NODES if node != damaged]
            wait_until(
                "the others compact by themselves",
                lambda: all(status_of(cluster, "t")[node]["mcco"] > 100 for node in others),
                120,
            )
            one = status_of(cluster, "t")[damaged]
            assert one["mcco"] == 0
            assert "CRC does not match" in one["uncleanable"]["why"]
            assert one["uncleanable"]["attempts_count"] == 1
            (told,) = [one for one in sexton(cluster.bootstrap, "status", "t")["replicas"] if one["uncleanable"]]
            assert told["broker"] == damaged
            writer.write(200)
            wait_until("they go on", lambda: all(status_of(cluster, "t")[node]["mcco"] > 350 for node in others), 120)
            assert status_of(cluster, "t")[damaged]["uncleanable"]["attempts_count"] == 1, "more of it heals nothing"
            why = sexton(cluster.bootstrap, "why", "t:0", "--offset", str(one["log_end_offset"] - 1))
            assert any("cannot be compacted since" in line for line in why["waits_for"]), why
            read_from_the_beginning(cluster)
            wait_until(
                "whoever reads it finds it damaged, and it is copied again from others",
                lambda: status_of(cluster, "t")[damaged]["uncleanable"] is None,
                120,
            )
            wait_until("it is compacted", lambda: status_of(cluster, "t")[damaged]["mcco"] > 350, 120)
            check_folds(cluster, writer)


def read_from_the_beginning(cluster: SextonCluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.poll(60) is not None
    finally:
        consumer.close()


def _with_a_flipped_bit(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[HEADER_BYTES + 9] ^= 1
    return bytes(changed)
