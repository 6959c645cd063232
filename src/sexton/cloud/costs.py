"""What a store costs, estimated from what the metastore knows: the objects that are there, and when each was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sexton.cloud.looking import objects_of
from sexton.ports.cloud import Level, ObjectState
from sexton.ports.metastore import Metastore
from sexton.ports.object_names import object_id_time_ms

STORAGE_DOLLARS_PER_GB_MONTH: Final = 0.023
PUT_DOLLARS: Final = 0.005 / 1000
PART_BYTES: Final = 8 << 20
"""Compactors write in parts, each of which is a request."""
HOURS_PER_MONTH: Final = 730


@dataclass(frozen=True, slots=True)
class Costs:
    objects_count: int
    stored_bytes: int
    """Garbage that waits to be deleted included."""
    l0_puts_per_hour: float
    l1_puts_per_hour: float

    @property
    def storage_dollars_per_month(self) -> float:
        return self.stored_bytes / 1e9 * STORAGE_DOLLARS_PER_GB_MONTH

    @property
    def l0_dollars_per_month(self) -> float:
        return self.l0_puts_per_hour * HOURS_PER_MONTH * PUT_DOLLARS

    @property
    def l1_dollars_per_month(self) -> float:
        return self.l1_puts_per_hour * HOURS_PER_MONTH * PUT_DOLLARS

    @property
    def dollars_per_month(self) -> float:
        return self.storage_dollars_per_month + self.l0_dollars_per_month + self.l1_dollars_per_month


async def estimate(metastore: Metastore, now_ms: int, window_ms: int) -> Costs:
    """Pending objects count as nothing: most are registered ahead of need."""
    count = size_bytes = l0_puts = l1_puts = 0
    async for row in objects_of(metastore, [ObjectState.LIVE, ObjectState.GARBAGE]):
        if not row.size_bytes:
            continue  # given back without having been put
        count += 1
        size_bytes += row.size_bytes
        if now_ms - object_id_time_ms(row.object_id) < window_ms:
            l0_puts += row.level is Level.L0
            l1_puts += 0 if row.level is Level.L0 else 1 + row.size_bytes // PART_BYTES
    hours = window_ms / 3_600_000
    return Costs(count, size_bytes, l0_puts / hours, l1_puts / hours)
