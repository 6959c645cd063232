"""What compaction needs of the broker that it runs in."""

from __future__ import annotations

import random
from typing import Protocol

from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import Metastore
from sexton.replication.replicas import Replicas
from sexton.supervision import Supervisor


class Host(Protocol):
    @property
    def replicas(self) -> Replicas: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def identity(self) -> tuple[int, int]:
        """Broker id, and the broker epoch of this process."""
        ...

    def lease_is_valid(self) -> bool: ...

    def adopts_compactions(self) -> bool:
        """Whether followers here adopt their leader's compactions."""
        ...
