"""When a replica is due for a compaction. Pure.

A compaction is due when enough is dirty or a record has waited too long (`compaction.eligibility`, Kafka's rules); when
it was requested; and, unlike in Kafka, when nothing is dirty but tombstones or markers that an earlier compaction had
to leave can now be removed: all replicas are past them, or their delete horizon has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from sexton.compaction.eligibility import Eligibility, SegmentSummary, cleanable_bound, eligibility_of
from sexton.compaction.fates import (
    MARKERS_WAIT,
    START_HORIZON,
    TOMBSTONES_WAIT,
    WAIT_FOR_HORIZON,
    WAIT_FOR_REPLICAS,
    count,
)
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.settings.topic import TopicConfig
from sexton.types import INT64_MAX

CLOCKS_DIFFER_MS: Final = 10_000
"""Pause between two compactions that check whether an overdue horizon has passed: each of them reads the whole log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Tombstones and markers that the last compaction could not remove, and why."""

    removable: Pair
    """MTRO and MXRO at that compaction."""
    waiting_for_replicas_count: int
    waiting_for_horizon_count: int
    horizon_ms: int
    """When the next of the delete horizons passes."""
    is_known: bool = True
    """False if no compaction has counted them."""
    tombstones_count: int = 0
    markers_count: int = 0
    """Number of markers that wait, for replicas or for their horizon; likewise `tombstones_count`."""
    held_back_bytes: int = 0
    """Approximate bytes that are kept because some replica is not past them: a batch counts by the share of its
    records."""

    @staticmethod
    def of_pass(
        before: Leftovers | None,
        fates: Mapping[str, int],
        removable: Pair,
        now_ms: int,
        delete_retention_ms: int,
        held_back_bytes: int = 0,
    ) -> Leftovers:
        started = count(fates, START_HORIZON)
        waiting = count(fates, WAIT_FOR_HORIZON)
        latest_ms = min(INT64_MAX, now_ms + delete_retention_ms)
        horizon_ms = latest_ms if started else INT64_MAX
        if waiting:
            # Their horizons were set by an earlier compaction, here or where the log was copied from; the exact times
            # are in their batches. `latest_ms` at the latest.
            earlier_ms = before.horizon_ms if before is not None else INT64_MAX
            if now_ms >= earlier_ms:
                # It should have passed by now: perhaps the clock that it was written by was ahead of this one.
                horizon_ms = min(horizon_ms, max(latest_ms, now_ms + CLOCKS_DIFFER_MS))
            else:
                horizon_ms = min(horizon_ms, earlier_ms, latest_ms)
        return Leftovers(
            removable=removable,
            waiting_for_replicas_count=count(fates, WAIT_FOR_REPLICAS),
            waiting_for_horizon_count=started + waiting,
            horizon_ms=horizon_ms,
            tombstones_count=count(fates, TOMBSTONES_WAIT),
            markers_count=count(fates, MARKERS_WAIT),
            held_back_bytes=held_back_bytes,
        )

    def may_go_on(self, removable: Pair, now_ms: int, delete_retention_ms: int = INT64_MAX) -> str:
        """Why another compaction would remove something; empty if it would not."""
        if self.waiting_for_horizon_count and now_ms + delete_retention_ms < INT64_MAX == self.horizon_ms:
            return "tombstones or markers that were to be kept for ever no longer are: delete.retention.ms was changed"
        if not self.is_known and removable.highest > 0:
            return "whether tombstones or markers wait here is not known"
        if self.waiting_for_horizon_count and now_ms >= self.horizon_ms:
            return "the delete horizon of tombstones or markers has passed"
        if self.waiting_for_replicas_count and not self.removable.covers(removable):
            return "all replicas are past tombstones or markers that waited for them"
        return ""


def decode_leftovers(fields: Mapping[str, Any]) -> Leftovers:
    """Raises ValueError, KeyError or TypeError if malformed."""
    removable = fields["removable"]
    if not isinstance(removable, list):
        raise ValueError("removable is a pair of offsets")
    keys, transactions = removable
    return Leftovers(**{**fields, "removable": Pair(int(keys), int(transactions))})


UNKNOWN: Final = Leftovers(
    removable=Pair(0, 0),
    waiting_for_replicas_count=0,
    waiting_for_horizon_count=0,
    horizon_ms=INT64_MAX,
    is_known=False,
)
"""For a log that was compacted, where it is not known what was left."""


@dataclass(frozen=True, slots=True)
class Due:
    is_due: bool
    why: str
    eligibility: Eligibility

    @property
    def bound(self) -> int:
        return self.eligibility.bound.offset


def first_dirty(watermarks: ReplicaWatermarks, log_start: int, log_end: int) -> int:
    """The offset below which compactions have both deduplicated and settled."""
    return max(log_start, min(*watermarks.compacted, log_end))


def is_due(
    summaries: Sequence[SegmentSummary],
    watermarks: ReplicaWatermarks,
    leftovers: Leftovers | None,
    *,
    log_start: int,
    log_end: int,
    last_stable_offset: int,
    high_watermark: int,
    now_ms: int,
    config: TopicConfig,
    is_requested: bool,
) -> Due:
    dirty = first_dirty(watermarks, log_start, log_end)
    if config.compaction_coordination == "independent":
        dirty = max(log_start, min(watermarks.compacted.keys, log_end))
    bound = cleanable_bound(summaries, dirty, last_stable_offset, high_watermark, now_ms, config)
    found = eligibility_of(summaries, dirty, bound, now_ms, config)
    if config.compacts and bound.offset < watermarks.compacted.keys:
        # A copied log may have in its active segment what was compacted elsewhere, and no compaction ends below that.
        why = f"it is compacted up to {watermarks.compacted.keys} already, beyond {bound.offset} ({bound.because})"
        return Due(False, why, replace(found, is_eligible=False, because=why))
    if found.is_eligible or not config.compacts:
        return Due(found.is_eligible, found.because, found)
    has_closed = bound.offset > summaries[0].base_offset
    why = leftovers.may_go_on(watermarks.removable, now_ms, config.delete_retention_ms) if leftovers is not None else ""
    if has_closed and is_requested:
        return Due(True, "somebody asked for it", found)
    if has_closed and why:
        return Due(True, why, found)
    return Due(False, found.because, found)


def looks_different_ms(
    due: Due,
    summaries: Sequence[SegmentSummary],
    leftovers: Leftovers | None,
    now_ms: int,
    config: TopicConfig,
) -> int:
    """The next time at which the result may change by time alone: a lag or a horizon passes. INT64_MAX if never."""
    moments = []
    active, dirty_from = summaries[-1], due.eligibility.first_dirty_offset
    if config.max_compaction_lag_ms != INT64_MAX:
        dirty = [one for one, after in pairwise(summaries) if after.base_offset > dirty_from]
        waiting = [*dirty, active] if active.size_bytes else dirty
        moments += [one.first_timestamp_ms + config.max_compaction_lag_ms + 1 for one in waiting]
    if config.min_compaction_lag_ms > 0:
        moments += [
            one.max_timestamp_ms + config.min_compaction_lag_ms
            for one in summaries[:-1]
            if one.base_offset >= due.bound
        ]
    if leftovers is not None and leftovers.waiting_for_horizon_count:
        moments.append(leftovers.horizon_ms)
    return min((one for one in moments if one > now_ms), default=INT64_MAX)


def must_close_active(active: SegmentSummary, now_ms: int, config: TopicConfig) -> bool:
    """Whether to roll the active segment, so that its first record does not wait longer than max.compaction.lag.ms."""
    if not config.compacts or config.max_compaction_lag_ms == INT64_MAX or active.size_bytes == 0:
        return False
    return active.first_timestamp_ms >= 0 and now_ms - active.first_timestamp_ms > config.max_compaction_lag_ms
