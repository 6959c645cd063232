"""Debezium: the changes of a table in PostgreSQL, as records in a compacted topic, with Connect's exactly-once source.

What a row was and became is one record, and a tombstone after it if the row is gone; the place in PostgreSQL's log that
they are from is written in the same transaction. So a change that is lost or comes twice is Connect's, or the broker's.
"""

from __future__ import annotations

import json
import random
import threading
import urllib.parse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from sexton.harness.postgres import Postgres
from sexton.verify.clients.base import Record
from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.frameworks.asking import partitions_of, settings_of
from tests.interop.frameworks.following import Follower
from tests.interop.frameworks.programs import fault_settings, kill_and_start, wait_until
from tests.interop.frameworks.servers import ConnectServer
from tests.interop.frameworks.versions import DEBEZIUM, Framework
from tests.postgres import running_postgres
from tests.transactions.reading import places_of, settled

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BROKERS: Final = 3
PARTITIONS: Final = 3
ROWS: Final = 40
RATE_PER_S: Final = 50
SEED: Final = 7

CONNECTOR: Final = "bank"
TOPIC: Final = "bank.public.accounts"
PLACES: Final = places_of([TOPIC], PARTITIONS)
STATE_TOPICS: Final = (
    *("__transaction_state", "__consumer_offsets"),
    *(f"worker-{kind}" for kind in ("configs", "offsets", "status")),
)
CREATED_WITH: Final = {"cleanup.policy": "compact", "min.insync.replicas": "2"}

FIRST: Final = ROWS
"""A row that is there before the connector is, and is told of as one that was read."""

Change = tuple[str, int]
"""Debezium's letter (read, create, update or delete), and the row's version; of a row that is gone, its last one."""


class Clerk(threading.Thread):
    """Changes rows until it is told to stop, and knows what it did to each."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.changes: defaultdict[int, list[Change]] = defaultdict(list, {FIRST: [("r", 0)]})
        self.rows: dict[int, int] = {}
        self.error: BaseException | None = None
        self._versions: defaultdict[int, int] = defaultdict(int)
        self._url = url
        self._choice = random.Random(SEED)
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as database:
                while not self._is_over.wait(1 / RATE_PER_S):
                    self._change(database, self._choice.randrange(ROWS))
        except BaseException as error:
            self.error = error

    def _change(self, database: psycopg.Connection[Any], row: int) -> None:
        if row in self.rows and self._choice.random() < 0.3:
            database.execute("DELETE FROM accounts WHERE id = %s", (row,))
            self.changes[row].append(("d", self.rows.pop(row)))
            return
        self._versions[row] += 1
        version = self._versions[row]
        statement = (
            "UPDATE accounts SET version = %s WHERE id = %s"
            if row in self.rows
            else "INSERT INTO accounts (version, id) VALUES (%s, %s)"
        )
        database.execute(statement, (version, row))
        self.changes[row].append(("u" if row in self.rows else "c", version))
        self.rows[row] = version

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        assert self.error is None, self.error


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in DEBEZIUM])
def test_every_change_of_a_table_is_written_once_whoever_is_killed(
    client: Framework, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.classpath()  # fetched first, if need be
    with (
        bank() as database,
        start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster,
        closing(Worker(client, tmp_path / "worker", cluster.bootstrap)) as worker,
    ):
        worker.start()
        wait_until(lambda: worker.ask("GET", "/connectors") == [], "the worker serves")
        worker.follow(database)
        wait_until(lambda: partitions_of(cluster.bootstrap, TOPIC) == PARTITIONS, "the worker has created the topic")
        clerk = Clerk(database)
        clerk.start()
        with closing(Follower(cluster.bootstrap, PLACES)) as reader:
            go_through_faults(cluster, worker, reader)
        clerk.stop()
        deleted = sum(kind == "d" for changes in clerk.changes.values() for kind, _ in changes)
        expected = deleted + total(clerk.changes)
        wait_until(lambda: len(settled(cluster.bootstrap, PLACES)) >= expected, "all changes are written")
        records = settled(cluster.bootstrap, PLACES)
        assert changes_in(records) == clerk.changes
        assert sum(not record.value for record in records) == deleted, "a tombstone each"
        assert settings_of(cluster.bootstrap, TOPIC).items() >= CREATED_WITH.items()


@contextmanager
def bank() -> Iterator[str]:
    """The URL of a database whose changes can be followed, and a table with one row."""
    with running_postgres() as server:
        follow_changes(server)
        url = server.new_database()
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("CREATE TABLE accounts (id int PRIMARY KEY, version int NOT NULL)")
            database.execute("ALTER TABLE accounts REPLICA IDENTITY FULL")  # or a delete would tell the key alone
            database.execute("INSERT INTO accounts VALUES (%s, 0)", (FIRST,))
        yield url


def follow_changes(server: Postgres) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as database:
        database.execute("ALTER SYSTEM SET wal_level = 'logical'")
    server.stop()
    server.start()


class Worker(ConnectServer):
    def __init__(self, client: Framework, directory: Path, bootstrap: str) -> None:
        super().__init__(client, "org.apache.kafka.connect.cli.ConnectDistributed", directory, {})
        self.settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "listeners": f"http://{self.address}",
            "exactly.once.source.support": "enabled",
            "config.storage.topic": "worker-configs",
            "offset.storage.topic": "worker-offsets",
            "offset.storage.partitions": 3,
            "status.storage.topic": "worker-status",
            "status.storage.partitions": 2,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": False,
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": False,
            "plugin.discovery": "service_load",
        }

    def follow(self, url: str) -> None:
        where = urllib.parse.urlsplit(url)
        config = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "exactly.once.support": "required",
            "tasks.max": 1,
            "plugin.name": "pgoutput",
            "topic.prefix": CONNECTOR,
            "database.hostname": where.hostname,
            "database.port": where.port,
            "database.user": where.username,
            "database.password": "",
            "database.dbname": where.path.lstrip("/"),
            "table.include.list": "public.accounts",
            "topic.creation.default.partitions": PARTITIONS,
            "topic.creation.default.replication.factor": BROKERS,
            **{f"topic.creation.default.{name}": value for name, value in CREATED_WITH.items()},
        }
        wait_until(lambda: self.ask("PUT", f"/connectors/{CONNECTOR}/config", config) is not None, "it is created")


def go_through_faults(cluster: ClusterUnderTest, worker: Worker, reader: Follower) -> None:
    """The worker is killed and comes back, then each broker."""
    wait_until(reader.going_on(100), "changes are written")
    worker.kill()
    worker.start()
    for node_id in range(1, BROKERS + 1):
        wait_until(reader.going_on(100), "changes are written")
        kill_and_start(cluster, node_id, [TOPIC, *STATE_TOPICS], reader.going_on(100))


def total(changes: Mapping[int, Sequence[Change]]) -> int:
    return sum(map(len, changes.values()))


def changes_in(records: Iterable[Record]) -> dict[int, list[Change]]:
    """By row, in order."""
    found = defaultdict(list)
    for record in records:
        if record.value:
            told = json.loads(record.value)
            row = told["after"] or told["before"]
            found[row["id"]].append((told["op"], row["version"]))
    return found
