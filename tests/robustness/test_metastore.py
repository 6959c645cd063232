"""The metastore away: brokers stay up, serve while their lease lasts, then refuse with errors that clients retry, and
are themselves again soon after its return, without a restart (rule 12)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from sexton.harness.brokers import SextonCluster
from sexton.harness.postgres import Postgres
from sexton.protocol.errors import ErrorCode
from tests.postgres import running_postgres
from tests.robustness.conftest import Watched, wait_until
from tests.robustness.wire import CREATE_TOPICS, Wire, batch, refused

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]

LEASE = {"broker.lease.ms": 3000, "broker.lease.renew.ms": 500}
"""Shorter than the default, so that the tests are."""

RETRIABLE = (ErrorCode.not_controller, ErrorCode.request_timed_out)
"""Among those that an admin client tries again."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SextonCluster]:
    folder = tmp_path_factory.mktemp("metastore") / "cluster"
    with SextonCluster(2, folder, LEASE, metastore_url=postgres.new_database()) as started:
        started.create_topic("t", partitions=2, replication_factor=2)
        yield started


def serves_again(cluster: SextonCluster) -> None:
    """Both partitions have a leader that takes records, both replicas are in sync, and nothing unexpected was said."""
    for partition in (0, 1):
        wait_until(lambda partition=partition: _is_well(cluster, partition))  # type: ignore[misc]
    assert all(Watched(cluster, node_id).serves() for node_id in cluster.node_ids)


def _is_well(cluster: SextonCluster, partition: int) -> bool:
    with Watched(cluster, 1).wire() as wire:
        leader, in_sync = wire.leader_and_isr("t", partition)
    if leader == -1 or in_sync != [1, 2]:
        return False
    with Watched(cluster, leader).wire() as wire:
        return bool(wire.produce("t", batch(b"x"), partition=partition).base_offset >= 0)


def goes_away_and_comes_back(cluster: SextonCluster, away: Any, back: Any) -> None:
    pids = [cluster.pid(node_id) for node_id in cluster.node_ids]
    serves_again(cluster)
    partition = 0
    broker = Watched(cluster, cluster.leaders("t")[partition])
    broker.new_log()
    with broker.wire() as wire:
        offset = wire.produce("t", batch(b"before"), partition=partition).base_offset
        away()
        try:
            assert wire.produce("t", batch(b"under the lease"), partition=partition).base_offset == offset + 1
            wait_until(lambda: bool(wire.produce("t", batch(b"late"), partition=partition).error_code))
            assert refused(wire.produce("t", batch(b"late"), partition=partition), ErrorCode.not_leader_or_follower)
            assert _create_topic(wire) in RETRIABLE
            assert broker.serves()
            assert "Check that" in broker.new_log()
        finally:
            back()
        serves_again(cluster)
        held = wire.fetch("t", offset, partition=partition)
        assert held.error_code in (ErrorCode.none, ErrorCode.not_leader_or_follower)
    assert [cluster.pid(node_id) for node_id in cluster.node_ids] == pids


def nobody_is_fenced(cluster: SextonCluster, away: Any, back: Any) -> None:
    logs = [Watched(cluster, node_id) for node_id in cluster.node_ids]
    for log in logs:
        log.new_log()
    goes_away_and_comes_back(cluster, away, back)
    assert not any("fencing broker" in log.new_log() for log in logs)


def _create_topic(wire: Wire) -> ErrorCode:
    topic = {"name": "never", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    (told,) = wire.call(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 1000, "validate_only": False}).topics
    return ErrorCode(told.error_code)


def test_postgresql_is_stopped_and_started_again(cluster: SextonCluster, postgres: Postgres) -> None:
    goes_away_and_comes_back(cluster, postgres.stop, postgres.start)


def test_postgresql_hangs_for_a_while(cluster: SextonCluster, postgres: Postgres) -> None:
    goes_away_and_comes_back(cluster, postgres.pause, postgres.resume)


def test_postgresql_that_can_only_be_read_for_a_while_makes_nobody_dead(
    cluster: SextonCluster, postgres: Postgres
) -> None:
    """Everybody sees that nobody renews, and the first one that can write again must not fence the others for it: the
    ISR would be that one alone, when all are well."""
    database = cluster.metastore_url.rpartition("/")[2]
    with psycopg.connect(postgres.url(database)) as connection:

        def lock() -> None:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            for (name,) in tables:
                connection.execute(f'LOCK TABLE "{name}" IN EXCLUSIVE MODE'.encode())

        nobody_is_fenced(cluster, lock, connection.rollback)


def test_a_broker_that_starts_without_its_metastore_waits_for_it(cluster: SextonCluster, postgres: Postgres) -> None:
    broker = Watched(cluster, 2)
    cluster.kill_node(2)
    postgres.stop()
    broker.new_log()
    cluster.start_node(2, wait=False)
    wait_until(lambda: "waiting for the metastore" in cluster.server_log(2)[-2000:])
    assert "Check that PostgreSQL is running and reachable" in broker.new_log()
    assert cluster.is_running(2)
    postgres.start()
    cluster.wait_ready()
    serves_again(cluster)


@contextmanager
def cut_off(cluster: SextonCluster, postgres: Postgres, node_id: int) -> Iterator[None]:
    """Starts a broker again that reaches the metastore under a name of its own, which within is turned away."""

    def restart(url: str) -> None:
        before, cluster.metastore_url = cluster.metastore_url, url
        cluster.kill_node(node_id)
        cluster.start_node(node_id)
        cluster.metastore_url = before

    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE ROLE lonely SUPERUSER LOGIN")
        restart(cluster.metastore_url.replace("sexton@", "lonely@"))
        connection.execute("ALTER ROLE lonely NOLOGIN")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lonely'")
        try:
            yield
        finally:
            restart(cluster.metastore_url)
            connection.execute("DROP ROLE lonely")


def test_a_new_idempotent_producer_that_meets_a_fenced_broker_first_goes_to_another(
    cluster: SextonCluster, postgres: Postgres
) -> None:
    serves_again(cluster)
    with cut_off(cluster, postgres, 1):
        wait_until(lambda: _leads_all(cluster, 2))
        first, _ = cluster.bootstrap.split(",")
        told: list[Any] = []
        producer = Producer({"bootstrap.servers": first, "enable.idempotence": True, "log_level": 0})
        producer.produce("t", b"v", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(60) == 0, "it is still waiting for a producer id"
        assert told == [None]
    serves_again(cluster)


def _leads_all(cluster: SextonCluster, node_id: int) -> bool:
    with Watched(cluster, node_id).wire() as wire:
        return all(wire.leader_and_isr("t", partition)[0] == node_id for partition in (0, 1))


def test_a_locked_sqlite_file_is_waited_for(tmp_path: Path) -> None:
    with SextonCluster(2, tmp_path / "cluster", LEASE) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=2)
        held = sqlite3.connect(cluster.base_dir / "metastore.db", isolation_level=None)
        nobody_is_fenced(cluster, lambda: held.execute("BEGIN EXCLUSIVE"), held.rollback)
        held.close()
