"""Real Apache Kafka on this machine, for tests, benchmarks and shows.

A `KafkaCluster` is one to a few KRaft nodes, each broker and controller at once, each a JVM that speaks on
loopback only. With `controllers=3` they are brokers only, and three controllers beside them have numbers from 101.
Nodes can be stopped, killed, paused, started again on a data directory that was edited meanwhile, and started
from a copy of another cluster's directory:

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

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final, Self

from sexton.harness import class_archives
from sexton.harness.cluster import Cluster
from sexton.harness.errors import HarnessError
from sexton.harness.jars import DEFAULT_VERSION, classpath, jar_dir, java, logging_config
from sexton.harness.kafka_logs import (
    CLEANER_LOGGERS,
    LOG_PATTERN,
    METADATA_PARTITION,
    NOISE,
    RECOVERY_MESSAGES,
    log_events,
)
from sexton.harness.kafka_node import META_NAME, KafkaNode, forget_voters, new_id, read_meta, write_meta
from sexton.harness.kafka_tools import format_storage
from sexton.harness.network import Network
from sexton.harness.processes import ServerProcess
from sexton.harness.properties import Settings, write_properties

BROKER_JVM_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What kafka-run-class.sh passes: a benchmark must meet the broker that people run."""

QUICK_JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.awt.headless=true")
"""For a broker that lives for seconds: without the optimizing compiler, a start takes a third of the CPU time."""

FIRST_CONTROLLER: Final = 101
CONTROLLER_HEAP: Final = "256m"
"""Of one that is nothing else: it has the metadata of a few topics."""
BROKER_ONLY: Final = ("advertised.listeners", "inter.broker.listener.name")

CLEAN_SHUTDOWN_NAME: Final = ".kafka_cleanshutdown"
"""Left in the log directory by a clean stop; without it the next start recovers unflushed segments."""


_FORMATTED: Final[dict[tuple[str, tuple[str, ...], str], dict[str, bytes]]] = {}
"""Of each version, options of the tool that formats, and roles of a node: its files, without a node's identity."""


def _quick_jvm_options(version: str) -> tuple[str, ...]:
    return (*QUICK_JVM_OPTIONS, *class_archives.options(f"kafka-{version}", jar_dir(version)))


