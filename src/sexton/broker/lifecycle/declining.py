"""A broker that cannot use the store leaves cloud partitions to others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from sexton.broker.lifecycle.handover import write_rows
from sexton.metadata.cloud_elections import decline_cloud

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)

PAUSE_MS_MIN: Final = 5_000
PAUSE_MS_MAX: Final = 60_000
"""Where no broker can use the store, leaderships do not go round and round all the time."""

NO_STORE: Final = "this broker has no store: set cloud.store.url"


class Declining:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pause_ms = 0
        self._declined_ms = 0

    @property
    def reason(self) -> str | None:
        """Why this broker cannot lead; None if it can, as far as is known."""
        cloud = self._broker.replicas.cloud
        if cloud is None:
            return NO_STORE
        return None if cloud.refusal is None else str(cloud.refusal)

    async def step(self) -> None:
        broker, now_ms = self._broker, self._broker.clock.monotonic_ms()
        reason = self.reason
        if reason is None:
            self._pause_ms = 0
            return
        if now_ms - self._declined_ms < self._pause_ms:
            return
        own_id = broker.config.node_id
        led = (row for row in broker.view.replicas_on(own_id) if row.leader == own_id)
        rows = [row for row in led if row.is_cloud]
        changed = [new for row in rows if (new := decline_cloud(row, own_id, broker.view.brokers, broker.rng))]
        if not rows:
            return
        logger.error("%d cloud partitions cannot be led here, %d others try: %s", len(rows), len(changed), reason)
        self._declined_ms, self._pause_ms = now_ms, min(PAUSE_MS_MAX, max(PAUSE_MS_MIN, 2 * self._pause_ms))
        stored = await write_rows(broker, changed)
        broker.view.apply_rows(stored)
        await broker.replicas.apply(stored)
