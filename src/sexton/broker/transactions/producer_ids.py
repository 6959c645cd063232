"""Producer ids for this broker's clients, taken from the metastore in blocks."""

from __future__ import annotations

import asyncio

from sexton.ports.metastore import Metastore, MetastoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import ProducerId

BLOCK_COUNT = 1000
"""Size of a block. The unused rest is lost when a broker stops; there are 2^63 ids."""


class ProducerIds:
    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._next = self._end = 0
        self._asking = asyncio.Lock()

    async def next(self) -> ProducerId:
        """Returns an id that was never given out before. Raises a retriable KafkaError while the metastore is
        unreachable."""
        async with self._asking:
            if self._next == self._end:
                try:
                    self._next = await self._metastore.allocate_producer_ids(BLOCK_COUNT)
                except MetastoreUnavailableError as error:
                    raise KafkaError(ErrorCode.coordinator_load_in_progress, str(error)) from error
                self._end = self._next + BLOCK_COUNT
            self._next += 1
            return ProducerId(self._next - 1)
