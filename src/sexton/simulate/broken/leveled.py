"""Rules of leveling and compaction in the store (C7, C8, docs/rules.md), broken on purpose."""

from __future__ import annotations

from collections.abc import Sequence

from sexton.compactor.cloud import jobs, planning, reference, work
from sexton.compactor.cloud.plans import Compacted, PartitionPlan
from sexton.ports.cloud import AbortedRow
from sexton.records.batch import Batch
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile


def _believes_all(batch: Batch, aborted: Sequence[AbortedRow]) -> bool:
    return False


def _is_never_late(self: jobs.CloudJobs, plan: PartitionPlan, made: Compacted) -> bool:
    return False


LEVELED: dict[str, Break] = {
    "C7": Break(Patch(reference, "_is_aborted", _believes_all), Profile.LEVELED, 0.5),
    "C8": Break(
        (
            Patch(planning, "HORIZON_MS_MIN", 0),
            Patch(jobs.CloudJobs, "_is_too_late", _is_never_late),
            Patch(work, "SLACK_MS_MIN", 0),
        ),
        Profile.LEVELED,
        0.5,
    ),
}
"""By rule: aborted records are settled as if they were committed; tombstones go as soon as they are known to go."""
