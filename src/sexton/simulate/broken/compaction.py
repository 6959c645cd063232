"""Defects that Sexton once had, put back: watermarks and the logs that they are about."""

from __future__ import annotations

from collections.abc import Callable

from sexton.compaction.watermarks import fence
from sexton.compaction.watermarks.replica import UNKNOWN_EPOCH, Claim, Pair, ReplicaWatermarks
from sexton.replication.coordination import Coordination
from sexton.replication.local_replica import LocalReplica
from sexton.replication.messages import FetchPartition, PartitionData
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile


async def _keeps_without_a_flush(self: Coordination, change: Callable[[ReplicaWatermarks], ReplicaWatermarks]) -> None:
    await self.kept.keep(change)


def _as_acknowledged(self: LocalReplica) -> bool:
    return self.config.flush_before_ack


def _of_planned(self: Coordination) -> Claim:
    """Only what keeps a replica from joining too early."""
    return Claim(self.kept.value.planned_high_watermark, UNKNOWN_EPOCH)


def _believes(self: Coordination, held: FetchPartition) -> bool:
    return True


def _takes_any(self: Coordination, fetched: PartitionData) -> None:
    """However much of what it was compacted by the leader lacks."""


def _is_whole(end_offset: int, compacted: Pair, removable: Pair) -> bool:
    return False


def _leads_as_it_is(self: LocalReplica, row: object) -> bool:
    return False


COMPACTION: dict[str, Break] = {
    "watermarks-outlive-log": Break(
        (
            Patch(Coordination, "_keep", _keeps_without_a_flush),
            Patch(LocalReplica, "_must_be_flushed", property(_as_acknowledged)),
            Patch(Coordination, "claim", property(_of_planned)),
            Patch(Coordination, "has_what_is_claimed", _believes),
            Patch(Coordination, "check_claim", _takes_any),
            Patch(fence, "_has_lost_its_end", _is_whole),
            Patch(LocalReplica, "outlives_its_log", _leads_as_it_is),
        ),
        profile=Profile.COMPACTION,
    ),
}
"""A log that has lost its end goes on with its watermarks, whoever leads."""
