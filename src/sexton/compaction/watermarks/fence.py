"""The fetch fence: which followers a leader lets copy its log (docs/rules.md).

Once a tombstone or marker is gone from all replicas, a log that still holds what it deleted must never be completed
from them: the deleted value would be back. Such logs are old disks, or logs of replicas that were away. They are
turned away, leave the ISR, and start again from nothing.
"""

from __future__ import annotations

from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks


def may_copy(
    leader: ReplicaWatermarks, *, end_offset: int, is_empty: bool, generation: int, compacted: Pair, in_sync: bool
) -> bool:
    """Whether a follower may copy from this leader. The follower's log is a prefix of the leader's: one that is not is
    truncated first, and asks again.

    An empty log holds nothing that could contradict the leader's.

    A follower whose log ends at or above everything that was removed lacks only what can still be copied. One that ends
    below must itself have compacted that far, or its log may hold what all others have removed: it must be wiped.

    A follower outside the ISR must in any case have compacted up to MTRO and MXRO, as every replica has whose disk is
    current: a disk that went back in time still holds values whose tombstones are about to be removed, and would serve
    them to consumers that then miss the tombstone.

    It must not have lost the end of what it has compacted either, because it would copy that back less compacted than
    it claims: only what all replicas have compacted is copied as it was.
    """
    if is_empty:
        return True
    if generation != leader.generation:
        return False
    removable = leader.removable
    if not in_sync and (not compacted.covers(removable) or _has_lost_its_end(end_offset, compacted, removable)):
        return False
    gone = removable.join(Pair(leader.fence_below, leader.fence_below))
    return end_offset >= gone.highest or compacted.covers(gone)


def _has_lost_its_end(end_offset: int, compacted: Pair, removable: Pair) -> bool:
    """Not if all that it has compacted is at most MTRO and MXRO: a new replica is still copying up to there."""
    return end_offset < compacted.highest and not removable.covers(compacted)
