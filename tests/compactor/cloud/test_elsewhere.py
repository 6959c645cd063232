"""A Spark cluster whose workers see no directory of ours: they have the address of the store, and its credentials."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.harness.asking import create_topic
from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import CloudStore
from sexton.harness.compactor import CompactorProcess
from sexton.ports.cloud import CloudPartitionRow
from sexton.ports.metastore import ConfigScope
from tests import standalone_spark
from tests.compactor.cloud.test_live import (
    CLOUD,
    COMPACTED,
    PARTITIONS,
    newest,
    read_committed,
    wait_until,
    write_transactions,
)
from tests.standalone_spark import LAUNCHED, standalone_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def test_a_spark_cluster_elsewhere_levels_and_compacts_through_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CloudStore(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setitem(standalone_spark.ENVIRONMENT, name, value)
        with (
            SextonCluster(1, tmp_path / "cluster", store=store) as cluster,
            standalone_cluster(tmp_path) as (master, worker_logs),
        ):
            create_topic(cluster.bootstrap, "table", PARTITIONS, 1, COMPACTED)
            create_topic(cluster.bootstrap, "events", PARTITIONS, 1, CLOUD)
            write_transactions(cluster.bootstrap, ["table", "events"], random.Random(3))
            before = {topic: read_committed(cluster.bootstrap, topic) for topic in ("table", "events")}
            level_at_once = {"cloud.level.ms": "0"}
            ask(cluster, lambda metastore: metastore.change_settings(ConfigScope.BROKER, "", level_at_once))
            options = ("--master", master, "--nice", "0")
            with CompactorProcess(cluster.metastore_url, tmp_path, *options, store=store) as compactor:
                wait_until("leveled and compacted", lambda: is_done(cluster), compactor.log_path)
            assert any(LAUNCHED.search(log.read_text()) for log in worker_logs)
            assert read_committed(cluster.bootstrap, "events") == before["events"]
            assert read_committed(cluster.bootstrap, "table") == newest(before["table"])


def is_done(cluster: SextonCluster) -> bool:
    rows: list[CloudPartitionRow] = ask(cluster, lambda metastore: metastore.read_cloud_partitions())
    are_leveled = all(row.leveled_offset == row.end_offset > 0 for row in rows)
    return are_leveled and sum(row.cleaned_offset == row.end_offset for row in rows) == PARTITIONS


def ask(cluster: SextonCluster, question: Callable[[Any], Any]) -> Any:
    async def go() -> Any:
        metastore = open_metastore(cluster.metastore_url)
        try:
            return await question(metastore)
        finally:
            await metastore.close()

    return asyncio.run(go())
