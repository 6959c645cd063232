"""The folder of a cluster that `sexton up` runs: everything it needs to go on where it left off.

sexton-data/
  cluster.json            brokers and their ports, the metastore: as chosen at the first start
  broker.properties       settings for all brokers, for you to edit; may be missing
  metastore.sqlite        what the cluster agrees on
  data/broker-1/          the logs of broker 1
  logs/broker-1.log       what broker 1 says
  run/broker-1.properties written at each start, from all of the above
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from sexton.cli.processes import is_free
from sexton.errors import EnvironmentFailure, SextonError

DEFAULT_BROKERS: Final = 3
DEFAULT_PORT: Final = 9092
ADMIN_PORTS_FROM: Final = 100
"""Above the first broker's port."""

PORTS_TRIED_COUNT: Final = 200

LOOPBACK: Final = "127.0.0.1"


OWN_FOLDER: Final = "folder"
FOLDER_LINGER_MS: Final = "5"


class ClusterFolderError(SextonError):
    """The folder, or what is asked of it, makes no sense."""

    exit_code = 64


@dataclass(slots=True)
class Cluster:
    """What is remembered."""

    host: str = LOOPBACK
    advertised_host: str = ""
    metastore_url: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    """Listener ports, by broker id."""
    admin_ports: dict[str, int] = field(default_factory=dict)
    """Where they tell of themselves over HTTP: always on loopback."""
    store_url: str = ""
    """URL of the object store of cloud topics; empty if there is none."""

    @property
    def broker_ids(self) -> list[int]:
        return sorted(int(each) for each in self.ports)

    def address(self, broker_id: int) -> str:
        return f"{self.advertised_host or self.host}:{self.ports[str(broker_id)]}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says; None is: as before, or the default."""

    brokers: int | None = None
    port: int | None = None
    host: str | None = None
    advertised_host: str | None = None
    metastore_url: str | None = None
    store_url: str | None = None
    """OWN_FOLDER is a folder inside the cluster's."""


class ClusterFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def lock_path(self) -> Path:
        return self.path / "up.lock"

    def data_path(self, broker_id: int) -> Path:
        return self.path / "data" / f"broker-{broker_id}"

    def log_path(self, broker_id: int) -> Path:
        return self.path / "logs" / f"broker-{broker_id}.log"

    def config_path(self, broker_id: int) -> Path:
        return self.path / "run" / f"broker-{broker_id}.properties"

    def make(self) -> None:
        try:
            for name in ("data", "logs", "run"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = error.strerror or str(error)
            raise EnvironmentFailure(what, str(self.path), "Choose another folder with --dir") from error

    # What is remembered

    def recall(self) -> Cluster | None:
        path = self.path / "cluster.json"
        try:
            return Cluster(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            remedy = "Repair it, or remove it: the brokers get new ports, their data stays"
            raise ClusterFolderError(f"this file cannot be read ({error})", str(path), remedy) from error

    def remember(self, cluster: Cluster) -> None:
        """Only its owner may read it: the metastore's address may hold a password."""
        path = self.path / "cluster.json"
        temporary = path.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(cluster), file, indent=2)
            file.write("\n")
        temporary.replace(path)

    def resolve(self, wishes: Wishes) -> Cluster:
        """What to run now: as remembered, changed by what is wished."""
        before = self.recall()
        cluster = before or Cluster()
        cluster.host = wishes.host or cluster.host
        if wishes.advertised_host is not None:
            cluster.advertised_host = wishes.advertised_host
        cluster.metastore_url = wishes.metastore_url or cluster.metastore_url or self._own_metastore_url()
        if wishes.store_url is not None:
            cluster.store_url = self._wished_store_url(wishes.store_url)
        count = wishes.brokers or len(cluster.ports) or DEFAULT_BROKERS
        kept = dict(cluster.ports) if wishes.port is None else {}
        cluster.ports = {each: port for each, port in kept.items() if int(each) <= count}
        self._check_remembered(cluster)
        _fill_ports(cluster, cluster.host, cluster.ports, count, wishes.port or DEFAULT_PORT)
        self._resolve_admin_ports(cluster, count)
        return cluster

    def _resolve_admin_ports(self, cluster: Cluster, count: int) -> None:
        """Those of before, where they are free: nobody needs them to stay the same as the brokers' own must."""
        before = {each: port for each, port in cluster.admin_ports.items() if each in cluster.ports}
        cluster.admin_ports = {each: port for each, port in before.items() if is_free(LOOPBACK, port)}
        first = min(min(cluster.ports.values()) + ADMIN_PORTS_FROM, 65_536 - PORTS_TRIED_COUNT)
        _fill_ports(cluster, LOOPBACK, cluster.admin_ports, count, first)

    def _own_metastore_url(self) -> str:
        from sexton.adapters.metastore import sqlite_url

        return sqlite_url(str(self.path / "metastore.sqlite"))

    def _wished_store_url(self, wish: str) -> str:
        """An address that makes no sense is told before anything is started, or remembered."""
        from sexton.adapters.objects import check_url

        if wish == OWN_FOLDER:
            return (self.path / "objects").as_uri()
        check_url(wish)
        return wish

    def _check_remembered(self, cluster: Cluster) -> None:
        for broker_id, port in cluster.ports.items():
            if not is_free(cluster.host, port):
                what = f"port {port} of broker {broker_id} is in use by another process"
                remedy = "Stop that process, or choose other ports with --port"
                raise EnvironmentFailure(what, f"{cluster.host}:{port}", remedy)

    # What a broker is told

    def write_config(self, cluster: Cluster, broker_id: int, overrides: Mapping[str, str]) -> Path:
        from sexton.settings.properties import parse_properties

        common = self.path / "broker.properties"
        own: dict[str, str] = parse_properties(common.read_text()) if common.exists() else {}
        port = cluster.ports[str(broker_id)]
        settings = {
            **_defaults(len(cluster.ports)),
            **_store_settings(cluster.store_url),
            "admin.listener": f"http://{LOOPBACK}:{cluster.admin_ports[str(broker_id)]}",
            **own,
            **overrides,
            "node.id": str(broker_id),
            "listeners": f"PLAINTEXT://{_in_url(cluster.host)}:{port}",
            "log.dirs": str(self.data_path(broker_id)),
            "metastore.url": cluster.metastore_url,
        }
        if cluster.advertised_host:
            settings["advertised.listeners"] = f"PLAINTEXT://{_in_url(cluster.advertised_host)}:{port}"
        lines = [f"# Written at each start. To change settings of all brokers, edit {common}"]
        lines += [f"{name}={_escaped(value)}" for name, value in settings.items()]
        path = self.config_path(broker_id)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")
        return path


def _fill_ports(cluster: Cluster, host: str, ports: dict[str, int], count: int, first: int) -> None:
    """Gives each broker without a port the next free one."""
    taken = {*cluster.ports.values(), *cluster.admin_ports.values()}
    candidates = iter(range(first, min(first + PORTS_TRIED_COUNT, 65_536)))
    for broker_id in range(1, count + 1):
        if str(broker_id) in ports:
            continue
        for port in candidates:
            if port not in taken and is_free(host, port):
                ports[str(broker_id)] = port
                break
        else:
            what = f"no free port from {first} on"
            raise EnvironmentFailure(what, host, "Choose another first port with --port, or check --host")


def _defaults(brokers_count: int) -> dict[str, str]:
    """Kafka's defaults fit one broker; with more, a topic that nobody thought about should survive the loss of one."""
    replicas = min(3, brokers_count)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": "2" if replicas == 3 else "1",
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": "2" if replicas == 3 else "1",
    }


def _store_settings(store_url: str) -> dict[str, str]:
    """A folder answers at once, so there is little to gain by waiting for more to send."""
    if not store_url:
        return {}
    linger = {"cloud.linger.ms": FOLDER_LINGER_MS} if store_url.startswith("file:") else {}
    return {"cloud.store.url": store_url, **linger}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")
