"""Spark elsewhere: executors that cannot see the brokers' directories compact through the brokers' ports.

What hides the directories here is that the engine is told of paths that do not exist, as they would not on another
machine: whoever tried to open a file under them would fail.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.adapters.sockets import SocketNetwork
from sexton.broker.compaction import bulk
from sexton.compaction.contract import Plan
from sexton.compactor.brokers import Brokers
from sexton.compactor.engine import PlanOutcome
from sexton.compactor.engines import spark_job
from sexton.harness.brokers import SextonCluster
from sexton.ports.work_queue import WorkKey
from sexton.protocol.private import PrivateApi
from sexton.spark import rewrite_pass
from tests.compactor.live import (
    NODES,
    SETTINGS,
    TOPIC_SETTINGS,
    Writer,
    check_folds,
    mcco,
    status_of,
    wait_until,
)
from tests.project import PROJECT_DIR
from tests.spark.local_context import LocalContext
from tests.standalone_spark import ENVIRONMENT, LAUNCHED, standalone_cluster

pytestmark = pytest.mark.cluster


@contextmanager
def compactor_elsewhere(cluster: SextonCluster, master: str, nowhere: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.compactor.elsewhere", cluster.metastore_url, master, str(nowhere)]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{PROJECT_DIR}/src"}
    with subprocess.Popen(command, cwd=PROJECT_DIR, env=environment) as process:
        try:
            yield
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.spark
def test_a_spark_cluster_without_the_brokers_disks_compacts_through_their_ports(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with (
        SextonCluster(nodes=3, settings=SETTINGS) as cluster,
        standalone_cluster(tmp_path) as (master, worker_logs),
    ):
        cluster.create_topic("t", replication_factor=3, config=TOPIC_SETTINGS)
        writer = Writer(cluster.bootstrap)
        writer.write(400)
        check_folds(cluster, writer)
        before = {node: one["size_bytes"] for node, one in status_of(cluster, "t").items()}
        with compactor_elsewhere(cluster, master, nowhere):
            wait_until("all have compacted", lambda: min(mcco(cluster).values()) > 100, 120)
            check_folds(cluster, writer)
        assert any(LAUNCHED.search(log.read_text()) for log in worker_logs)
        after = {node: one["size_bytes"] for node, one in status_of(cluster, "t").items()}
        assert all(after[node] < before[node] for node in NODES)


@pytest.fixture(scope="module")
def lone_broker() -> Iterator[SextonCluster]:
    with SextonCluster(nodes=1, settings={**SETTINGS, "log.cleaner.backoff.ms": "600000"}) as cluster:
        cluster.create_topic("t", replication_factor=1, config=TOPIC_SETTINGS)
        Writer(cluster.bootstrap).write(400)
        yield cluster


@contextmanager
def planned(cluster: SextonCluster, count: int) -> Iterator[tuple[list[Plan], Brokers, asyncio.Runner]]:
    """Plans for the same replica, and whoever can commit them."""
    with asyncio.Runner() as runner:

        async def plan() -> tuple[list[Plan], Brokers]:
            metastore = open_metastore(cluster.metastore_url)
            brokers = Brokers(SocketNetwork(), metastore, "test")
            (topic,) = (await metastore.read_changes(0)).topics
            key = WorkKey(1, topic.topic_id, 0)
            await brokers.ask(1, PrivateApi.COMPACTION_REQUEST, {"topic": "t", "partition": None})
            found = [await brokers.plan(key) for _ in range(count)]
            await metastore.close()
            return found, brokers

        plans, brokers = runner.run(plan())
        try:
            yield plans, brokers, runner
        finally:
            runner.run(_abandon(brokers, plans))


async def _abandon(brokers: Brokers, plans: Sequence[Plan]) -> None:
    for plan in plans:
        await brokers.abandon(plan)
    brokers.close()


def run(plan: Plan, *, is_remote: bool) -> PlanOutcome:
    (outcome,) = spark_job.run(LocalContext(random.Random(1)).as_spark, [plan], is_remote=is_remote)
    return outcome


def staged(plan: Plan) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(plan.staging).glob("*.log.cleaned")}


@pytest.mark.parametrize("piece_bytes", [300, 1 << 20])
def test_through_the_port_the_same_segments_are_staged_byte_for_byte(
    lone_broker: SextonCluster, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Also when they travel in many pieces, and when a new segment is old stretches and parts by turns."""
    monkeypatch.setattr(bulk, "READ_BYTES_MAX", piece_bytes)
    monkeypatch.setattr(bulk, "WRITE_BYTES_MAX", piece_bytes)
    monkeypatch.setattr(rewrite_pass, "LINKED_RUN_BYTES_MIN", piece_bytes)
    with planned(lone_broker, 2) as ((here, elsewhere), _, _):
        local, remote = run(here, is_remote=False), run(elsewhere, is_remote=True)
        assert local.result is not None, local.error
        assert remote.result is not None, remote.error
        assert local.result.segments == remote.result.segments != ()
        assert local.result.fates == remote.result.fates
        assert staged(here) == staged(elsewhere) != {}


def test_a_task_on_the_brokers_disk_opens_files_and_one_elsewhere_does_not(
    lone_broker: SextonCluster,
) -> None:
    """Told by the staging directory, which has a name that nobody can guess."""
    with planned(lone_broker, 2) as ((here, elsewhere), _, _):
        assert run(replace(here, port=1), is_remote=False).result is not None, "nobody was asked"
        elsewhere = replace(elsewhere, staging=elsewhere.staging + "x")
        assert run(elsewhere, is_remote=False).result is not None


def test_a_broker_that_does_not_answer_fails_its_plan_and_says_why(lone_broker: SextonCluster) -> None:
    with planned(lone_broker, 1) as ((plan,), _, _):
        outcome = run(replace(plan, port=1), is_remote=True)
    assert outcome.result is None
    assert outcome.error.startswith("127.0.0.1:1: the broker does not answer (Connection refused)")


def test_a_plan_that_was_given_up_cannot_be_carried_out(lone_broker: SextonCluster) -> None:
    with planned(lone_broker, 1) as ((plan,), brokers, runner):
        runner.run(brokers.abandon(plan))
        outcome = run(plan, is_remote=True)
    assert outcome.result is None
    assert "no such plan is under way here" in outcome.error
