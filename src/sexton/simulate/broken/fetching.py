"""Defects that Sexton once had, put back: how followers take what their leaders send, and adopt what they compacted."""

from __future__ import annotations

from sexton.broker.compaction import adoption
from sexton.broker.compaction.adoption import Group, grouped
from sexton.compaction.contract import Offer
from sexton.log.segments import ClosedSegments
from sexton.replication import fetcher
from sexton.replication.local_replica import LocalReplica
from sexton.replication.messages import PartitionData
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile
from sexton.types import OFFSET_MAX


def _takes_nothings_place(offer: Offer, closed: ClosedSegments) -> list[Group]:
    """Also where a log starts at the bound: what the leader has is then to replace segments of which there are none."""
    return grouped(offer.segments, closed.base_offsets)


def _is_for_whatever_is_there(replica: LocalReplica, fetched: PartitionData) -> bool:
    return True


def _gaps_anywhere(replica: LocalReplica, fetched: PartitionData) -> int:
    return OFFSET_MAX


FETCHING: dict[str, Break] = {
    "answer-names-no-log": Break(
        (Patch(fetcher, "_is_for", _is_for_whatever_is_there), Patch(fetcher, "_gaps_below", _gaps_anywhere)),
        minutes=0.3,
    ),
    "adopter-empty-group": Break(Patch(adoption, "groups_to_take", _takes_nothings_place), Profile.COMPACTION, 1),
}
