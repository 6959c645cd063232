"""What cloud partitions need of the broker that they run in, and its settings for them."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Protocol

from sexton.cloud.gather import GatherLimits
from sexton.cloud.metered import CloudStats
from sexton.errors import SextonError
from sexton.ports.clock import Clock
from sexton.ports.cloud import CloudStore
from sexton.ports.objects import ObjectStore
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    gather: GatherLimits
    uploads_max: int = 4
    """PUTs in flight. (`cloud.uploads.max`)"""
    hedges: bool = False
    """A slow PUT is begun a second time. (`cloud.hedge`)"""
    downloads_max: int = 16
    """GETs in flight. (`cloud.downloads.max`)"""
    pending_bytes_max: int = 32 << 20
    """Appended and not committed yet, of all partitions. (`cloud.pending.bytes.max`)"""
    cache_bytes_max: int = 64 << 20
    """(`cloud.cache.bytes.max`)"""
    view_age_max_ms: int = 10_000
    """How old what is known of L1 may be when it is used. (`cloud.view.age.max.ms`)"""
    producer_expiry_ms: int = 86_400_000


class CloudHost(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def metastore(self) -> CloudStore: ...

    @property
    def objects(self) -> ObjectStore: ...

    async def check_store(self) -> None:
        """Raises StoreRefusedError unless the store is this cluster's, StoreUnavailableError if nobody knows."""
        ...

    @property
    def store_refusal(self) -> SextonError | None:
        """Why this broker cannot use the store, as far as is known."""
        ...

    @property
    def stats(self) -> CloudStats: ...

    @property
    def cluster_id(self) -> uuid.UUID: ...

    @property
    def identity(self) -> tuple[int, int]:
        """Broker id, and the broker epoch of this process. The epoch changes when the broker registers again."""
        ...

    def lease_is_valid(self) -> bool:
        """Whether this broker may serve."""
        ...

    def topic_config(self, topic: str) -> TopicConfig: ...