class KafkaCluster(Cluster[KafkaNode]):
    own_settings: ClassVar = frozenset(
        {
            "node.id",
            "broker.id",
            "process.roles",
            "listeners",
            "advertised.listeners",
            "controller.listener.names",
            "controller.quorum.voters",
            "listener.security.protocol.map",
            "inter.broker.listener.name",
            "controller.quorum.bootstrap.servers",
            "log.dir",
            "log.dirs",
            "metadata.log.dir",
        }
    )
    ready_timeout_s: ClassVar = 90
    """A node is up in 3 s on two idle cores, three at once in 9 s; a busy CI machine may need ten times that."""
    sees_all_timeout_ms: ClassVar = 10_000

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        nodes: int = 1,
        base_dir: Path | None = None,
        settings: Settings | None = None,
        node_settings: Mapping[int, Settings] | None = None,
        *,
        heap: str = "1g",
        jvm_options: Sequence[str] | None = None,
        format_args: Sequence[str] = (),
        doors: Mapping[str, str] | None = None,
        controllers: int = 0,
        keep: bool = False,
    ) -> None:
        """Takes directories and ports, starts nothing.

        `settings` go to every node, `node_settings[i]` to node i on top; both are read at each start of a
        node, so `metadata.settings[...] = ...` and a restart change them. `format_args` go to `StorageTool
        format`, e.g. `("--feature", "transaction.version=1")`. `keep` leaves the directories after success. Without
        `jvm_options`, nodes start soon rather than run fast. `doors` are more listeners for clients, by name, with
        their protocols (`{"SECURE": "SASL_SSL"}`); what such a protocol needs is among the settings. Of `controllers`
        every method that names a node takes the number, too; they are not among `node_ids`.

        A node that was killed comes back only when its old session has run out: 9 s, as Kafka has it, or
        what `broker.session.timeout.ms` says.
        """
        super().__init__(f"kafka-{version}-", base_dir, settings, node_settings, keep)
        self.version = version
        self.heap = heap
        self.jvm_options = jvm_options
        self.format_args = tuple(format_args)
        self.doors = dict(doors or {})
        for node_id in range(1, nodes + 1):
            self._nodes[node_id] = KafkaNode(node_id, self.base_dir / f"node-{node_id}", doors=list(self.doors))
        self._controllers = {
            node_id: KafkaNode(node_id, self.base_dir / f"controller-{node_id}")
            for node_id in range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers)
        }

    @property
    def controller_ids(self) -> list[int]:
        return list(self._controllers)

    def node(self, node_id: int) -> KafkaNode:
        return self._controllers.get(node_id) or super().node(node_id)

    def bootstrap_at(self, door: str) -> str:
        """Bootstrap addresses of all nodes, as they are reached through a door."""
        return ",".join(node.address_at(door) for node in self._nodes.values())

    @classmethod
    def adopt(
        cls,
        base_dir: Path,
        version: str = DEFAULT_VERSION,
        settings: Settings | None = None,
        node_settings: Mapping[int, Settings] | None = None,
        *,
        heap: str = "1g",
        jvm_options: Sequence[str] | None = None,
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
            node_id = int(read_meta(data_dir)["node.id"])
            cluster._nodes[node_id] = KafkaNode(node_id, data_dir.parent)
        if not cluster._nodes:
            raise HarnessError(
                f"{base_dir} holds no Kafka data: expected node-<id>/data/meta.properties or "
                "data/meta.properties in it (copy base_dir or node_dir(i), not only log_dir(i))"
            )
        for node in cluster._nodes.values():
            forget_voters(node.data_dir, cluster.node_ids)
        return cluster

    # ---- What a test wants to know.

    def server_log(self, node_id: int) -> str:
        node = self.node(node_id)
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
            for event in self.node(node_id).run_events()
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
            for event in self.node(node_id).run_events()
            if RECOVERY_MESSAGES.search(event.text) and METADATA_PARTITION not in event.text
        ]

    # ---- Inside.

    def _prepare(self) -> None:
        """Give each new log directory its identity: Kafka refuses to start on one without."""
        if not self._nodes:
            raise HarnessError("a cluster needs at least one node")
        all_nodes = {**self._controllers, **self._nodes}
        metas = {node_id: read_meta(node.data_dir) for node_id, node in all_nodes.items()}
        known_ids = {meta["cluster.id"] for meta in metas.values() if meta}
        cluster_id = known_ids.pop() if known_ids else new_id()
        for node in all_nodes.values():
            if not metas[node.node_id]:
                self._format(node, cluster_id)
        for controller in self._controllers.values():
            if not controller.is_running:
                self._spawn(controller)

    def _format(self, node: KafkaNode, cluster_id: str) -> None:
        """By Kafka's own tool, a JVM of a second or two, the first time; later by what it wrote then, which is the same
        for every node but for its identity."""
        settings = self._settings_of(node)
        kind = self.version, self.format_args, str(settings["process.roles"])
        known = _FORMATTED.get(kind)
        has_one_disk = settings["log.dirs"] == str(node.data_dir)
        if known is not None and has_one_disk:
            for name, content in known.items():
                (node.data_dir / name).write_bytes(content)
            write_meta(node.data_dir, cluster_id, node.node_id)
            return
        config = write_properties(node.directory / "server.properties", settings)
        format_storage([config], cluster_id, *self.format_args, version=self.version)
        files = [path for path in node.data_dir.iterdir() if path.name != META_NAME]
        _FORMATTED[kind] = {path.name: path.read_bytes() for path in files}

    def _spawn(self, node: KafkaNode) -> None:
        node.spawn(self._command(node, "server", self._settings_of(node)))

    def _command(self, node: KafkaNode, name: str, settings: Settings) -> list[str]:
        """What runs Kafka with these settings, written to `<name>.properties`, and logs to `<name>.log`."""
        config, option = logging_config(self.version, node.directory / f"{name}.log", LOG_PATTERN)
        logging_path = node.directory / f"{name}.logging.properties"
        logging_path.write_text(config)
        properties_path = write_properties(node.directory / f"{name}.properties", settings)
        return [
            java(),
            f"-Xmx{CONTROLLER_HEAP if node.node_id in self._controllers else self.heap}",
            *(_quick_jvm_options(self.version) if self.jvm_options is None else self.jvm_options),
            f"{option}{logging_path}",
            "-cp",
            classpath(self.version),
            "kafka.Kafka",
            str(properties_path),
        ]

    def _settings_of(self, node: KafkaNode) -> dict[str, str | int | float | bool]:
        """Of a node that is a broker, and a controller as well if there are no others."""
        voters = [f"{each.node_id}@{each.controller_address}" for each in (self._controllers or self._nodes).values()]
        open_to_clients = [f"PLAINTEXT://{node.address}", *(f"{name}://{node.address_at(name)}" for name in self.doors)]
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self.doors}
        own = [] if self._controllers else [f"CONTROLLER://{node.controller_address}"]
        found: dict[str, str | int | float | bool] = {
            **self._asked_of(node),
            "node.id": node.node_id,
            "process.roles": "broker" if self._controllers else "broker,controller",
            "listeners": ",".join([*open_to_clients, *own]),
            "advertised.listeners": ",".join(open_to_clients),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": str(node.data_dir),
        }
        return _as_controller(found, node) if node.node_id in self._controllers else found

    def _has_started(self, node: KafkaNode) -> bool:
        return node.has_started()

    def _check_stopped(self, node: KafkaNode) -> None:
        if not (node.data_dir / CLEAN_SHUTDOWN_NAME).exists():
            raise HarnessError(f"node {node.node_id} ended, but not cleanly.\n{node.describe_end()}")

    @contextmanager
    def _while_stopping(self, stopping: KafkaNode) -> Iterator[None]:
        """Lend the controllers a majority while a node stops.

        A broker asks the controller for leave, and waits for minutes when a majority of the controllers is
        gone. They are gone with their brokers here, so the last nodes of a cluster would never stop: the
        controllers of nodes that are down come back meanwhile, without their brokers, as witnesses. (Not where
        controllers are processes of their own: whoever took them away knows.)
        """
        if self._controllers:
            yield
            return
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

    def _spawn_witness(self, node: KafkaNode) -> ServerProcess:
        settings = _as_controller(self._settings_of(node), node)
        return ServerProcess([*node.prefix, *self._command(node, "witness", settings)], node.console_path)

    def move_to(self, network: Network) -> None:
        super().move_to(network)
        for node_id, node in self._controllers.items():
            node.host, node.prefix = network.host(node_id), network.prefix(node_id)

    def close(self, failed: bool = False) -> None:
        super().close(failed)
        for node in self._controllers.values():
            node.release_ports()
            if failed:
                print(f"controller {node.node_id}\n{node.describe_end()}", file=sys.stderr)

    def _kill_all(self) -> None:
        super()._kill_all()
        for node in self._controllers.values():
            node.kill()

    def _remove_directories(self) -> None:
        for node in self._controllers.values():
            shutil.rmtree(node.directory, ignore_errors=True)
        super()._remove_directories()


def _as_controller(
    settings: dict[str, str | int | float | bool], node: KafkaNode
) -> dict[str, str | int | float | bool]:
    """The same without the broker."""
    others = {name: value for name, value in settings.items() if name not in BROKER_ONLY}
    return {**others, "process.roles": "controller", "listeners": f"CONTROLLER://{node.controller_address}"}
