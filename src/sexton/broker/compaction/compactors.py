"""How many compactors are alive: those that are registered and that this broker has seen renew their leases.

A compactor that is killed cannot unregister, and if it was the only one, no other compactor removes it. So each broker
watches for itself. The controller removes those that are dead where there are cloud topics: objects that they had
registered, and will not commit, can be collected then.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sexton.metadata.leases import CountWatch
from sexton.ports.clock import Clock
from sexton.ports.metastore import MetastoreUnavailableError, StaleError
from sexton.ports.work_queue import CompactorRow, WorkQueue

logger = logging.getLogger(__name__)

LOOK_MS: Final = 5_000
"""A third of a compactor's lease: a watcher that looks less often sees none expire (`metadata.leases.BLIND_SHARE`)."""


class LiveCompactors:
    def __init__(self, queue: WorkQueue, clock: Clock, can_renew: Callable[[], bool] = lambda: True) -> None:
        """`can_renew`: whether this broker's own lease is valid. If it is not, the metastore may be one that can be
        read and not written, and compactors do not renew theirs either: such a look would tell nothing."""
        self._queue = queue
        self._clock = clock
        self._can_renew = can_renew
        self._watch: CountWatch[uuid.UUID, int] = CountWatch()
        self._looked_ms: int | None = None
        self._rows: list[CompactorRow] | None = None

    async def look(self) -> None:
        """Does nothing if the last look was less than LOOK_MS ago."""
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
            return
        if not self._can_renew():
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
        return len(self._rows) - len(self._dead())

    async def remove_dead(self) -> None:
        """Raises MetastoreUnavailableError. One that has renewed its lease since the last look stays."""
        for row in self._dead():
            logger.warning("compactor %s (%s) has not renewed its lease: it is removed", row.compactor_id, row.name)
            with suppress(StaleError):
                await self._queue.remove_compactor(row.compactor_id, row.renewals_count)
            self._rows = [one for one in self._rows or () if one.compactor_id != row.compactor_id]

    def _dead(self) -> list[CompactorRow]:
        return [row for row in self._rows or () if self._watch.stands_still(row.compactor_id, row.lease_ms)]
