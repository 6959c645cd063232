"""What clusters of real processes have in common: their life, their nodes' lives, and what is to be known of them."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Generic, Self, TypeVar

from sexton.harness import asking
from sexton.harness.clocks import Clocks
from sexton.harness.disks import Disks
from sexton.harness.errors import HarnessError
from sexton.harness.network import Network
from sexton.harness.processes import HOST, Port, ServerProcess
from sexton.harness.properties import Settings

STOP_TIMEOUT_S: Final = 60
"""A clean stop takes a second or two, more when leadership of many partitions moves first."""

POLL_INTERVAL_S: Final = 0.05


class Node(ABC):
    """One node's directory, port and, while it runs, its process."""

    def __init__(self, node_id: int, directory: Path) -> None:
        self.node_id = node_id
        self.directory = directory
        self.host = HOST
        self.prefix: tuple[str, ...] = ()
        """Of the command that it is: where it runs, and by which clock."""
        self.port = Port()
        self.process: ServerProcess | None = None
        self.data_dir.mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def log_path(self) -> Path: ...

    @abstractmethod
    def describe_end(self) -> str:
        """Where the logs are and how they end, for errors."""

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port.number}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def is_serving(self) -> bool:
        return self.process is not None and self.process.is_running and not self.process.is_paused

    def running_process(self) -> ServerProcess:
        if self.process is None or not self.process.is_running:
            raise HarnessError(f"node {self.node_id} is not running.\n{self.describe_end()}")
        return self.process

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
        self.process = None

    def release_ports(self) -> None:
        self.port.release()


N = TypeVar("N", bound=Node)


