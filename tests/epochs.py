"""Leader epochs for tests, from plain numbers."""

from __future__ import annotations

from sexton.records.checkpoints import EpochEntry
from sexton.types import LeaderEpoch


def history(*entries: tuple[int, int]) -> tuple[EpochEntry, ...]:
    """Each entry: an epoch, and its first offset."""
    return tuple(EpochEntry(LeaderEpoch(epoch), start_offset) for epoch, start_offset in entries)
