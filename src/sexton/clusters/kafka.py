"""Real Apache Kafka on this machine, for tests, benchmarks and shows.

A `KafkaCluster` is one to a few KRaft nodes, each broker and controller at once, each a JVM that speaks on
loopback only. Nodes can be stopped, killed, paused, started again on a data directory that was edited
meanwhile, and started from a copy of another cluster's directory:

    with KafkaCluster(settings={"log.cleaner.backoff.ms": 100}) as kafka:
        kafka.create_topic("t", config={"cleanup.policy": "compact"})
        ...  # produce to kafka.bootstrap
        kafka.stop_node(1)
        ...  # edit the files in kafka.partition_dir(1, "t", 0)
        kafka.start_node(1)
        assert kafka.warnings(1) == []

On disk, `<base_dir>/node-<id>/` holds `data/` (Kafka's one log directory, with `meta.properties` and
`__cluster_metadata-0`), `server.properties`, `server.log` (every logger at INFO) and `console.log` (what the
JVM itself printed).

The controller quorum is static (`controller.quorum.voters`), so voters and ports are plain settings. In
Kafka's dynamic quorum they are records in the metadata log, and a copied directory would go looking for
the controllers of the cluster that it was copied from.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sexton.clusters import asking
from sexton.clusters.errors import HarnessError
from sexton.clusters.jars import DEFAULT_VERSION, classpath, java, logging_config
from sexton.clusters.kafka_logs import (
    CLEANER_LOGGERS,
    LOG_PATTERN,
    METADATA_PARTITION,
    NOISE,
    RECOVERY_MESSAGES,
    log_events,
)
from sexton.clusters.kafka_node import Node, forget_voters, new_cluster_id, read_meta
from sexton.clusters.kafka_tools import format_storage
from sexton.clusters.processes import Port, ServerProcess
from sexton.clusters.properties import Settings, write_properties

READY_TIMEOUT_S: Final = 90
"""A node is up in 3 s on two idle cores, three at once in 9 s; a busy CI machine may need ten times that."""

STOP_TIMEOUT_S: Final = 60
"""A clean stop takes a second or two, more when leadership of many partitions moves first."""

SEES_ALL_TIMEOUT_MS: Final = 10_000
POLL_INTERVAL_S: Final = 0.05

BROKER_JVM_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What kafka-run-class.sh passes: a benchmark must meet the broker that people run."""

OWN_SETTINGS: Final = frozenset(
    {
        "node.id",
        "broker.id",
        "process.roles",
        "listeners",
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
    }
)
"""What the harness decides itself; a test that overrode one would lose its broker or leave loopback."""

CLEAN_SHUTDOWN_NAME: Final = ".kafka_cleanshutdown"
"""Left in the log directory by a clean stop; without it the next start recovers unflushed segments."""