class Cluster(ABC, Generic[N]):
    """Nodes numbered from 1. Used as a context manager it starts them all, ends them all, and removes their
    directories if the block succeeded; if it failed it prints how their logs end."""

    own_settings: ClassVar[frozenset[str]]
    """What the harness decides itself; a test that overrode one would lose its broker or leave loopback."""
    ready_timeout_s: ClassVar[float]
    sees_all_timeout_ms: ClassVar[int]

    def __init__(
        self,
        prefix: str,
        base_dir: Path | None,
        settings: Settings | None,
        node_settings: Mapping[int, Settings] | None,
        keep: bool,
    ) -> None:
        """Starts nothing. Settings are read at each start of a node: those for all, and each node's own on top."""
        self.settings = dict(settings or {})
        self.node_settings = {node_id: dict(own) for node_id, own in (node_settings or {}).items()}
        self.keep = keep
        self._owns_base_dir = base_dir is None or not base_dir.exists()
        self.base_dir = base_dir.resolve() if base_dir else Path(tempfile.mkdtemp(prefix=prefix))
        self._nodes: dict[int, N] = {}
        self.network: Network | None = None
        self.clocks: Clocks | None = None
        self.own_disks: Disks | None = None
        """Of the nodes' own, where their data is; None: wherever the directory is."""

    def move_to(self, network: Network) -> None:
        """Before it is started; whoever made the network undoes it afterwards."""
        self.network = network
        for node_id, node in self._nodes.items():
            node.host, node.prefix = network.host(node_id), (*network.prefix(node_id), *node.prefix)

    def go_by(self, clocks: Clocks) -> None:
        """Before it is started; whoever made the clocks undoes them afterwards."""
        self.clocks = clocks
        for node_id, node in self._nodes.items():
            node.prefix = (*node.prefix, *clocks.prefix(node_id))

    @abstractmethod
    def _spawn(self, node: N) -> None: ...

    def _prepare(self) -> None:
        """Before any node is started."""

    def _while_stopping(self, node: N) -> AbstractContextManager[None]:
        return nullcontext()

    def _check_stopped(self, node: N) -> None:
        """After a clean stop."""

    def _has_started(self, node: N) -> bool:
        """Before it is asked whether it sees the others."""
        return True

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
        """Start every node that is not running, and wait until they all serve."""
        atexit.register(self._kill_all)
        self._prepare()
        for node in self._nodes.values():
            if not node.is_running:
                self._spawn(node)
        self.wait_ready()

    def stop(self) -> None:
        """Stop every running node cleanly, in order: the last one is in sync, and leads all it has."""
        for node in self._nodes.values():
            if node.is_running:
                self.stop_node(node.node_id)

    def close(self, failed: bool = False) -> None:
        """End what still runs, at once (call `stop()` before for a clean directory), and tidy up."""
        self._kill_all()
        atexit.unregister(self._kill_all)
        for node in self._nodes.values():
            node.release_ports()
        if failed:
            for node in self._nodes.values():
                print(f"node {node.node_id}\n{node.describe_end()}", file=sys.stderr)
        elif not self.keep:
            self._remove_directories()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until every running, unpaused node has started and lists all of these as live."""
        deadline_s = time.monotonic() + (self.ready_timeout_s if timeout_s is None else timeout_s)
        serving = [node for node in self._nodes.values() if node.is_serving]
        for node in serving:
            self._wait_until(node, "start", partial(self._has_started, node), deadline_s)
        expected = {node.node_id for node in serving}
        for node in serving:
            sees_all = partial(asking.sees_all, node.address, expected, self.sees_all_timeout_ms)
            self._wait_until(node, "serve with all others", sees_all, deadline_s)

    # ---- Life of a node.

    def start_node(self, node_id: int, wait: bool = True) -> None:
        """Start a node on the data it has. Without `wait` it may still be starting, as it must when it alone
        cannot serve."""
        node = self.node(node_id)
        if node.is_running:
            raise HarnessError(f"node {node_id} is running already; stop_node or kill_node it first")
        self._spawn(node)
        if wait:
            self.wait_ready()

    def stop_node(self, node_id: int) -> None:
        """SIGTERM: leadership moves, everything is flushed, the directory is marked as cleanly shut down."""
        node = self.node(node_id)
        process = node.running_process()
        with self._while_stopping(node):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired as late:
                raise HarnessError(
                    f"node {node_id} has not stopped {STOP_TIMEOUT_S} s after SIGTERM; kill_node would do.\n"
                    f"{node.describe_end()}"
                ) from late
        node.kill()
        self._check_stopped(node)

    def kill_node(self, node_id: int) -> None:
        """SIGKILL: the process is gone when this returns; what it wrote to the page cache is not."""
        node = self.node(node_id)
        node.running_process()
        node.kill()

    def pause_node(self, node_id: int) -> None:
        """SIGSTOP: connections stay open and nobody answers, as in a long garbage collection."""
        self.node(node_id).running_process().pause()

    def resume_node(self, node_id: int) -> None:
        """SIGCONT. A broker that was fenced meanwhile comes back by itself."""
        self.node(node_id).running_process().resume()

    # ---- What a test wants to know.

    @property
    def bootstrap(self) -> str:
        """All nodes' addresses, running or not, for `bootstrap.servers`. They stay the same over restarts."""
        return ",".join(node.address for node in self._nodes.values())

    @property
    def node_ids(self) -> list[int]:
        return list(self._nodes)

    @property
    def controller_ids(self) -> list[int]:
        """Processes beside the brokers that keep the cluster's state, of those that have such (Kafka)."""
        return []

    def is_running(self, node_id: int) -> bool:
        return self.node(node_id).is_running

    def is_serving(self, node_id: int) -> bool:
        """Running, and not paused."""
        return self.node(node_id).is_serving

    def pid(self, node_id: int) -> int:
        """Process id, for measuring CPU and memory."""
        return self.node(node_id).running_process().pid

    def node_dir(self, node_id: int) -> Path:
        """Everything of one node."""
        return self.node(node_id).directory

    def log_dir(self, node_id: int) -> Path:
        return self.node(node_id).data_dir

    def partition_dir(self, node_id: int, topic: str, partition: int) -> Path:
        return self.log_dir(node_id) / f"{topic}-{partition}"

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition to leader, as the cluster says now; -1 where there is none."""
        return asking.leaders_of(self.bootstrap, topic)

    def create_topic(
        self, topic: str, partitions: int = 1, replication_factor: int = 1, config: Settings | None = None
    ) -> None:
        """Create a topic and return when the cluster has; clients wait for its leaders by themselves."""
        asking.create_topic(self.bootstrap, topic, partitions, replication_factor, config)

    # ---- Inside.

    def node(self, node_id: int) -> N:
        if node_id not in self._nodes:
            raise HarnessError(f"there is no node {node_id}; this cluster has {self.node_ids}")
        return self._nodes[node_id]

    def _asked_of(self, node: N) -> dict[str, str | int | float | bool]:
        """What was asked for, on internal topics small enough for a quick start and safe enough for a node to be
        down."""
        asked = {**self.settings, **self.node_settings.get(node.node_id, {})}
        taken = sorted(self.own_settings & asked.keys())
        if taken:
            raise HarnessError(f"{', '.join(taken)}: the harness sets these itself; drop them from the settings")
        copies = min(3, len(self._nodes))
        return {
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(2, copies),
            "group.initial.rebalance.delay.ms": 0,
            **asked,
        }

    def _wait_until(self, node: N, goal: str, reached: Callable[[], bool], deadline_s: float) -> None:
        while not reached():
            if not node.is_running:
                raise HarnessError(f"node {node.node_id} ended before it could {goal}.\n{node.describe_end()}")
            if time.monotonic() > deadline_s:
                raise HarnessError(f"node {node.node_id} did not {goal} in time.\n{node.describe_end()}")
            time.sleep(POLL_INTERVAL_S)

    def _kill_all(self) -> None:
        for node in self._nodes.values():
            node.kill()

    def _remove_directories(self) -> None:
        for node in self._nodes.values():
            shutil.rmtree(node.directory, ignore_errors=True)
        if self._owns_base_dir:
            with suppress(OSError):  # a test may have put something of its own in it
                self.base_dir.rmdir()
