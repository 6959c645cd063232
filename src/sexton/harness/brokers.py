"""Real Sexton brokers on this machine, for tests, benchmarks and shows: one process each, as people run them.

The methods are those of `KafkaCluster` (`cluster`), so that a test or a benchmark takes either:

    with SextonCluster(nodes=3) as sexton:
        sexton.create_topic("t", replication_factor=3)
        ...  # produce to sexton.bootstrap
        sexton.kill_node(1)
        sexton.start_node(1)

On disk, `<base_dir>/node-<id>/` holds `data/` (the log directory), `broker.properties` and `broker.log` (what the
process printed). The metastore is an SQLite file in `base_dir`, or whatever `metastore_url` names. With a `store`
(which whoever made it starts before and ends afterwards) topics are cloud topics unless they say otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import sexton
from sexton.harness.cloud_store import CloudStore
from sexton.harness.cluster import Cluster, Node
from sexton.harness.processes import ServerProcess
from sexton.harness.properties import Settings, tail_of, write_properties

TAIL_LINES: Final = 40

COMPILED_ANEW: Final = "PYTHONDONTWRITEBYTECODE"
"""Not for brokers: where this is set, each start would compile all of Sexton again, as nobody's does elsewhere."""

ENVIRONMENT: Final = {
    **{name: value for name, value in os.environ.items() if name != COMPILED_ANEW},
    "PYTHONPATH": str(Path(sexton.__file__).resolve().parents[1]),
    "PYTHONUNBUFFERED": "1",
}


class BrokerNode(Node):
    environment: Mapping[str, str] = ENVIRONMENT
    program: Sequence[str] = ("-m", "sexton.cli.main")
    """What Python runs: Sexton, or a test's that becomes it."""

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    @property
    def config_path(self) -> Path:
        return self.directory / "broker.properties"

    def spawn(self) -> None:
        self.kill()  # one that crashed has left its watchdog behind
        command = [sys.executable, *self.program, "broker", "--config", str(self.config_path)]
        self.process = ServerProcess([*self.prefix, *command], self.log_path, self.environment)

    def describe_end(self) -> str:
        return tail_of(self.log_path, TAIL_LINES)


class SextonCluster(Cluster[BrokerNode]):
    own_settings: ClassVar = frozenset({"node.id", "listeners", "advertised.listeners", "log.dirs", "metastore.url"})
    ready_timeout_s: ClassVar = 60
    """A broker is up in a second or two; a busy machine may need ten times that and more."""
    sees_all_timeout_ms: ClassVar = 1_000

    def __init__(
        self,
        nodes: int = 3,
        base_dir: Path | None = None,
        settings: Settings | None = None,
        node_settings: Mapping[int, Settings] | None = None,
        *,
        metastore_url: str | None = None,
        store: CloudStore | None = None,
        keep: bool = False,
    ) -> None:
        super().__init__("sexton-cluster-", base_dir, settings, node_settings, keep)
        self.metastore_url = metastore_url or f"sqlite:///{self.base_dir}/metastore.db"
        for node_id in range(1, nodes + 1):
            self._nodes[node_id] = BrokerNode(node_id, self.base_dir / f"node-{node_id}")
        if store is not None:
            self.keep_topics_in(store)

    def keep_topics_in(self, store: CloudStore) -> None:
        """Before it is started."""
        self.settings = {**store.settings, **self.settings}
        for node in self._nodes.values():
            node.environment = {**node.environment, **store.environment}

    def run_instead(self, program: Sequence[str], python_path: str) -> None:
        """From their next start on brokers are what Python makes of this."""
        for node in self._nodes.values():
            node.program, node.environment = program, {**node.environment, "PYTHONPATH": python_path}

    def server_log(self, node_id: int) -> str:
        path = self.node(node_id).log_path
        return path.read_text(errors="replace") if path.exists() else ""

    def _spawn(self, node: BrokerNode) -> None:
        settings = {
            **self._asked_of(node),
            "node.id": node.node_id,
            "listeners": f"PLAINTEXT://{node.address}",
            "advertised.listeners": f"PLAINTEXT://{node.address}",
            "log.dirs": str(node.data_dir),
            "metastore.url": self.metastore_url,
        }
        write_properties(node.config_path, settings)
        node.spawn()

    def _remove_directories(self) -> None:
        for left in self.base_dir.glob("metastore.db*"):
            left.unlink(missing_ok=True)
        super()._remove_directories()
