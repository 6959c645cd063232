"""`sexton cluster` on real brokers."""

from __future__ import annotations

import json

import pytest

from sexton.harness.brokers import SextonCluster
from tests.cli.conftest import Sexton

pytestmark = pytest.mark.cluster


def test_a_healthy_cluster_says_so(sexton: Sexton, topic: str) -> None:
    document = json.loads(sexton("cluster", "status", "--json", "--check").stdout)
    assert document["brokers"] == [1, 2, 3]
    assert document["healthy"]
    assert "All is well" in sexton("cluster", "status").stdout


def test_brokers_are_shown_with_what_they_hold(sexton: Sexton, topic: str, brokers: SextonCluster) -> None:
    rows = json.loads(sexton("cluster", "brokers", "--json").stdout)
    assert ",".join(row["address"] for row in rows) == brokers.bootstrap
    assert sum(row["controller"] for row in rows) == 1
    assert all(row["replicas"] >= 2 for row in rows)


def test_log_folders_are_shown_with_their_sizes(sexton: Sexton, topic: str, brokers: SextonCluster) -> None:
    sexton.produce(topic, "x" * 1000, options=("--partition", "0"))
    directories = json.loads(sexton("cluster", "log-dirs", "--topic", topic, "--json").stdout)
    assert [each["path"] for each in directories] == [str(brokers.log_dir(node)) for node in brokers.node_ids]
    for each in directories:
        sizes = {log["partition"]: log["size_bytes"] for log in each["logs"]}
        assert sizes[0] > 1000
        assert sizes[1] == 0


def test_a_table_in_a_pipe_is_not_cut_off(sexton: Sexton, topic: str) -> None:
    told = sexton("compaction", "status", topic)
    assert "Nothing here is compacted" in told.stderr
    assert not told.stdout
    sexton("config", "set", "--topic", topic, "cleanup.policy=compact")
    table = sexton("compaction", "status", topic).stdout
    for word in ("broker", "MCCO", "MXFO", "MTRO", "MXRO", "follower", "leader", f"{topic}-0"):
        assert word in table
