"""What replication needs of the broker that it runs in."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from sexton.metadata.view import ClusterView
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import Metastore
from sexton.ports.network import Network
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor

if TYPE_CHECKING:
    from sexton.replication.local_replica import LocalReplica


class Host(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def network(self) -> Network: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def view(self) -> ClusterView: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def identity(self) -> tuple[int, int]:
        """Broker id, and the broker epoch of this process. The epoch changes when the broker registers again."""
        ...

    def lease_is_valid(self) -> bool:
        """Whether this broker may serve."""
        ...

    def topic_config(self, topic: str) -> TopicConfig: ...

    async def role_changed(self, replica: LocalReplica) -> None:
        """Called after every change of a replica's role, and before a replica is removed."""
        ...
