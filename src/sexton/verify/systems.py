"""The systems that a run can be of: Sexton, Apache Kafka, or a cluster that exists already.

The first two are clusters of brokers on this machine, of which faults can take any. Of a cluster that exists only
topics with our prefix are touched, and nothing is broken.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sexton.client.security.properties import OPEN, Security
from sexton.harness import fittings, jars, postgres
from sexton.harness.asking import Door
from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import CloudStore
from sexton.harness.cluster import Cluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.fittings import Fitting
from sexton.harness.network import METASTORE_ID, Network
from sexton.harness.postgres import Postgres
from sexton.harness.processes import HOST
from sexton.harness.properties import Settings
from sexton.harness.proxy import Proxy
from sexton.harness.systems import KAFKA_PREFIX, NODES, UnknownSystemError, cluster_of, kafka_version
from sexton.verify import probes

SEXTON: Final = "sexton"
INDEPENDENT: Final = "sexton-independent"
STORE_FAULT: Final = "store"
TOPIC_PREFIX: Final = "sexton-verify-"
SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
METASTORES: Final = (SQLITE, POSTGRES)
LOCAL: Final = "local"
CLOUD: Final = "cloud"
STORAGES: Final = (LOCAL, CLOUD)
REPLICAS: Final = 3
SETTINGS: Final[Settings] = {
    "auto.create.topics.enable": False,
    # With KIP-848 brokers say when a member is missed: as soon as clients say so with the classic protocol.
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
}


@dataclass(frozen=True, slots=True)
class System:
    name: str
    bootstrap: str
    replication: int
    cluster: Cluster[Any] | None = None
    """None: it is not ours, and no fault touches it."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    compactor: CompactorProcess | None = None
    metastore: Postgres | None = None
    """None: a file, or none of Sexton's."""
    store: CloudStore | None = None
    """Of cloud topics; None: topics are local, or it is not ours."""
    proxy: Proxy | None = None
    """Between clients and brokers, if something between them is to go wrong."""
    has_kip848: bool = True
    """Whether members of groups may speak the new protocol."""
    security: Security | None = None
    """How clients get in; None: it is open."""

    @property
    def door(self) -> Door:
        """For Sexton's own client, which looks at it from outside."""
        return Door(self.bootstrap, self.security or OPEN)

    @property
    def clients_bootstrap(self) -> str:
        return self.bootstrap if self.proxy is None else self.proxy.bootstrap


def check_name(name: str) -> str:
    if name not in (SEXTON, INDEPENDENT) and kafka_version(name) is None:
        known = f"{SEXTON}, {INDEPENDENT} and {KAFKA_PREFIX}VERSION, as in {KAFKA_PREFIX}{jars.DEFAULT_VERSION}"
        raise UnknownSystemError(f"there is no system {name}", "", f"Known are {known}")
    return name


def check_metastore(name: str, kind: str) -> None:
    """Raises if this system or this machine cannot have it, and says what is missing."""
    if kind == SQLITE:
        return
    if kafka_version(name) is not None:
        raise UnknownSystemError(f"{name} has no metastore", "", "Its controllers are in its brokers")
    Postgres.check()


def check_controllers(name: str, controllers: int) -> None:
    if controllers and kafka_version(name) is None:
        raise UnknownSystemError(f"{name} has no controllers of their own", "", "Its metastore keeps its state")


def check_storage(name: str, storage: str, faults: Collection[str]) -> None:
    """Raises if this system cannot keep its topics there, or has no store to break."""
    if storage == CLOUD and kafka_version(name) is not None:
        raise UnknownSystemError(f"{name} has no cloud topics", "", "Drop --storage cloud")
    if storage != CLOUD and STORE_FAULT in faults:
        raise UnknownSystemError("there is no store to break", "", "Add --storage cloud, or drop the fault store")


@contextmanager
def running(
    name: str,
    directory: Path,
    settings: Settings,
    *,
    is_compacting: bool,
    needs: Collection[Fitting] = (),
    nodes: int = NODES,
    metastore: str = SQLITE,
    storage: str = LOCAL,
    controllers: int = 0,
) -> Iterator[System]:
    """Brokers' logs stay in the directory. A compactor is started only where there is something to compact: it is a
    Spark of its own."""
    cluster = cluster_of(name, directory, {**SETTINGS, **settings}, keep=True, nodes=nodes, controllers=controllers)
    with ExitStack() as stack:
        fittings.fit(cluster, needs, stack, [METASTORE_ID] if metastore == POSTGRES else [])
        server = None
        if metastore == POSTGRES and isinstance(cluster, SextonCluster):
            server = stack.enter_context(_postgres(cluster.network))
            cluster.metastore_url = server.new_database()
        store = None
        if storage == CLOUD and isinstance(cluster, SextonCluster):
            host = HOST if cluster.network is None else cluster.network.outside
            store = stack.enter_context(CloudStore(directory / "store", host=host))
            cluster.keep_topics_in(store)
        stack.enter_context(cluster)
        if cluster.own_disks is not None:
            os.sync()  # what a disk is formatted with has been on it for long, elsewhere; Kafka does not flush that
        compactor = None
        if is_compacting and isinstance(cluster, SextonCluster):
            made = CompactorProcess(cluster.metastore_url, directory, "--nice", "0", store=store)
            compactor = stack.enter_context(made)
        coordination = {"compaction.coordination": "independent"} if name == INDEPENDENT else {}
        yield System(
            name=name,
            bootstrap=cluster.bootstrap,
            replication=min(REPLICAS, nodes),
            cluster=cluster,
            topic_settings=coordination,
            compactor=compactor,
            metastore=server,
            store=store,
            has_kip848=probes.has_kip848(cluster.bootstrap),
        )


def _postgres(network: Network | None) -> AbstractContextManager[Postgres]:
    if network is None:
        return postgres.running()
    return postgres.running(network.host(METASTORE_ID), network.prefix(METASTORE_ID))


def existing(door: Door) -> System:
    return System(
        name=door.bootstrap,
        bootstrap=door.bootstrap,
        replication=min(REPLICAS, len(probes.broker_ids(door))),
        has_kip848=probes.has_kip848(door),
        security=None if door.security == OPEN else door.security,
    )
