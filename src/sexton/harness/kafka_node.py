"""One node of Apache Kafka: its directory, its ports, its process, and what makes the directory its own."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sexton.harness.cluster import Node
from sexton.harness.kafka_logs import STARTED_MESSAGE, LogEvent, log_events
from sexton.harness.processes import Port, ServerProcess
from sexton.harness.properties import tail_of

TAIL_LINES: Final = 25
"""How much of a log an error quotes; its path is always named too."""


META_NAME: Final = "meta.properties"


class KafkaNode(Node):
    def __init__(self, node_id: int, directory: Path, doors: Sequence[str] = ()) -> None:
        super().__init__(node_id, directory)
        self.controller_port = Port()
        self.door_ports = {name: Port() for name in doors}
        self.log_start_bytes = self.log_size_bytes()
        """How much of server.log is from before this cluster object (an adopted copy brings its own)."""
        self.run_start_bytes = 0
        """How much of server.log is from before the last start."""

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def console_path(self) -> Path:
        return self.directory / "console.log"

    @property
    def controller_address(self) -> str:
        return f"{self.host}:{self.controller_port.number}"

    def release_ports(self) -> None:
        super().release_ports()
        for port in (self.controller_port, *self.door_ports.values()):
            port.release()

    def address_at(self, door: str) -> str:
        return f"{self.host}:{self.door_ports[door].number}"

    def log_size_bytes(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def log_text(self, start_bytes: int) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(start_bytes)
            return file.read().decode(errors="replace")

    def run_events(self) -> list[LogEvent]:
        return log_events(self.log_text(self.run_start_bytes))

    def has_started(self) -> bool:
        return STARTED_MESSAGE in self.log_text(self.run_start_bytes)

    def spawn(self, command: Sequence[str]) -> None:
        self.kill()  # one that crashed has left its watchdog behind
        self.run_start_bytes = self.log_size_bytes()
        self.process = ServerProcess([*self.prefix, *command], self.console_path)

    def describe_end(self) -> str:
        return "\n".join(tail_of(path, TAIL_LINES) for path in (self.console_path, self.log_path))


def read_meta(data_dir: Path) -> dict[str, str]:
    """What formatting wrote (`metadata.id`, `node.id`, `directory.id`); empty before it."""
    path = data_dir / META_NAME
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def write_meta(data_dir: Path, cluster_id: str, node_id: int) -> None:
    """Writes meta.properties, as kafka-storage.sh format does."""
    meta = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    (data_dir / META_NAME).write_text("".join(f"{name}={value}\n" for name, value in meta.items()))


def forget_voters(data_dir: Path, voter_ids: Sequence[int]) -> None:
    """Make these the voters of a copied controller, and its last vote void.

    Kafka refuses to start when the voters in its settings are not those in this file. The epoch stays.
    """
    path = data_dir / "__cluster_metadata-0" / "quorum-state"
    if path.exists():
        state = json.loads(path.read_text())
        voters = [{"voterId": voter_id} for voter_id in voter_ids]
        state.update(leaderId=-1, votedId=-1, currentVoters=voters)
        path.write_text(json.dumps(state))


def new_id() -> str:
    """A random UUID as Kafka writes it; never with a leading dash, which tools take for an option."""
    return "s" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