class KafkaCluster:
    """Nodes numbered from 1. Used as a context manager it starts them all, ends them all, and removes their
    directories if the block succeeded; if it failed it prints where the logs are."""

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        nodes: int = 1,
        base_dir: Path | None = None,
        settings: Settings | None = None,
        node_settings: Mapping[int, Settings] | None = None,
        *,
        heap: str = "1g",
        jvm_options: Sequence[str] = BROKER_JVM_OPTIONS,
        format_args: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        """Takes directories and ports, starts nothing.

        `settings` go to every node, `node_settings[i]` to node i on top; both are read at each start of a
        node, so `cluster.settings[...] = ...` and a restart change them. `format_args` go to `StorageTool
        format`, e.g. `("--feature", "transaction.version=1")`. `keep` leaves the directories after success.

        A node that was killed comes back only when its old session has run out: 9 s, as Kafka has it, or
        what `broker.session.timeout.ms` says.
        """
        self.version = version
        self.settings = dict(settings or {})
        self.node_settings = {node_id: dict(own) for node_id, own in (node_settings or {}).items()}
        self.heap = heap
        self.jvm_options = tuple(jvm_options)
        self.format_args = tuple(format_args)
        self.keep = keep
        self._owns_base_dir = base_dir is None or not base_dir.exists()
        self.base_dir = base_dir.resolve() if base_dir else Path(tempfile.mkdtemp(prefix=f"kafka-{version}-"))
        self._nodes: dict[int, Node] = {}
        for node_id in range(1, nodes + 1):
            self._add_node(node_id, self.base_dir / f"node-{node_id}")

    @classmethod
    def adopt(
        cls,
        base_dir: Path,
        version: str = DEFAULT_VERSION,
        settings: Settings | None = None,
        node_settings: Mapping[int, Settings] | None = None,
        *,
        heap: str = "1g",
        jvm_options: Sequence[str] = BROKER_JVM_OPTIONS,
        keep: bool = True,
    ) -> Self:
        """A cluster on a copy of another one's directories, with ports of its own.

        `base_dir` is a copied base directory, of which every `node-<id>` found is adopted, or a copied
        `node-<id>` directory by itself. The adopted nodes are the whole controller quorum from now on,
        however many there were: what only the others knew is gone, and brokers left behind stay in the
        metadata, fenced once their session has run out. Copy while the nodes are stopped or killed. The
        copy is the caller's, so it stays unless `keep` is false.
        """
        cluster = cls(version, 0, base_dir, settings, node_settings, heap=heap, jvm_options=jvm_options, keep=keep)
        cluster._owns_base_dir = True  # if it is not to be kept, that is
        found = sorted(base_dir.glob("node-*/data/meta.properties"))
        for meta_path in found or sorted(base_dir.glob("data/meta.properties")):
            data_dir = meta_path.resolve().parent
            cluster._add_node(int(read_meta(data_dir)["node.id"]), data_dir.parent)
        if not cluster._nodes:
            raise HarnessError(
                f"{base_dir} holds no Kafka data: expected node-<id>/data/meta.properties or "
                "data/meta.properties in it (copy base_dir or node_dir(i), not only log_dir(i))"
            )
        for node in cluster._nodes.values():
            forget_voters(node.data_dir, cluster.node_ids)
        return cluster

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
        """Format what is new, start every node that is not running, and wait until they all serve."""
        atexit.register(self._kill_all)
        self._format()
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
            node.client_port.release()
            node.controller_port.release()
        if failed:
            for node in self._nodes.values():
                print(
                    f"Kafka {self.version} node {node.node_id}: see {node.log_path}, console.log beside it",
                    file=sys.stderr,
                )
        elif not self.keep:
            self._remove_directories()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every running, unpaused node has started and lists all the others as brokers."""
        deadline_s = time.monotonic() + timeout_s
        nodes = [node for node in self._nodes.values() if node.is_serving]
        for node in nodes:
            self._wait_until(node, "start", node.has_started, deadline_s)
        expected = {node.node_id for node in nodes}
        for node in nodes:
            sees_all = partial(asking.sees_all, node.address, expected, SEES_ALL_TIMEOUT_MS)
            self._wait_until(node, "see all brokers", sees_all, deadline_s)

    # ---- Life of a node.

    def start_node(self, node_id: int, wait: bool = True) -> None:
        """Start a node on the data it has. Without `wait` it may still be starting, as it must when it alone
        cannot form a quorum."""
        node = self._node(node_id)
        if node.is_running:
            raise HarnessError(f"node {node_id} is running already; stop_node or kill_node it first")
        self._spawn(node)
        if wait:
            self.wait_ready()

    def stop_node(self, node_id: int) -> None:
        """SIGTERM: leadership moves, everything is flushed, the directory is marked as cleanly shut down."""
        node = self._node(node_id)
        jvm = node.running_jvm()
        with self._quorum(node):
            jvm.terminate()
            try:
                jvm.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired as late:
                raise HarnessError(
                    f"node {node_id} has not stopped {STOP_TIMEOUT_S} s after SIGTERM; kill_node would do.\n"
                    f"{node.describe_end()}"
                ) from late
        node.kill()
        if not (node.data_dir / CLEAN_SHUTDOWN_NAME).exists():
            raise HarnessError(f"node {node_id} ended, but not cleanly.\n{node.describe_end()}")

    def kill_node(self, node_id: int) -> None:
        """SIGKILL: the process is gone when this returns; what it wrote to the page cache is not."""
        node = self._node(node_id)
        node.running_jvm()
        node.kill()

    def pause_node(self, node_id: int) -> None:
        """SIGSTOP: connections stay open and nobody answers, as in a long garbage collection."""
        self._node(node_id).running_jvm().pause()

    def resume_node(self, node_id: int) -> None:
        """SIGCONT. A broker that was fenced meanwhile comes back by itself, with its next heartbeat."""
        self._node(node_id).running_jvm().resume()

    # ---- What a test wants to know.

    @property
    def bootstrap(self) -> str:
        """All nodes' addresses, running or not, for `bootstrap.servers`. They stay the same over restarts."""
        return ",".join(node.address for node in self._nodes.values())

    @property
    def node_ids(self) -> list[int]:
        return list(self._nodes)

    def pid(self, node_id: int) -> int:
        """The JVM's process id, for measuring its CPU and memory."""
        return self._node(node_id).running_jvm().pid

    def node_dir(self, node_id: int) -> Path:
        """Everything of one node: what to copy for `adopt`."""
        return self._node(node_id).directory

    def log_dir(self, node_id: int) -> Path:
        return self._node(node_id).data_dir

    def partition_dir(self, node_id: int, topic: str, partition: int) -> Path:
        return self.log_dir(node_id) / f"{topic}-{partition}"

    def server_log(self, node_id: int) -> str:
        node = self._node(node_id)
        return node.log_text(node.log_start_bytes)

    def cleaner_log(self, node_id: int) -> str:
        """The cleaner's events, with the statistics of each pass ("Log cleaner thread 0 cleaned log")."""
        return "\n".join(
            event.text for event in log_events(self.server_log(node_id)) if CLEANER_LOGGERS.match(event.logger)
        )

    def warnings(self, node_id: int) -> list[str]:
        """What the node has complained about since its last start, without what any healthy start says."""
        return [
            event.text
            for event in self._node(node_id).run_events()
            if event.level in ("WARN", "ERROR", "FATAL")
            and not any(noise.search(event.text) for noise in NOISE.values())
        ]

    def recoveries(self, node_id: int) -> list[str]:
        """Segments that the last start did not take as they were, but read whole and indexed anew.

        None after a clean stop, unless an `.index` is missing: Kafka then opens indexes without looking into
        them, damaged or not. To have their content judged, look for DUMP_FAULTS in `dump_log(index)`.
        """
        return [
            event.text
            for event in self._node(node_id).run_events()
            if RECOVERY_MESSAGES.search(event.text) and METADATA_PARTITION not in event.text
        ]

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Settings | None = None,
    ) -> None:
        """Create a topic and return when the controller has; clients wait for its leaders by themselves."""
        asking.create_topic(self.bootstrap, topic, partitions, replication_factor, config)

    # ---- Inside.

    def _node(self, node_id: int) -> Node:
        if node_id not in self._nodes:
            raise HarnessError(f"there is no node {node_id}; this cluster has {self.node_ids}")
        return self._nodes[node_id]

    def _add_node(self, node_id: int, directory: Path) -> Node:
        node = Node(node_id, directory, Port(), Port())
        node.data_dir.mkdir(parents=True, exist_ok=True)
        node.log_start_bytes = node.log_size_bytes()
        self._nodes[node_id] = node
        return node

    def _format(self) -> None:
        """Give each new log directory its identity: Kafka refuses to start on one without."""
        if not self._nodes:
            raise HarnessError("a cluster needs at least one node")
        metas = {node_id: read_meta(node.data_dir) for node_id, node in self._nodes.items()}
        known_ids = {meta["cluster.id"] for meta in metas.values() if meta}
        cluster_id = known_ids.pop() if known_ids else new_cluster_id()
        new = [node for node in self._nodes.values() if not metas[node.node_id]]
        configs = [write_properties(node.directory / "server.properties", self._settings_of(node)) for node in new]
        format_storage(configs, cluster_id, *self.format_args, version=self.version)

    def _spawn(self, node: Node) -> None:
        node.spawn(self._command(node, "server", self._settings_of(node)))

    def _command(self, node: Node, name: str, settings: Settings) -> list[str]:
        """What runs Kafka with these settings, written to `<name>.properties`, and logs to `<name>.log`."""
        config, option = logging_config(self.version, node.directory / f"{name}.log", LOG_PATTERN)
        logging_path = node.directory / f"{name}.logging.properties"
        logging_path.write_text(config)
        properties_path = write_properties(node.directory / f"{name}.properties", settings)
        return [
            java(),
            f"-Xmx{self.heap}",
            *self.jvm_options,
            f"{option}{logging_path}",
            "-cp",
            classpath(self.version),
            "kafka.Kafka",
            str(properties_path),
        ]

    def _settings_of(self, node: Node) -> dict[str, str | int | float | bool]:
        asked = {**self.settings, **self.node_settings.get(node.node_id, {})}
        taken = sorted(OWN_SETTINGS & asked.keys())
        if taken:
            raise HarnessError(f"{', '.join(taken)}: the harness sets these itself; drop them from the settings")
        copies = min(3, len(self._nodes))
        voters = [f"{each.node_id}@{each.controller_address}" for each in self._nodes.values()]
        return {
            # Internal topics, small enough for a quick start and safe enough for a node to be down.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(2, copies),
            "group.initial.rebalance.delay.ms": 0,
            **asked,
            "node.id": node.node_id,
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{node.controller_address}",
            "advertised.listeners": f"PLAINTEXT://{node.address}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": str(node.data_dir),
        }

    @contextmanager
    def _quorum(self, stopping: Node) -> Iterator[None]:
        """Lend the controllers a majority while a node stops.

        A broker asks the controller for leave, and waits for minutes when a majority of the controllers is
        gone. They are gone with their brokers here, so the last nodes of a cluster would never stop: the
        controllers of nodes that are down come back meanwhile, without their brokers, as witnesses.
        """
        others = [node for node in self._nodes.values() if node is not stopping]
        down = [node for node in reversed(others) if not node.is_running]
        majority_count = len(self._nodes) // 2 + 1
        missing_count = majority_count - 1 - sum(node.is_serving for node in others)
        witnesses = [self._spawn_witness(node) for node in down[: max(0, missing_count)]]
        try:
            yield
        finally:
            for witness in witnesses:
                witness.kill()

    def _spawn_witness(self, node: Node) -> ServerProcess:
        settings = self._settings_of(node)
        del settings["advertised.listeners"]
        settings["process.roles"] = "controller"
        settings["listeners"] = f"CONTROLLER://{node.controller_address}"
        return ServerProcess(self._command(node, "witness", settings), node.console_path)

    def _wait_until(self, node: Node, goal: str, reached: Callable[[], bool], deadline_s: float) -> None:
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
