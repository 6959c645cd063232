"""What a compaction does with a record or marker. Does not import NumPy, which a broker starts without."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final


class Fate(IntEnum):
    """What a compaction does with a record or marker, and why. Values below 100 mean that it is kept."""

    NEWEST = 0
    KEYLESS_KEPT = 1
    TOMBSTONE_WAITS_FOR_REPLICAS = 2
    TOMBSTONE_STARTS_HORIZON = 3
    TOMBSTONE_WAITS_FOR_HORIZON = 4
    MARKER_HAS_DATA = 5
    MARKER_WAITS_FOR_REPLICAS = 6
    MARKER_STARTS_HORIZON = 7
    MARKER_WAITS_FOR_HORIZON = 8
    CONTROL_OF_OTHER_KIND = 9
    SUPERSEDED = 100
    ABORTED = 101
    TOMBSTONE_EXPIRED = 102
    KEYLESS_DROPPED = 103
    MARKER_EXPIRED = 104

    @property
    def stays(self) -> bool:
        return self < 100

    @property
    def why(self) -> str:
        return _WHY[self]

    @property
    def label(self) -> str:
        """The name in messages and in output for people."""
        return self.name.lower()


_WHY = {
    Fate.NEWEST: "the newest committed record of its key",
    Fate.KEYLESS_KEPT: "has no key, so nothing can supersede it (Kafka's cleaner would drop it)",
    Fate.TOMBSTONE_WAITS_FOR_REPLICAS: "at or above MTRO: a replica may still hold the value that it deletes",
    Fate.TOMBSTONE_STARTS_HORIZON: "seen below MTRO for the first time: delete.retention.ms starts now",
    Fate.TOMBSTONE_WAITS_FOR_HORIZON: "its delete horizon has not passed: a slow consumer may still need it",
    Fate.MARKER_HAS_DATA: "records of its transaction were still in the log",
    Fate.MARKER_WAITS_FOR_REPLICAS: "at or above MXRO: a replica may still hold unsettled records of its transaction",
    Fate.MARKER_STARTS_HORIZON: "seen below MXRO with nothing left of its transaction: delete.retention.ms starts now",
    Fate.MARKER_WAITS_FOR_HORIZON: "its delete horizon has not passed",
    Fate.CONTROL_OF_OTHER_KIND: "a control record that is neither COMMIT nor ABORT",
    Fate.SUPERSEDED: "a newer committed record has the same key",
    Fate.ABORTED: "its transaction was aborted",
    Fate.TOMBSTONE_EXPIRED: "below MTRO and its delete horizon has passed",
    Fate.KEYLESS_DROPPED: "has no key (dropped as Kafka's cleaner does)",
    Fate.MARKER_EXPIRED: "below MXRO and its delete horizon has passed",
}

WAIT_FOR_REPLICAS: Final = frozenset(
    {Fate.TOMBSTONE_WAITS_FOR_REPLICAS, Fate.MARKER_WAITS_FOR_REPLICAS, Fate.MARKER_HAS_DATA}
)
START_HORIZON: Final = frozenset({Fate.TOMBSTONE_STARTS_HORIZON, Fate.MARKER_STARTS_HORIZON})
WAIT_FOR_HORIZON: Final = frozenset({Fate.TOMBSTONE_WAITS_FOR_HORIZON, Fate.MARKER_WAITS_FOR_HORIZON})
WAIT: Final = WAIT_FOR_REPLICAS | START_HORIZON | WAIT_FOR_HORIZON
"""Fates of tombstones and markers that a later compaction may remove."""

TOMBSTONES_WAIT: Final = frozenset(fate for fate in WAIT if fate.name.startswith("TOMBSTONE"))
MARKERS_WAIT: Final = WAIT - TOMBSTONES_WAIT
GONE: Final = frozenset(fate for fate in Fate if not fate.stays)


def count(fates: Mapping[str, int], wanted: Collection[Fate]) -> int:
    """How many records and markers have one of these fates. `fates` has counts by label."""
    return sum(fates.get(fate.label, 0) for fate in wanted)
