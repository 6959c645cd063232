"""What a cleaner leaves behind in a log: gaps in the offsets, and delete horizons. No file and no request tells when a
log was cleaned last; these say how far it was, and after when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sexton.records.header import DELETE_HORIZON
from sexton.records.kernels.scan import Table
from sexton.types import NO_OFFSET, NO_TIMESTAMP


@dataclass(slots=True)
class Traces:
    """Of adjacent batches, in offset order."""

    gapless_from: int = NO_OFFSET
    """Where the last gap in the offsets ends; NO_OFFSET without any gap. Only compaction makes gaps."""
    max_timestamp_before_gap_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    horizon_max_ms: int = NO_TIMESTAMP

    def look(self, table: Table, previous_offset: int) -> None:
        """`previous_offset` is the last one before the table: what lies between is a gap."""
        if len(table) == 0:
            return
        with_horizon = table["base_timestamp"][(table["attributes"] & DELETE_HORIZON) != 0]
        self.horizon_max_ms = max(self.horizon_max_ms, int(with_horizon.max(initial=NO_TIMESTAMP)))
        before = np.concatenate([[previous_offset], table["last_offset"][:-1]])
        skips = table["base_offset"] > before + 1
        has_holes = table["record_count"] < table["last_offset"] - table["base_offset"] + 1
        gaps = np.flatnonzero(skips | has_holes)
        if len(gaps):
            last = int(gaps[-1])
            self.gapless_from = (
                int(table["last_offset"][last]) + 1 if has_holes[last] else int(table["base_offset"][last])
            )
            up_to = last + 1 if has_holes[last] else last
            newest_ms = int(table["max_timestamp"][:up_to].max(initial=NO_TIMESTAMP))
            self.max_timestamp_before_gap_ms = max(self.max_timestamp_ms, newest_ms)
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(table["max_timestamp"].max(initial=NO_TIMESTAMP)))

    def join(self, later: Traces) -> None:
        """Adds those of the batches that follow."""
        if later.gapless_from != NO_OFFSET:
            self.gapless_from = later.gapless_from
            self.max_timestamp_before_gap_ms = max(self.max_timestamp_ms, later.max_timestamp_before_gap_ms)
        self.max_timestamp_ms = max(self.max_timestamp_ms, later.max_timestamp_ms)
        self.horizon_max_ms = max(self.horizon_max_ms, later.horizon_max_ms)

    def cleaned_not_before_ms(self, delete_retention_ms: int, *others_ms: int) -> int | None:
        """The newest of what proves a cleaning: a delete horizon was set ``delete.retention.ms`` after one (if that
        config is still the same); the others are times of records that were there before it."""
        times: Sequence[int] = [self.horizon_max_ms - delete_retention_ms] if self.horizon_max_ms >= 0 else []
        latest = max([*times, *others_ms], default=NO_TIMESTAMP)
        return None if latest < 0 else latest
