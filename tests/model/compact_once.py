"""The conditions of "compact once" (docs/rules.md), each with an arena in which it is missed."""

from __future__ import annotations

from tests.model.arenas import ABORTS, COMMITS, DELETE_A, PUT_A, PUT_B, T_PUT_A, Arena, script
from tests.model.traps import AHEAD, CALM, COMPACT_ALL, SYNC_ALL, WAIT, Prefix, Trap, fetch, put, without

TRUNCATED_TWICE: Prefix = (
    *(*put(T_PUT_A), SYNC_ALL, ("snapshot", 1), *put(ABORTS, PUT_B), SYNC_ALL, ("compact", 0, 3)),
    *(("elect", 1), *put(PUT_B), ("adopt", 1, 0, 0), ("elect", 0), *put(PUT_B), ("fetch", 1, 0), SYNC_ALL),
    *(("compact", 2, 4), SYNC_ALL, ("compact", 0, 4), WAIT, ("compact", 0, 4)),
    *(("elect", 1), *put(PUT_B), ("adopt", 1, 2, 0)),
)
"""Broker 1 has adopted twice with an unreplicated record at its end. The snapshot that it took there went with that
record the first time, and will again: below lies one that was taken while a transaction was open whose marker is gone.
"""

COMPACT_ONCE = {
    "another generation's compaction is adopted": Trap(
        without("adopt_same_generation"),
        Arena(
            script(PUT_A, PUT_A, PUT_B),
            epochs_max=1,
            generations_max=1,
            incarnations_max=2,
            adopts=True,
            coarse=True,
            prefix=(*put(PUT_A), SYNC_ALL, ("shrink", 2), *put(PUT_A), ("sync", 1)),
        ),
        "never committed",
    ),
    "a compaction below the own MCCO is adopted": Trap(
        without("adopt_above_own"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            adopts=True,
            offers_max=3,
            coarse=True,
            prefix=(*put(PUT_A), SYNC_ALL, ("compact", 0, 1), *put(DELETE_A), SYNC_ALL, COMPACT_ALL, SYNC_ALL),
        ),
        "deleted is back",
    ),
    "a compaction is adopted above the own LSO": Trap(
        without("adopt_stable", "adopt_at_planned"),
        Arena(
            script(T_PUT_A, PUT_B, COMMITS),
            **CALM,
            adopts=True,
            every_bound=True,
            prefix=(*put(T_PUT_A, PUT_B), SYNC_ALL, *put(COMMITS), *fetch(1, 2, 1, 2)),
        ),
        "open visible",
    ),
    "a compaction is adopted above the own high watermark": Trap(
        without("adopt_committed"),
        Arena(script(PUT_A, PUT_A), **CALM, adopts=True, prefix=(*put(PUT_A), SYNC_ALL)),
        "value lost",
    ),
    "a compaction is adopted whose maker's log was compacted further": Trap(
        without("adopt_at_planned"),
        Arena(
            script(PUT_A, PUT_B, PUT_A),
            epochs_max=1,
            swap_crashes=True,
            every_bound=True,
            adopts=True,
            prefix=(*put(PUT_A, PUT_B), SYNC_ALL, *put(PUT_A), *fetch(1, 2, 1, 2)),
        ),
        "value lost",
    ),
    "a compaction is adopted whose maker had copied what was compacted further": Trap(
        without("adopt_at_planned"),
        Arena(
            script(PUT_A, PUT_B, PUT_A),
            epochs_max=1,
            crashes=False,
            lost_disks=True,
            incarnations_max=2,
            every_bound=True,
            adopts=True,
            prefix=(
                *(*put(PUT_A, PUT_B), SYNC_ALL, *put(PUT_A), *fetch(1, 2, 1, 2), ("compact", 0, 3), ("lose_disk", 2)),
                *(*fetch(2, 2), ("join", 2)),
            ),
            without=("lose_disk",),
        ),
        "value lost",
    ),
    "a compaction is cut at a lower bound": Trap(
        without("adopt_whole", "adopt_at_planned"),
        Arena(script(PUT_A, PUT_A), **CALM, adopts=True, prefix=(*put(PUT_A), SYNC_ALL)),
        "value lost",
    ),
    "MTRO does not come along": Trap(
        without("adopt_carries_removable"),
        Arena(
            script(PUT_A, DELETE_A, PUT_B),
            epochs_max=1,
            crashes=False,
            adopts=True,
            images=True,
            incarnations_max=2,
            coarse=True,
            prefix=(
                *(*put(PUT_A), SYNC_ALL, ("take_image", 2), *put(DELETE_A, PUT_B), SYNC_ALL),
                *(("compact", 0, 2), ("compact", 1, 2), ("compact", 2, 2), ("report", 1), ("report", 2)),
                *(("compact", 0, 2), WAIT, ("compact", 0, 3)),
            ),
        ),
        "deleted is back",
    ),
    "the fence does not come along": Trap(
        without("adopt_carries_fence"),
        Arena(
            script(PUT_A, DELETE_A, PUT_B),
            epochs_max=1,
            crashes=False,
            incarnations_max=2,
            starts_independent=True,
            adopts=True,
            coarse=True,
            prefix=(
                *(*put(PUT_A), SYNC_ALL, ("shrink", 2), *put(DELETE_A), ("sync", 1), *put(PUT_B), ("sync", 1)),
                *(("compact", 0, 2), WAIT, ("compact", 0, 2), ("leave_independent",)),
            ),
        ),
        "deleted is back",
    ),
    "the log start does not come along": Trap(
        without("adopt_carries_start"),
        Arena(script(PUT_A, PUT_B), **CALM, adopts=True, retention=True, prefix=(*put(PUT_A, PUT_B), SYNC_ALL)),
        "value lost",
    ),
    "the own high watermark is not durable first": Trap(
        without("adopt_durable_first"),
        Arena(script(PUT_A, PUT_A), epochs_max=1, adopts=True, prefix=AHEAD),
        "value lost",
    ),
    "no producer snapshot is taken at the log's end": Trap(
        without("snapshot_at_end"),
        Arena(
            script(T_PUT_A, T_PUT_A, COMMITS),
            epochs_max=0,
            snapshots=2,
            adopts=True,
            coarse=True,
            prefix=(*put(T_PUT_A), SYNC_ALL),
        ),
        "sequence forgotten",
    ),
    "producer snapshots below the bound stay": Trap(
        without("snapshots_below_bound_go"),
        Arena(
            script(T_PUT_A, ABORTS, PUT_B, PUT_B, PUT_B, PUT_B),
            epochs_max=4,
            snapshots=4,
            adopts=True,
            offers_max=3,
            prefix=TRUNCATED_TWICE,
        ),
        "frozen",
    ),
    "a rebuild fills a log that is not empty": Trap(
        without("rebuild_only_empty"),
        Arena(
            script(PUT_A, PUT_B, PUT_A),
            epochs_max=1,
            crashes=False,
            adopts=True,
            every_bound=True,
            coarse=True,
            prefix=(*put(PUT_A), SYNC_ALL, *put(PUT_B)),
        ),
        "older value",
    ),
    "a rebuild ends below MCCO": Trap(
        without("rebuild_reaches_compacted"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            adopts=True,
            offers_max=4,
            images=True,
            incarnations_max=2,
            partial_fetches=True,
            coarse=True,
            prefix=(
                *(*put(PUT_A), SYNC_ALL, ("compact", 0, 1), ("take_image", 2), *put(DELETE_A), SYNC_ALL),
                *(COMPACT_ALL, SYNC_ALL, ("compact", 0, 2), WAIT, ("compact", 0, 2)),
            ),
        ),
        "deleted is back",
    ),
    "a rebuild ends where no batch does: after a forced election nobody reaches the end": Trap(
        without("rebuild_ends_in_batch"),
        Arena(
            script(PUT_A, PUT_B, PUT_A),
            epochs_max=3,
            swap_crashes=True,
            generations_max=1,
            every_bound=True,
            adopts=True,
            lost_disks=True,
            incarnations_max=3,
            coarse=True,
            prefix=(
                *(*put(PUT_A, PUT_B, PUT_A), SYNC_ALL, ("compact_and_crash", 0, 3), ("elect", 0), ("compact", 0, 1)),
                ("lose_disk", 2),
            ),
        ),
        "left out",
        at_rest=True,
    ),
    "a rebuild comes without the epoch history: what it filled is cut away again": Trap(
        without("rebuild_brings_history"),
        Arena(script(PUT_A, PUT_A), **CALM, lost_disks=True, incarnations_max=2, adopts=True, prefix=AHEAD),
        "rule 7",
        by_definition=True,
    ),
    "a rebuild does not set the high watermark": Trap(
        without("rebuild_sets_high_watermark"),
        Arena(script(PUT_A, PUT_A), epochs_max=1, lost_disks=True, incarnations_max=2, adopts=True, prefix=AHEAD),
        "value lost",
    ),
}
"""In the order of docs/rules.md; and the fence, which belongs to what is carried."""
