"""A cluster compacts itself while it is used: three real brokers and a compactor.

The read_committed fold of every replica stays what it was; a tombstone leaves a replica only after all three have
compacted past it, however long one of them is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sexton.compactor.engine import Engine
from sexton.harness.brokers import SextonCluster
from tests.compactor.live import (
    NODES,
    SETTINGS,
    TOPIC_SETTINGS,
    RunningCompactor,
    Writer,
    check_folds,
    mcco,
    status_of,
    tombstones_of,
    wait_until,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster() -> Iterator[SextonCluster]:
    with SextonCluster(nodes=3, settings=SETTINGS) as running:
        running.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        yield running


def test_all_replicas_are_compacted_and_tombstones_leave(cluster: SextonCluster) -> None:
    check_compaction(cluster, None)


@pytest.mark.spark
@pytest.mark.soak
def test_all_replicas_are_compacted_on_spark(cluster: SextonCluster) -> None:
    """In `make test` the compactors of test_kills.py are on Spark, and test_remote.py has a whole cluster of it."""
    from sexton.compactor.engines.spark import SparkEngine

    check_compaction(cluster, lambda: SparkEngine("local[2]"))


def check_compaction(cluster: SextonCluster, engine: Callable[[], Engine] | None) -> None:
    writer = Writer(cluster.bootstrap)
    for key in range(5):
        writer.put(b"doomed %d" % key, b"value")
    for key in range(5):
        writer.put(b"doomed %d" % key, None)
    writer.write(400)
    check_folds(cluster, writer)
    before = {node: one["size_bytes"] for node, one in status_of(cluster, "t").items()}
    with RunningCompactor(cluster, engine):
        wait_until("all have compacted", lambda: min(mcco(cluster).values()) > 100, 120)
        check_folds(cluster, writer)
        writer.write(100)
        wait_until(
            "the tombstones are gone everywhere",
            lambda: not any(tombstones_of(cluster, node, "t", b"doomed") for node in NODES),
            120,
        )
        check_folds(cluster, writer)
    after = {node: one["size_bytes"] for node, one in status_of(cluster, "t").items()}
    assert all(after[node] < before[node] for node in NODES)


def test_a_broker_that_is_down_holds_tombstones_back_and_catches_up(cluster: SextonCluster) -> None:
    writer = Writer(cluster.bootstrap)
    for key in range(5):
        writer.put(b"doomed %d" % key, b"value")
    writer.write(200)
    check_folds(cluster, writer)
    cluster.kill_node(3)
    for key in range(5):
        writer.put(b"doomed %d" % key, None)
    writer.write(300)
    with RunningCompactor(cluster):
        wait_until("the others have compacted", lambda: min(mcco(cluster).values()) > 250)
        writer.write(300)
        wait_until("again", lambda: min(mcco(cluster).values()) > 550)
        assert all(one["mtro"] == 0 for one in status_of(cluster, "t").values()), "broker 3 has compacted nothing"
        for node in (1, 2):
            assert tombstones_of(cluster, node, "t", b"doomed") == 5, "rule 5"
        check_folds(cluster, writer, (1, 2))
        cluster.start_node(3)
        wait_until(
            "the tombstones are gone, for all are past them",
            lambda: not any(tombstones_of(cluster, node, "t", b"doomed") for node in NODES),
            120,
        )
        check_folds(cluster, writer)
    assert all(one["is_in_sync"] for one in status_of(cluster, "t").values())
