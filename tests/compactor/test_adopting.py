"""Compact once (docs/rules.md): one replica of three is compacted, the others adopt it. Real brokers, a real compactor.

The replicas are then byte for byte the same below the bound; what a crash or a change of leader interrupts is taken up
again; and tombstones wait for a replica that is away, as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.adapters.metastore import open_metastore
from sexton.cli.main import app
from sexton.harness.brokers import SextonCluster
from sexton.log.stopped import identical
from sexton.log.stopped.partition import open_partition
from sexton.log.stopped.surroundings import SextonReplicaError, Surroundings
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


def started(**settings: str) -> SextonCluster:
    return SextonCluster(nodes=3, settings={**SETTINGS, "compaction.share": "true", **settings})


@pytest.fixture
def cluster() -> Iterator[SextonCluster]:
    with started() as running:
        running.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        yield running


def runs(cluster: SextonCluster) -> list[tuple[int, str, int]]:
    """Broker, outcome and bound of what was done to the topic, the oldest first."""

    async def read() -> list[tuple[int, str, int]]:
        metastore = open_metastore(cluster.metastore_url)
        try:
            found = await metastore.read_runs(1000)
        finally:
            await metastore.close()
        return [(row.broker_id, row.outcome, row.bound) for row in reversed(found) if row.topic == "t"]

    return asyncio.run(read())


def leader_of(cluster: SextonCluster) -> int:
    return next(node for node, one in status_of(cluster, "t").items() if one["role"] == "leader")


def explain(cluster: SextonCluster) -> str:
    shown = ("role", "is_in_sync", "mcco", "mtro", "log_end_offset", "is_due", "why", "last_pass", "waits_for_leader")
    lines = [f"{node}: {[(name, one[name]) for name in shown]}" for node, one in status_of(cluster, "t").items()]
    return "\n".join(["", *lines, *map(str, runs(cluster))])


def is_same(cluster: SextonCluster) -> bool:
    """All have compacted as far, and hold the same below, byte for byte."""
    bounds = mcco(cluster)
    if len(bounds) < len(NODES) or len(set(bounds.values())) > 1 or not all(bounds.values()):
        return False
    first, *others = (open_partition(directory(cluster, node)) for node in NODES)
    return all(identical.compare(first, other, bounds[1]).is_same for other in others)


def directory(cluster: SextonCluster, node: int) -> Path:
    return cluster.base_dir / f"node-{node}" / "data" / "t-0"


def wait_for(cluster: SextonCluster, what: str, is_true: Callable[[], bool], timeout_s: float = 90) -> None:
    wait_until(what, is_true, timeout_s, lambda: explain(cluster))


def wait_until_tombstones_are_gone(cluster: SextonCluster) -> None:
    def are_gone() -> bool:
        return not any(tombstones_of(cluster, node, "t", b"doomed") for node in NODES)

    wait_for(cluster, "the tombstones are gone everywhere", are_gone, 120)


def check_same(cluster: SextonCluster) -> None:
    """And the command that operators have says so."""
    wait_for(cluster, "all replicas are the same below their MCCO", lambda: is_same(cluster))
    first, *others = (str(directory(cluster, node)) for node in NODES)
    for other in others:
        shown = CliRunner().invoke(app, ["log", "diff", "--checksum", first, other])
        assert shown.exit_code == 0, shown.output
    # What other tools make of a Sexton broker's folder: they know its watermarks, and leave it to its cluster.
    assert open_partition(Path(first)).watermarks is not None
    with pytest.raises(SextonReplicaError):
        Surroundings(frozenset({Path(first).parent})).check_may_change(Path(first))


def test_one_replica_is_compacted_and_the_others_adopt_it(cluster: SextonCluster) -> None:
    writer = Writer(cluster.bootstrap)
    for value in (b"value", None):
        for key in range(5):
            writer.put(b"doomed %d" % key, value)
    writer.write(400)
    check_folds(cluster, writer)
    leader = leader_of(cluster)
    with RunningCompactor(cluster):
        wait_for(cluster, "all have compacted", lambda: min(mcco(cluster).values()) > 100)
        writer.write(100)
        wait_until_tombstones_are_gone(cluster)
        check_folds(cluster, writer)
        check_same(cluster)
    found = runs(cluster)
    assert {outcome for node, outcome, _ in found if node == leader} == {"committed"}
    assert {outcome for node, outcome, _ in found if node != leader} == {f"adopted from broker {leader}"}, found
    assert {one["last_pass"] for one in status_of(cluster, "t").values()} == {
        "compacted",
        f"adopted from broker {leader}",
    }


def test_a_broker_that_was_away_holds_tombstones_back_and_adopts_when_it_is_back(cluster: SextonCluster) -> None:
    writer = Writer(cluster.bootstrap)
    for key in range(5):
        writer.put(b"doomed %d" % key, b"value")
    writer.write(200)
    check_folds(cluster, writer)
    away = next(node for node in NODES if node != leader_of(cluster))
    others = tuple(node for node in NODES if node != away)
    cluster.kill_node(away)
    for key in range(5):
        writer.put(b"doomed %d" % key, None)
    writer.write(300)
    with RunningCompactor(cluster):
        wait_for(cluster, "the others have compacted", lambda: min(mcco(cluster).values()) > 250)
        assert all(one["mtro"] == 0 for one in status_of(cluster, "t").values()), "one has compacted nothing"
        assert all(tombstones_of(cluster, node, "t", b"doomed") == 5 for node in others), "rule 5"
        check_folds(cluster, writer, others)
        cluster.start_node(away)
        wait_until_tombstones_are_gone(cluster)
        check_folds(cluster, writer)
        check_same(cluster)
    assert {outcome for node, outcome, _ in runs(cluster) if node == away} == {
        f"adopted from broker {leader_of(cluster)}"
    }


def test_a_follower_killed_and_a_leader_changed_in_the_middle_of_adoptions() -> None:
    """So slowly that it is in the middle: a few segments a second."""
    with started(**{"compaction.share.max.bytes.per.second": "3000"}) as cluster:
        cluster.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        writer = Writer(cluster.bootstrap)
        writer.write(600, keys_count=200)
        check_folds(cluster, writer)
        leader = leader_of(cluster)
        follower, other = (node for node in NODES if node != leader)
        with RunningCompactor(cluster):
            wait_for(cluster, "the leader has compacted", lambda: mcco(cluster)[leader] > 300)
            staged = f"node-{follower}/data/t-0/staged-*/*"
            wait_for(cluster, "a follower copies", lambda: any(cluster.base_dir.glob(staged)))
            cluster.kill_node(follower)
            cluster.start_node(follower)
            check_folds(cluster, writer)
            staged = f"node-{other}/data/t-0/staged-*/*"
            wait_for(
                cluster, "another copies", lambda: any(cluster.base_dir.glob(staged)) or mcco(cluster)[other] > 300
            )
            cluster.kill_node(leader)
            writer.write(300, keys_count=200)
            cluster.start_node(leader)
            check_folds(cluster, writer)
            wait_for(cluster, "all have compacted", lambda: min(mcco(cluster).values()) > 600, 180)
            check_folds(cluster, writer)
        assert any(outcome.startswith("adopted") for _, outcome, _ in runs(cluster))
        assert all(one["is_in_sync"] for one in status_of(cluster, "t").values())
