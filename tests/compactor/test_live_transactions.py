"""Transactions on a cluster that compacts itself: aborted records stay hidden, committed ones stay, while a broker is
away that has seen only half of it. And what an operator is told meanwhile."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from sexton.harness.brokers import SextonCluster
from tests.compactor.live import (
    NODES,
    SETTINGS,
    TOPIC_SETTINGS,
    RunningCompactor,
    batches_of,
    fold_of,
    sexton,
    status_of,
    wait_until,
)

pytestmark = pytest.mark.cluster


def transact(producer: Producer, records: dict[bytes, bytes | None], *, is_committed: bool) -> None:
    producer.begin_transaction()
    for key, value in records.items():
        producer.produce("t", value, key, partition=0)
    producer.flush(30)
    if is_committed:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def fill(cluster: SextonCluster, count: int) -> None:
    """So that segments close."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 1})
    for index in range(count):
        producer.produce("t", b"x" * 100, b"filler %d" % (index % 3), partition=0)
    assert producer.flush(60) == 0


def markers_of(cluster: SextonCluster, node: int) -> int:
    return sum(batch.is_control and bool(batch.records) for batch in batches_of(cluster, node, "t"))


def without_filler(fold: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    return {key: value for key, value in fold.items() if not key.startswith(b"filler")}


def test_aborted_records_stay_hidden_and_committed_ones_stay_while_a_broker_is_away() -> None:
    with SextonCluster(nodes=3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "one", "linger.ms": 0})
        producer.init_transactions(30)
        transact(producer, {b"kept": b"1", b"replaced": b"1"}, is_committed=True)
        transact(producer, {b"kept": b"aborted", b"never": b"aborted"}, is_committed=False)
        fill(cluster, 60)
        expected = {b"kept": b"1", b"replaced": b"2"}
        wait_until("all have it", lambda: len({len(batches_of(cluster, node, "t")) for node in NODES}) == 1)
        cluster.kill_node(3)
        transact(producer, {b"replaced": b"2"}, is_committed=True)
        transact(producer, {b"never": b"aborted again"}, is_committed=False)
        fill(cluster, 60)
        with RunningCompactor(cluster):
            wait_until(
                "the others have compacted", lambda: min(o["mcco"] for o in status_of(cluster, "t").values()) > 80
            )
            for node in (1, 2):
                assert without_filler(fold_of(cluster, node, "t")) == expected
                assert markers_of(cluster, node) == 4, "rule 6: broker 3 may hold records of these transactions"
            marker = next(b.base_offset for b in batches_of(cluster, 1, "t") if b.is_control)
            answer = sexton(cluster.bootstrap, "why", "t:0", "--offset", str(marker))
            assert "MXRO is 0" in answer["because"]
            assert any("broker 3" in line for line in answer["waits_for"])
            assert {one["broker"] for one in sexton(cluster.bootstrap, "status", "t")["replicas"]} == {1, 2}
            cluster.start_node(3)
            wait_until("all markers are gone", lambda: not any(markers_of(cluster, node) for node in NODES), 120)
            for node in NODES:
                assert without_filler(fold_of(cluster, node, "t")) == expected
            transact(producer, {b"kept": b"3"}, is_committed=True)  # its sequence has survived
            wait_until(
                "the new value is everywhere",
                lambda: all(fold_of(cluster, node, "t").get(b"kept") == b"3" for node in NODES),
            )
        runs = sexton(cluster.bootstrap, "history", "--limit", "5")["runs"]
        assert runs
        assert {run["topic"] for run in runs} <= {"t", "__consumer_offsets", "__transaction_state"}
