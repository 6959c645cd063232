"""Rules of leveling and compaction in the store (C7, C8, docs/rules.md), broken on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from sexton.cloud.log import CloudLog
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


APART_S: Final = 1.0
_trim_leveled = CloudLog._trim_leveled


def _keeps_the_map_of_before(self: CloudLog) -> None:
    """For a second L0 is read still, and its list is gone: as if the two had been asked for apart."""
    told = self._told_leveled_offset
    if self.leveled_offset < told <= self.committed_offset:
        self._aborted = [one for one in self._aborted if one.last_offset >= told]
        asyncio.get_running_loop().call_later(APART_S, _trim_leveled, self)


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
    "C9": Break(Patch(CloudLog, "_trim_leveled", _keeps_the_map_of_before), Profile.LEVELED, 0.5),
}
"""By rule: aborted records are settled as if they were committed; tombstones go as soon as they are known to go;
records are read from L0, and what was aborted among them is asked for when it is L1."""
