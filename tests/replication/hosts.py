"""A broker as replication sees it, without a network and, unless a test brings one, without a metastore."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.metadata.view import ClusterView
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import Metastore
from sexton.ports.network import Network
from sexton.replication.local_replica import LocalReplica
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor


@dataclass(kw_only=True)
class LoneHost:
    identity: tuple[int, int] = (1, 1)
    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=FileDisk)
    network: Network = field(default_factory=lambda: cast(Any, None))
    metastore: Metastore = field(default_factory=lambda: cast(Any, None))
    view: ClusterView = field(default_factory=ClusterView)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    supervisor: Supervisor = field(default_factory=Supervisor)

    def lease_is_valid(self) -> bool:
        return True

    def topic_config(self, topic: str) -> TopicConfig:
        return TopicConfig()

    async def role_changed(self, replica: LocalReplica) -> None:
        pass
