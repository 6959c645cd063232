"""Metrics of what all cloud topics have in their store. Only the controller tells them: they are the cluster's, and a
sum over brokers should not count them several times. They are read when somebody asks, and not more often than twice a
minute: they are sums over all rows of objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sexton.http.exposition import Exposition
from sexton.ports.cloud import ObjectsSum
from sexton.ports.metastore import MetastoreUnavailableError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

AGE_MS_MAX: Final = 30_000


class Stored:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._read_ms: int | None = None
        self._sums: list[ObjectsSum] = []
        self._waits_ms = 0
        self._pins_count = 0

    async def write(self, out: Exposition) -> None:
        """Nothing on other brokers, nor while the metastore is away."""
        broker = self._broker
        controller = broker.view.controller
        if broker.cloud is None or controller is None or controller.broker_id != broker.config.node_id:
            return
        try:
            await self._refresh()
        except MetastoreUnavailableError:
            return
        found = [({"level": one.level.name, "state": one.state.name.lower()}, one) for one in self._sums]
        doc = "Objects of cloud topics that have a row, by level and state."
        out.family("sexton_cloud_objects", "gauge", doc, [(labels, one.objects_count) for labels, one in found])
        doc = "Their bytes, of garbage what has not been deleted yet. Of pending ones nobody knows it."
        out.family("sexton_cloud_object_bytes", "gauge", doc, [(labels, one.size_bytes) for labels, one in found])
        doc = "Of these, what extents refer to. What is far below the size is waste until objects are merged."
        out.family("sexton_cloud_referred_bytes", "gauge", doc, [(labels, one.live_bytes) for labels, one in found])
        doc = "How long what brokers wrote has waited to be leveled, at most."
        out.gauge("sexton_cloud_unleveled_seconds", doc, self._waits_ms / 1000)
        doc = "Queries and checks that hold deletions back."
        out.gauge("sexton_cloud_pins", doc, self._pins_count)

    async def _refresh(self) -> None:
        metastore, clock = self._broker.metastore, self._broker.clock
        if self._read_ms is not None and clock.monotonic_ms() - self._read_ms < AGE_MS_MAX:
            return
        self._sums = list(await metastore.sum_objects())
        since_ms = [row.l0_since_ms for row in await metastore.read_cloud_partitions() if row.l0_since_ms]
        self._waits_ms = max(0, clock.now_ms() - min(since_ms)) if since_ms else 0
        self._pins_count = len(await metastore.read_pins())
        self._read_ms = clock.monotonic_ms()
