"""Kafka Connect's exactly-once source support (KIP-618): a source's records and its offsets are one transaction.

Workers also lean on a broker in other ways: a compacted topic read to its end again and again, a group protocol of
their own, topics that they create, and transactions that one worker opens only to fence those of another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.frameworks.asking import partitions_of, settings_of
from tests.interop.frameworks.following import Follower
from tests.interop.frameworks.programs import fault_settings, kill_and_start, wait_until
from tests.interop.frameworks.servers import ConnectServer
from tests.interop.frameworks.versions import CONNECT, Framework
from tests.transactions.reading import places_of, settled, values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BROKERS: Final = 3
PARTITIONS: Final = 3
RATE_PER_S: Final = 50
TOPICS: Final = ("polled", "timed")
"""A transaction for each poll of the task, and one for each interval."""

CREATED_WITH: Final = {
    "compression.type": "lz4",
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "retention.ms": "-1",
}
"""What workers are asked to set on topics that they create."""

OWN_TOPICS: Final = ("workers-configs", "workers-offsets", "workers-status", "timed-offsets")
STATE_TOPICS: Final = ("__transaction_state", "__consumer_offsets", *OWN_TOPICS)


class Feed(threading.Thread):
    """Appends lines to a file until it is told to stop."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.lines: set[str] = set()
        self._is_over = threading.Event()

    def run(self) -> None:
        with self.path.open("a", buffering=1) as file:
            while not self._is_over.wait(1 / RATE_PER_S):
                line = f"{self.path.stem}-{len(self.lines)}"
                file.write(f"{line}\n")
                self.lines.add(line)

    def stop(self) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in CONNECT])
def test_every_line_of_a_source_is_committed_once_whoever_is_killed(
    client: Framework, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.classpath()  # fetched first, if need be
    feeds = {topic: Feed(tmp_path / f"{topic}.txt") for topic in TOPICS}
    with (
        start_cluster(request, tmp_path / "cluster", BROKERS, fault_settings(request.config)) as cluster,
        at_work(client, cluster, tmp_path) as workers,
    ):
        for feed in feeds.values():
            feed.start()
        for topic in TOPICS:
            create_connector(workers, topic, feeds[topic].path)
        wait_until(
            lambda: all(partitions_of(cluster.bootstrap, topic) == PARTITIONS for topic in TOPICS),
            "the worker has created the topics",
        )
        with closing(Follower(cluster.bootstrap, places_of(TOPICS, PARTITIONS))) as reader:
            go_through_faults(cluster, workers, reader)
            for feed in feeds.values():
                feed.stop()
            wait_until(reader.has_all({topic: feed.lines for topic, feed in feeds.items()}), "all is committed")
        wait_until(lambda: is_shared(workers), "nobody had to help a connector or its task")
        for topic, feed in feeds.items():
            read = sorted(values(settled(cluster.bootstrap, places_of([topic], PARTITIONS))))
            assert read == sorted(line.encode() for line in feed.lines), "each once"
            assert settings_of(cluster.bootstrap, topic).items() >= CREATED_WITH.items()


@contextmanager
def at_work(client: Framework, cluster: ClusterUnderTest, directory: Path) -> Iterator[Sequence[ConnectServer]]:
    """Two workers that have joined their group."""
    with ExitStack() as stack:
        workers = []
        for number in (1, 2):
            worker = Worker(client, directory / f"worker-{number}", cluster.bootstrap)
            stack.callback(worker.close)
            worker.start()
            workers.append(worker)
        wait_until(lambda: all(worker.ask("GET", "/connectors") == [] for worker in workers), "both workers serve")
        yield workers


class Worker(ConnectServer):
    def __init__(self, client: Framework, directory: Path, bootstrap: str) -> None:
        super().__init__(client, "org.apache.kafka.connect.cli.ConnectDistributed", directory, {})
        self.settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "workers",
            "listeners": f"http://{self.address}",
            "exactly.once.source.support": "enabled",
            "config.storage.topic": "workers-configs",
            "offset.storage.topic": "workers-offsets",
            "offset.storage.partitions": 3,
            "status.storage.topic": "workers-status",
            "status.storage.partitions": 2,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "service_load",
            # What a killed worker leaves is taken over soon.
            "scheduled.rebalance.max.delay.ms": 1_000,
        }


def create_connector(workers: Sequence[ConnectServer], topic: str, path: Path) -> None:
    creation = {f"topic.creation.default.{name}": value for name, value in CREATED_WITH.items()}
    config: dict[str, object] = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "exactly.once.support": "required",
        "tasks.max": 1,
        "file": str(path),
        "topic": topic,
        "topic.creation.default.partitions": PARTITIONS,
        "topic.creation.default.replication.factor": BROKERS,
        **creation,
    }
    if topic == "timed":
        config |= {
            "transaction.boundary": "interval",
            "transaction.boundary.interval.ms": 500,
            "offsets.storage.topic": "timed-offsets",
        }
    wait_until(lambda: workers[0].ask("PUT", f"/connectors/{topic}/config", config) is not None, "it is created")


def go_through_faults(cluster: ClusterUnderTest, workers: Sequence[ConnectServer], reader: Follower) -> None:
    """Each worker is killed and comes back, then each broker; the next fault comes when work goes on, and is shared.

    A task that is about to start gives its worker 3 s to read a topic of its own to the end, or fails: no broker is
    killed in that moment."""
    for worker in workers:
        wait_until(reader.going_on(100), "lines are committed")
        worker.kill()
        wait_until(reader.going_on(100), "lines are committed without it")
        worker.start()
        wait_until(lambda: is_shared(workers), "each worker has a connector and a task")
    for node_id in range(1, BROKERS + 1):
        wait_until(reader.going_on(100), "lines are committed")
        kill_and_start(cluster, node_id, [*TOPICS, *STATE_TOPICS], reader.going_on(100))


def is_shared(workers: Sequence[ConnectServer]) -> bool:
    states = states_of(workers)
    at_work = {place: worker for place, (worker, state) in states.items() if state == "RUNNING"}
    return len(at_work) == 2 * len(TOPICS) and all(
        len({worker for (_, kind), worker in at_work.items() if kind == wanted}) == len(workers)
        for wanted in ("connector", "task")
    )


def states_of(workers: Sequence[ConnectServer]) -> dict[tuple[str, str], tuple[str, str]]:
    """By connector, of itself and its task: which worker, and the state; nothing while the worker does not say."""
    found = workers[0].ask("GET", "/connectors?expand=status") or {}
    return {
        (name, kind): (one["worker_id"], one["state"])
        for name, told in found.items()
        for kind, one in [("connector", told["status"]["connector"]), *(("task", e) for e in told["status"]["tasks"])]
    }
