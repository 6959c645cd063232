"""The terms of one compaction. Does not import NumPy, which a broker starts without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sexton.types import OFFSET_MAX

NO_HORIZON: Final = -1
TIMESTAMP_MAX_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one compaction of one partition."""

    now_ms: int
    bound: int
    """Exclusive: nothing at or above it is touched. A segment's base offset."""
    delete_retention_ms: int
    mtro: int = 0
    mxro: int = 0
    settle_below: int = 0
    """Committed transactional batches that end below it are rewritten as plain ones."""
    drop_keyless: bool = False

    def independent(self) -> Terms:
        """Kafka's behaviour: other replicas are not considered, time alone decides. It exists to show and measure the
        bug."""
        return replace(self, mtro=OFFSET_MAX, mxro=OFFSET_MAX, settle_below=0, drop_keyless=True)

    @property
    def horizon_ms(self) -> int:
        """Delete horizon of tombstones and markers whose retention starts in this compaction; `NO_HORIZON` if it never
        ends.

        delete.retention.ms=Long.MAX_VALUE means "for ever": its horizon would be beyond any timestamp. None is written
        then, as in Kafka, so that a shorter retention counts from when it is set.
        """
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms <= TIMESTAMP_MAX_MS else NO_HORIZON

    def check_invariants(self) -> None:
        assert self.bound >= 0, "a bound is an offset"
        assert self.settle_below <= self.bound, "rule 8: nothing above the bound (and so the LSO) is settled"
