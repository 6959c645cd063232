"""Real Sexton brokers on this machine, for tests, benchmarks and shows: one process each, as people run them.

The methods are those of `KafkaCluster`, so that a test or a benchmark takes either:

    with SextonCluster(nodes=3) as sexton:
        sexton.create_topic("t", replication_factor=3)
        ...  # produce to sexton.bootstrap
        sexton.kill_node(1)
        sexton.start_node(1)

On disk, `<base_dir>/node-<id>/` holds `data/` (the log directory), `broker.properties` and `broker.log` (what the
process printed). The metastore is an SQLite file in `base_dir`, or whatever `metastore_url` names.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import sexton
from sexton.clusters import asking
from sexton.clusters.errors import HarnessError
from sexton.clusters.processes import HOST, Port, ServerProcess
from sexton.clusters.properties import Settings, tail_of, write_properties

READY_TIMEOUT_S: Final = 60
"""A broker is up in a second or two; a busy machine may need ten times that and more."""

STOP_TIMEOUT_S: Final = 60
SEES_ALL_TIMEOUT_MS: Final = 1_000
POLL_INTERVAL_S: Final = 0.05
TAIL_LINES: Final = 40

OWN_SETTINGS: Final = frozenset({"node.id", "listeners", "advertised.listeners", "log.dirs", "metastore.url"})
"""What the harness decides itself."""

ENVIRONMENT: Final = {
    **os.environ,
    "PYTHONPATH": str(Path(sexton.__file__).resolve().parents[1]),
    "PYTHONUNBUFFERED": "1",
}


class _Node:
    """One broker's directory, port and, while it runs, its process."""

    def __init__(self, node_id: int, directory: Path) -> None:
        self.node_id = node_id
        self.directory = directory
        self.port = Port()
        self.process: ServerProcess | None = None
        self.data_dir.mkdir(parents=True, exist_ok=True)

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    @property
    def config_path(self) -> Path:
        return self.directory / "broker.properties"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port.number}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def is_serving(self) -> bool:
        return self.process is not None and self.process.is_running and not self.process.is_paused

    def spawn(self) -> None:
        self.kill()  # one that crashed has left its watchdog behind
        command = [sys.executable, "-m", "sexton.cli.main", "broker", "--config", str(self.config_path)]
        self.process = ServerProcess(command, self.log_path, ENVIRONMENT)

    def running_process(self) -> ServerProcess:
        if self.process is None or not self.process.is_running:
            raise HarnessError(f"broker {self.node_id} is not running.\n{self.describe_end()}")
        return self.process

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.process = None

    def describe_end(self) -> str:
        return tail_of(self.log_path, TAIL_LINES)


