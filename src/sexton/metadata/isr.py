"""The two changes that a leader makes to its partition's ISR."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sexton.ports.metastore import PartitionRow


def shrink(row: PartitionRow, lagging: Collection[int]) -> PartitionRow | None:
    """Removes lagging members. The leader never lags behind itself, so the ISR is never empty."""
    isr = tuple(member for member in row.isr if member not in lagging or member == row.leader)
    if not isr:
        isr = row.isr  # without a leader, no member can lag behind it
    return None if isr == row.isr else replace(row, isr=isr)


def expand(row: PartitionRow, caught_up: Collection[int]) -> PartitionRow | None:
    """Adds replicas that have caught up, in order of preference. Only replicas of the partition can join."""
    joining = tuple(id_ for id_ in row.replicas if id_ in caught_up and id_ not in row.isr)
    return replace(row, isr=row.isr + joining) if joining else None
