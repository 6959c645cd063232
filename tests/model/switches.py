"""The rules of docs/rules.md as switches. All on is Sexton; a test turns one off and must find what it protects
from."""

from __future__ import annotations

from typing import NamedTuple


class Rules(NamedTuple):
    coordinated: bool = True
    """Off: Kafka's behaviour. Time alone decides, and no replica is asked."""

    # Coordination
    silent_replicas_count: bool = True
    """Off: the minimum is taken over the replicas that have reported to this leader."""
    incarnations: bool = True
    """Off: a broker that comes back with an empty disk is taken for the replica that it was."""
    only_empty_starts_at_removable: bool = True
    """Off: a replica that is added again keeps its old disk, and starts at MTRO/MXRO all the same."""
    other_incarnation_is_wiped: bool = True
    """Off: a replica that is added again keeps its old disk and what it knew. The fence alone must stop it."""
    fetch_fence: bool = True
    fence_asks_for_progress: bool = True
    """Off: a replica out of sync passes the fence wherever its log reaches MTRO and MXRO, compacted or not."""
    reports_by_process: bool = True
    """Off: what a broker reported before a restart counts after it, even if its disk is an old one now."""
    strong_mxfo: bool = True
    """Off: the weaker reading. MXFO says that every transaction below it has ended, not that none is left."""
    horizon_below_removable: bool = True
    """Off: a delete horizon starts at the first cleaning, wherever MTRO and MXRO are."""
    generations: bool = True
    """Off: an unclean election changes nothing but the leader."""
    clean_offset_becomes_fence: bool = True
    """Off: what was removed while a topic was `independent` is unknown to the fence."""

    # Durable first (rule 7)
    planned_high_watermark: bool = True
    """Off: the high watermark that a compaction was planned at is lost in a crash."""
    high_watermark_never_back: bool = True
    """Off: a follower takes its leader's high watermark even if it is lower."""
    removable_durable_first: bool = True
    """Off: MTRO and MXRO are acted on from memory, and lost in a crash."""
    told_before_records: bool = True
    """Off: a follower copies without taking MTRO, MXRO and the fence over from its leader."""
    swap_before_compacted: bool = True
    """Off: MCCO and MXFO are durable before the swap that they speak of."""
    join_waits_for_planned: bool = True
    """Off: a replica joins the ISR once it has caught up, whatever high watermark its copy was compacted at."""

    # The log
    history_copied_whole: bool = True
    """Off: the leader-epoch history is derived from the batches that survived."""
    start_before_history: bool = True
    """Off: a follower that takes its leader's history may still hold records from before it begins."""
    settled_changes_nothing: bool = True
    """Off: a settled batch of a producer ends its open transaction."""
    settled_is_no_error: bool = True
    """Off: a follower refuses a settled batch of a producer whose transaction is open."""
    last_batch_stays: bool = True
    """Off: an emptied batch at the log's end is removed."""
    one_snapshot_per_fetch: bool = True
    """Off: a consumer's fetch takes records and list of aborted transactions from two states of the log."""
    index_entry_leaves_with_marker: bool = True
    """Off: an aborted transaction's index entry goes with its last record."""
    commit_names_inputs: bool = True
    """Off: a finished compaction is swapped in, whatever log it was made of."""
    commit_judged: bool = True
    """Off: generation, MCCO and LSO are not looked at again when an own compaction commits."""
    compacted_not_below_start: bool = True

    # Compact once
    adopt_same_generation: bool = True
    adopt_above_own: bool = True
    """Off: an adopted compaction may end below the replica's own MCCO. (At it is safe: a later pass may end there.)"""
    adopt_stable: bool = True
    """Off: the high watermark, not the LSO, must have reached the bound."""
    adopt_committed: bool = True
    """Off: neither need have."""
    adopt_at_planned: bool = True
    """Off: it need not have reached the high watermark up to which the maker's log had been compacted."""
    adopt_whole: bool = True
    """Off: it may be cut at a lower bound."""
    adopt_carries_removable: bool = True
    adopt_carries_fence: bool = True
    adopt_carries_start: bool = True
    adopt_durable_first: bool = True
    """Off: the replica's own high watermark is not made durable before the swap."""
    snapshots_below_bound_go: bool = True
    """Off: producer snapshots survive the swap of what they were taken of."""
    snapshot_at_end: bool = True
    """Off: no producer snapshot is taken at the log's end before an adoption."""
    rebuild_only_empty: bool = True
    rebuild_reaches_compacted: bool = True
    """Off: a rebuild may end below the replica's MCCO and MXFO."""
    rebuild_ends_in_batch: bool = True
    """Off: what fills an empty log may end below its bound."""
    rebuild_brings_history: bool = True
    rebuild_sets_high_watermark: bool = True

    # Deferral
    deleted_goes: bool = True
    """Off: what is left where it is may be deleted by a tombstone, not only superseded by a value."""
    aborted_goes: bool = True
    """Off: aborted records may be left where they are, too, unsettled."""
    all_older_go: bool = True
    """Off: a pass that believes that the clean section holds each key once removes one older record of a key there."""
    left_tombstones_go_on: bool = True
    """Off: where a pass leaves superseded records, it also leaves tombstones whose horizon it should begin or end."""
    forced_election_forgets_mcco: bool = True
    """Off: who is forced to lead goes on believing what it had compacted, up to its log end."""
    forced_election_forgets_mtro: bool = True
    """Off: those that start from nothing in the new generation start as if they had compacted it, too."""


SEXTON = Rules()
KAFKA = Rules(coordinated=False)
