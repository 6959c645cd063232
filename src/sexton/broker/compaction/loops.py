"""The loops of a broker's compaction: what is due here is published, and what leaders have compacted is adopted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from sexton.broker.compaction.adoption import Adopter
from sexton.broker.compaction.service import CompactionService
from sexton.broker.lifecycle.peers import Peers
from sexton.client.errors import NotConnectedError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

COMPACTION_LOOK_MS_MIN = 100
"""Shortest interval between two checks which partitions are due for compaction, even if log.cleaner.backoff.ms is
less."""

COMPACTION_NEWS_MS = 500
"""Interval between two cheap checks whether any partition may have become due for compaction."""

ADOPTION_LOOK_MS_MAX = 2000
"""Longest interval between two requests to a leader for compactions to adopt."""

ADOPTION_TIMEOUT_MS = 120_000
"""Timeout of an adoption request. A leader may have to read a large partition once to compute its checksums."""


class CompactionLoops:
    def __init__(self, broker: Broker, service: CompactionService) -> None:
        self._broker = broker
        self._service = service
        self._peers = Peers(broker)
        self._adopter = Adopter(service, broker, self._ask_leader)

    def all(self) -> list[Coroutine[Any, Any, None]]:
        return [self.publish(), self.adopt()]

    def close(self) -> None:
        self._peers.close()

    async def publish(self) -> None:
        """Runs at least every log.cleaner.backoff.ms, and sooner when a partition may have become due."""
        broker = self._broker
        looked_ms = broker.clock.monotonic_ms()
        while True:
            pause_ms = max(COMPACTION_LOOK_MS_MIN, broker.config.log_cleaner_backoff_ms)
            await asyncio.sleep(min(pause_ms, COMPACTION_NEWS_MS) / 1000)
            now_ms = broker.clock.monotonic_ms()
            is_time = now_ms - looked_ms >= pause_ms
            if broker.config.log_cleaner_enable and (is_time or self._service.publisher.has_news()):
                looked_ms = now_ms
                await self._service.look()

    async def adopt(self) -> None:
        while True:
            pause_ms = min(ADOPTION_LOOK_MS_MAX, self._broker.config.log_cleaner_backoff_ms)
            await asyncio.sleep(max(COMPACTION_LOOK_MS_MIN, pause_ms) / 1000)
            self._adopter.rate.bytes_per_second = self._broker.config.compaction_share_max_bytes_per_second
            await self._adopter.step()

    async def _ask_leader(self, broker_id: int, api_key: int, body: bytes) -> memoryview:
        row = self._broker.view.broker(broker_id)
        if row is None:
            raise NotConnectedError("its address is not known", f"broker {broker_id}")
        return await self._peers.call_raw(row, api_key, body, ADOPTION_TIMEOUT_MS)
