"""How many compactors are alive: those that are registered and that this broker has seen renew their leases.

A compactor that is killed cannot unregister, and if it was the only one, no other compactor removes it. So each broker
watches for itself, and only displays the result. Nothing is decided by it.
"""

from __future__ import annotations

import uuid
from typing import Final

from sexton.metadata.leases import CountWatch
from sexton.ports.clock import Clock
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.ports.work_queue import CompactorRow, WorkQueue

LOOK_MS: Final = 5_000
"""A third of a compactor's lease: a watcher that looks less often sees none expire (`metadata.leases.BLIND_SHARE`)."""


class LiveCompactors:
    def __init__(self, queue: WorkQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._watch: CountWatch[uuid.UUID, int] = CountWatch()
        self._looked_ms: int | None = None
        self._rows: list[CompactorRow] | None = None

    async def look(self) -> None:
        """Does nothing if the last look was less than LOOK_MS ago."""
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        try:
            self._rows = list(await self._queue.read_compactors())
        except MetastoreUnavailableError:
            return
        counts = {row.compactor_id: row.renewals_count for row in self._rows}
        self._watch.observe(counts, self._clock.monotonic_ms())

    @property
    def count(self) -> int | None:
        """Number of live compactors; None if the metastore has not responded yet."""
        if self._rows is None:
            return None
        return sum(not self._watch.stands_still(row.compactor_id, row.lease_ms) for row in self._rows)
