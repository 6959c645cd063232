"""A broker's part in cloud topics, if it has an object store: the cloud partitions that it leads, the collector of
objects, which runs on the controller, and the mover of topics that were local."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from sexton.broker.lifecycle.moving import Mover
from sexton.cloud.collector import Collector, CollectorSettings
from sexton.cloud.gather import GatherLimits
from sexton.cloud.host import CloudSettings
from sexton.cloud.metered import CloudStats
from sexton.cloud.ownership import OwnStore
from sexton.cloud.replicas import CloudReplicas
from sexton.errors import SextonError
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.ports.objects import ObjectStore
from sexton.settings.broker_config import BrokerConfig
from sexton.settings.topic import TopicConfig

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)


class CloudPart:
    def __init__(self, broker: Broker, objects: ObjectStore) -> None:
        self._broker = broker
        self.stats = CloudStats()
        host = CloudHost(broker, objects, self.stats)
        self.replicas = CloudReplicas(host, cloud_settings(broker.config))
        self.collector = Collector(host)
        self._mover = Mover(broker, host, self.replicas.parts.claims)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        return [self.collect(), self._mover.run()]

    async def collect(self) -> None:
        """Runs on the controller only. Nothing of a broker's service relies on it, so it survives its bugs."""
        broker = self._broker
        while True:
            settings = collector_settings(broker.config)
            await asyncio.sleep(settings.step_ms / 1000)
            controller = broker.view.controller
            if controller is None or controller.broker_id != broker.config.node_id or not broker.lease_is_valid():
                continue
            try:
                await broker.compaction.compactors.remove_dead()
                await self.collector.step(settings)
            except MetastoreUnavailableError as error:
                logger.debug("compactors that are dead stay for now: %s", error)
            except Exception as bug:
                broker.supervisor.survived(bug, "collecting objects")


def collector_settings(config: BrokerConfig) -> CollectorSettings:
    return CollectorSettings(
        round_ms=config.cloud_gc_round_ms,
        delay_ms=config.cloud_delete_delay_ms,
        scrub_interval_ms=config.cloud_scrub_interval_ms,
        scrub_age_ms=config.cloud_scrub_age_ms,
    )


def cloud_settings(config: BrokerConfig) -> CloudSettings:
    return CloudSettings(
        gather=GatherLimits(
            config.cloud_linger_ms, config.cloud_l0_bytes, config.cloud_l0_partitions_max, config.cloud_eager
        ),
        uploads_max=config.cloud_uploads_max,
        hedges=config.cloud_hedge,
        downloads_max=config.cloud_downloads_max,
        pending_bytes_max=config.cloud_pending_bytes_max,
        cache_bytes_max=config.cloud_cache_bytes_max,
        view_age_max_ms=config.cloud_view_age_max_ms,
        producer_expiry_ms=config.producer_id_expiration_ms,
    )


class CloudHost:
    """The broker, as its cloud partitions see it."""

    def __init__(self, broker: Broker, objects: ObjectStore, stats: CloudStats) -> None:
        self._broker = broker
        self.stats = stats
        self.objects = OwnStore(objects, self.stats, broker.clock, lambda: self.cluster_id)
        self.clock = broker.clock
        self.rng = broker.rng
        self.supervisor = broker.supervisor
        self.metastore = broker.metastore

    @property
    def store_refusal(self) -> SextonError | None:
        return self.objects.refusal

    async def check_store(self) -> None:
        await self.objects.check()

    @property
    def cluster_id(self) -> uuid.UUID:
        return self._broker.cluster_id

    @property
    def identity(self) -> tuple[int, int]:
        return self._broker.identity

    def lease_is_valid(self) -> bool:
        return self._broker.lease_is_valid()

    def topic_config(self, topic: str) -> TopicConfig:
        return self._broker.topic_config(topic)
