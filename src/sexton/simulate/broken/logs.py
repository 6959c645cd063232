"""Defects that Sexton once had, put back: one log on one disk."""

from __future__ import annotations

from sexton.compaction.watermarks.checkpoint import Kept
from sexton.errors import CorruptLogError
from sexton.log.health import Health
from sexton.log.recovery import Recovery
from sexton.log.segment import Segment
from sexton.ports.metastore import PartitionRow
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH
from sexton.records.names import LOG_SUFFIX
from sexton.replication.local_replica import LocalReplica
from sexton.replication.replicas import Replicas
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile
from sexton.types import LeaderEpoch, PartitionId


def _goes_on(self: Health | Segment) -> None:
    """Checks nothing: goes on by path, even if another log is there by now."""


async def _stays_open(self: Kept) -> None:
    """Beside whatever log has the name by now."""


def _finds_nobody_stranded(self: Replicas) -> dict[PartitionId, LeaderEpoch]:
    return {}


async def _begins_its_epoch_first(self: LocalReplica, row: PartitionRow) -> None:
    await self.log.begin_epoch(row.leader_epoch)
    await self.coordination.enter_generation(row.generation)


def _takes_it_for_damage(self: Recovery, segment: Segment, what: str) -> None:
    raise CorruptLogError(
        f"{what}, so this is no torn write",
        f"{segment.path(LOG_SUFFIX)} at byte {segment.size_bytes}",
        WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
    )


LOGS: dict[str, Break] = {
    "torn-tail-is-damage": Break(Patch(Recovery, "_doubt", _takes_it_for_damage), minutes=0.3),
    "deleted-log-goes-on": Break(
        (
            Patch(Health, "check_not_deleted", _goes_on),
            Patch(Segment, "_check_there", _goes_on),
            Patch(Kept, "close", _stays_open),
        ),
        profile=None,
    ),
    "epoch-before-generation": Break(
        (Patch(LocalReplica, "_enter", _begins_its_epoch_first), Patch(Replicas, "stranded", _finds_nobody_stranded)),
        Profile.COMPACTION,
    ),
}
"""Valid batches behind a page that never reached the device make a log one that is not opened; what waits for a deleted
log goes on in the next one of that name; a forced leader that meets a full disk keeps its
new epoch and not its generation, and never leads."""
