"""The wall clock of a leader jumps: leases and rounds do not care, and S3 does, beyond a quarter of an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.harness.brokers import SextonCluster
from sexton.harness.clocks import Clocks
from sexton.harness.cloud_store import CloudStore
from tests.cloud.failures.conftest import SETTINGS
from tests.cloud.failures.load import Load, leader_of, until

pytestmark = [pytest.mark.cluster, pytest.mark.soak]


def test_writing_goes_on_though_clocks_jump_and_a_store_that_minds_is_waited_for(tmp_path: Path) -> None:
    cluster_dir = tmp_path / "cluster"
    with CloudStore(tmp_path / "store") as store, Clocks([1, 2, 3], tmp_path / "clocks") as clocks:
        cluster = SextonCluster(3, cluster_dir, SETTINGS, store=store)
        cluster.go_by(clocks)
        with cluster, Load(cluster, "clocks") as load:
            leader = leader_of(cluster, load.topic)
            for seconds in (600, -600, 0):
                clocks.set(leader, seconds)
                load.go_on()
            clocks.set(leader, 3_600)
            until(lambda: "clock" in cluster.server_log(leader), "the broker says that its clock is off")
            clocks.set(leader, 0)
            load.go_on()
