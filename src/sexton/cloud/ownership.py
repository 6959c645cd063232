"""A broker's own view of the store: nothing is put where the cluster's marker is not.

The marker is made before the first cloud topic, so a store without it is another one, or was emptied; a store with
another's is another cluster's. A broker that finds either leads no cloud partition, says why, and lets others lead. It
looks once, when it first needs to know: a store that does not answer is waited for by those who want to put something,
and by nobody else.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from sexton.cloud.metered import CloudStats, MeteredStore
from sexton.ports.clock import Clock
from sexton.ports.object_names import is_claimed
from sexton.ports.objects import Buffer, ObjectStore, StoreRefusedError

REMEDY = (
    "Set cloud.store.url to where the cloud topics are. If they were there, and everything in it is lost: "
    "`sexton cloud adopt` makes it this cluster's again"
)


def unmarked(place: str) -> StoreRefusedError:
    """The error for a store in which cloud topics should be and the marker is not."""
    return StoreRefusedError(
        "this cluster has cloud topics, and nothing here says that it is their store", place, REMEDY
    )


class OwnStore(MeteredStore):
    def __init__(
        self, store: ObjectStore, stats: CloudStats, clock: Clock, cluster_id: Callable[[], uuid.UUID]
    ) -> None:
        super().__init__(store, stats, clock)
        self._cluster_id = cluster_id
        self._looking = asyncio.Lock()
        self._is_ours = False
        self.refusal: StoreRefusedError | None = None
        """Why this broker cannot use the store, as far as is known."""

    async def check(self) -> None:
        """Raises StoreRefusedError unless the store is this cluster's, and StoreUnavailableError if nobody knows."""
        if self._is_ours:
            return
        async with self._looking:
            if not self._is_ours:
                await self._look()

    async def _look(self) -> None:
        try:
            if not await is_claimed(self, self._cluster_id()):
                raise unmarked(self.place)
        except StoreRefusedError as error:
            self.refusal = error
            raise
        self._is_ours, self.refusal = True, None

    async def put(self, key: str, data: Buffer) -> None:
        await self.check()
        await super().put(key, data)