class SextonCluster:
    """Brokers numbered from 1. Used as a context manager it starts them all, ends them all, and removes their
    directories if the block succeeded; if it failed it prints the end of each log."""

    def __init__(
        self,
        nodes: int = 3,
        base_dir: Path | None = None,
        settings: Settings | None = None,
        node_settings: Mapping[int, Settings] | None = None,
        *,
        metastore_url: str | None = None,
        keep: bool = False,
    ) -> None:
        """Takes directories and ports, starts nothing. Settings are read at each start of a broker."""
        self.settings = dict(settings or {})
        self.node_settings = {node_id: dict(own) for node_id, own in (node_settings or {}).items()}
        self.keep = keep
        self._owns_base_dir = base_dir is None or not base_dir.exists()
        self.base_dir = base_dir.resolve() if base_dir else Path(tempfile.mkdtemp(prefix="sexton-cluster-"))
        self.metastore_url = metastore_url or f"sqlite:///{self.base_dir}/metastore.db"
        self._nodes = {node_id: _Node(node_id, self.base_dir / f"node-{node_id}") for node_id in range(1, nodes + 1)}

    # ---- Life of the cluster.

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close(failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    def start(self) -> None:
        """Start every broker that is not running, and wait until they all serve."""
        atexit.register(self._kill_all)
        for node in self._nodes.values():
            if not node.is_running:
                self._spawn(node)
        self.wait_ready()

    def stop(self) -> None:
        """Stop every running broker cleanly, in order."""
        for node in self._nodes.values():
            if node.is_running:
                self.stop_node(node.node_id)

    def close(self, failed: bool = False) -> None:
        """End what still runs, at once (call `stop()` before for a clean directory), and tidy up."""
        self._kill_all()
        atexit.unregister(self._kill_all)
        for node in self._nodes.values():
            node.port.release()
        if failed:
            for node in self._nodes.values():
                print(f"Sexton broker {node.node_id}\n{node.describe_end()}", file=sys.stderr)
        elif not self.keep:
            self._remove_directories()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every running, unpaused broker answers and lists all of these as live."""
        deadline_s = time.monotonic() + timeout_s
        serving = [node for node in self._nodes.values() if node.is_serving]
        expected = {node.node_id for node in serving}
        for node in serving:
            sees_all = partial(asking.sees_all, node.address, expected, SEES_ALL_TIMEOUT_MS)
            self._wait_until(node, "serve with all others", sees_all, deadline_s)

    # ---- Life of a broker.

    def start_node(self, node_id: int, wait: bool = True) -> None:
        node = self._node(node_id)
        if node.is_running:
            raise HarnessError(f"broker {node_id} is running already; stop_node or kill_node it first")
        self._spawn(node)
        if wait:
            self.wait_ready()

    def stop_node(self, node_id: int) -> None:
        """SIGTERM: leadership moves, everything is flushed, the process ends with 0."""
        node = self._node(node_id)
        process = node.running_process()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise HarnessError(
                f"broker {node_id} has not stopped {STOP_TIMEOUT_S} s after SIGTERM.\n{node.describe_end()}"
            ) from late
        node.kill()

    def kill_node(self, node_id: int) -> None:
        """SIGKILL: the process is gone when this returns; what it wrote to the page cache is not."""
        node = self._node(node_id)
        node.running_process()
        node.kill()

    def pause_node(self, node_id: int) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._node(node_id).running_process().pause()

    def resume_node(self, node_id: int) -> None:
        self._node(node_id).running_process().resume()

    # ---- What a test wants to know.

    @property
    def bootstrap(self) -> str:
        """All brokers' addresses, running or not. They stay the same over restarts."""
        return ",".join(node.address for node in self._nodes.values())

    @property
    def node_ids(self) -> list[int]:
        return list(self._nodes)

    def is_running(self, node_id: int) -> bool:
        return self._node(node_id).is_running

    def pid(self, node_id: int) -> int:
        return self._node(node_id).running_process().pid

    def node_dir(self, node_id: int) -> Path:
        return self._node(node_id).directory

    def log_dir(self, node_id: int) -> Path:
        return self._node(node_id).data_dir

    def partition_dir(self, node_id: int, topic: str, partition: int) -> Path:
        return self.log_dir(node_id) / f"{topic}-{partition}"

    def server_log(self, node_id: int) -> str:
        path = self._node(node_id).log_path
        return path.read_text(errors="replace") if path.exists() else ""

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition to leader, as the cluster says now; -1 where there is none."""
        return asking.leaders_of(self.bootstrap, topic)

    def create_topic(
        self, topic: str, partitions: int = 1, replication_factor: int = 1, config: Settings | None = None
    ) -> None:
        asking.create_topic(self.bootstrap, topic, partitions, replication_factor, config)

    # ---- Inside.

    def _node(self, node_id: int) -> _Node:
        if node_id not in self._nodes:
            raise HarnessError(f"there is no broker {node_id}; this cluster has {self.node_ids}")
        return self._nodes[node_id]

    def _spawn(self, node: _Node) -> None:
        asked = {**self.settings, **self.node_settings.get(node.node_id, {})}
        taken = sorted(OWN_SETTINGS & asked.keys())
        if taken:
            raise HarnessError(f"{', '.join(taken)}: the harness sets these itself; drop them from the settings")
        settings: dict[str, str | int | float | bool] = {
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": min(3, len(self._nodes)),
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": min(3, len(self._nodes)),
            "transaction.state.log.min.isr": min(2, len(self._nodes)),
            "group.initial.rebalance.delay.ms": 0,
            **asked,
            "node.id": node.node_id,
            "listeners": f"PLAINTEXT://{node.address}",
            "advertised.listeners": f"PLAINTEXT://{node.address}",
            "log.dirs": str(node.data_dir),
            "metastore.url": self.metastore_url,
        }
        write_properties(node.config_path, settings)
        node.spawn()

    def _wait_until(self, node: _Node, goal: str, reached: Callable[[], bool], deadline_s: float) -> None:
        while not reached():
            if not node.is_running:
                raise HarnessError(f"broker {node.node_id} ended before it could {goal}.\n{node.describe_end()}")
            if time.monotonic() > deadline_s:
                raise HarnessError(f"broker {node.node_id} did not {goal} in time.\n{node.describe_end()}")
            time.sleep(POLL_INTERVAL_S)

    def _kill_all(self) -> None:
        for node in self._nodes.values():
            node.kill()

    def _remove_directories(self) -> None:
        for node in self._nodes.values():
            shutil.rmtree(node.directory, ignore_errors=True)
        for left in self.base_dir.glob("metastore.db*"):
            left.unlink(missing_ok=True)
        if self._owns_base_dir:
            with suppress(OSError):  # a test may have put something of its own in it
                self.base_dir.rmdir()
