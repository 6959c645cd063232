"""Clusters that many tests share, and what is known of a broker's process from outside."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sexton.harness.brokers import SextonCluster
from tests.robustness.wire import API_VERSIONS, Wire

_topics = itertools.count(1)


def wait_until(reached: Callable[[], bool], timeout_s: float = 40, pause_s: float = 0.05) -> None:
    """A bound for what must happen at all: how soon it does depends on how busy the machine is."""
    end_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(pause_s)


class Watched:
    """One broker of a cluster: where it listens, what it says, how much memory it takes."""

    def __init__(self, cluster: SextonCluster, node_id: int = 1) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.address = cluster.bootstrap.split(",")[node_id - 1]
        self._read_up_to = 0

    def wire(self) -> Wire:
        return Wire(self.address)

    def new_topic(self, **config: str | int) -> str:
        name = f"topic-{next(_topics)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.cluster.create_topic(name, replication_factor=1, config=settings)
        return name

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.cluster.pid(self.node_id)).memory_info().rss)

    def new_log(self) -> str:
        """What it has said since this was last asked."""
        text = self.cluster.server_log(self.node_id)
        news, self._read_up_to = text[self._read_up_to :], len(text)
        return news

    def serves(self) -> bool:
        """It is up, answers a new client, and nothing has happened that nobody expected."""
        with self.wire() as wire:
            assert wire.call(API_VERSIONS, 0, {}).api_keys
        assert "Traceback" not in self.cluster.server_log(self.node_id)
        return True


@pytest.fixture(scope="package")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SextonCluster]:
    """With limits that a test can reach."""
    settings = {
        "socket.request.max.bytes": 16 << 20,
        "queued.max.request.bytes": 32 << 20,
        "offsets.topic.replication.factor": 1,
    }
    with SextonCluster(1, tmp_path_factory.mktemp("one") / "cluster", settings) as cluster:
        yield cluster


@pytest.fixture
def broker(one_broker: SextonCluster) -> Watched:
    watched = Watched(one_broker)
    watched.new_log()
    return watched


@pytest.fixture(scope="package")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SextonCluster]:
    with SextonCluster(3, tmp_path_factory.mktemp("three") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For a cluster of the test's own."""
    return tmp_path / "cluster"
