"""What makes deferral safe (docs/decisions/0032), each condition with an arena in which it is missed."""

from __future__ import annotations

from tests.model.arenas import ABORTS, DELETE_A, PUT_A, PUT_B, T_PUT_A, Arena, script
from tests.model.traps import CALM, COMPACT_ALL, SYNC_ALL, Prefix, Trap, put, without

FIRST = 1
"""The first of the records that may be left where they are."""

CLEAN_VALUE: Prefix = (*put(PUT_A), SYNC_ALL, COMPACT_ALL)
"""A value in everybody's clean section, of which no leader has heard yet."""

TWO_VALUES: Prefix = (*CLEAN_VALUE, *put(PUT_A), SYNC_ALL, ("compact", 0, 2, FIRST))
"""The leader's clean section has two values of one key."""

TOMBSTONE_NOT_SEEN: Prefix = (
    *(*put(PUT_A), SYNC_ALL, ("compact", 1, 1), ("shrink", 1), *put(DELETE_A, PUT_A), ("sync", 2)),
    *(("compact", 0, 3), ("sync", 1), ("compact", 1, 3, FIRST), ("compact", 2, 2)),
    *(("sync", 1), ("sync", 2), ("sync", 1)),
)
"""Broker 1 was away while the key was deleted and written again, and has copied what its leader made of that: the new
value alone. It leaves the first value where it is. Broker 2 still has the tombstone, which is below MTRO."""

HALF_OF_EACH: Prefix = (*TOMBSTONE_NOT_SEEN, ("elect", 1), ("lose_disk", 0), ("fetch", 0, 1), ("elect", 2))
"""A new replica has copied the first value from broker 1, and goes on at broker 2, which leads now."""

FORCED = Arena(
    script(PUT_A, DELETE_A, PUT_A),
    epochs_max=4,
    incarnations_max=3,
    generations_max=1,
    coarse=True,
    defers=True,
    prefix=(*HALF_OF_EACH, ("fetch", 0, 1), ("crash", 2), ("force", 0)),
    without=("shrink",),
)
"""It is forced to lead when it has copied the tombstone, and not the value that comes after it."""

DEFERRAL = {
    "what a tombstone deletes is left, too": Trap(
        without("deleted_goes"),
        Arena(script(PUT_A, DELETE_A), **CALM, coarse=True, defers=True, prefix=CLEAN_VALUE),
        "deleted is back",
    ),
    "what an abort deletes is left, and an orphan freezes the partition": Trap(
        without("aborted_goes"),
        Arena(
            script(T_PUT_A, ABORTS, PUT_B),
            epochs_max=1,
            crashes=False,
            lost_disks=True,
            incarnations_max=2,
            partial_fetches=True,
            coarse=True,
            defers=True,
            prefix=(
                *(*put(T_PUT_A, ABORTS, PUT_B), SYNC_ALL, ("compact", 0, 3), ("compact", 1, 3, FIRST)),
                *(("compact", 2, 3), SYNC_ALL, ("elect", 1)),
            ),
        ),
        "frozen",
    ),
    "a pass removes one older record of a key, where there are two": Trap(
        without("all_older_go"),
        Arena(script(PUT_A, PUT_A, DELETE_A), **CALM, coarse=True, defers=True, prefix=TWO_VALUES),
        "deleted is back",
    ),
    "where records are left, tombstones do not go on": Trap(
        without("left_tombstones_go_on"),
        Arena(script(PUT_A, DELETE_A, PUT_B), **CALM, coarse=True, defers=True, prefix=CLEAN_VALUE),
        "never removed",
        at_rest=True,
    ),
    "who was forced to lead believes what it had compacted": Trap(
        without("forced_election_forgets_mcco"),
        FORCED._replace(prefix=(*FORCED.prefix, SYNC_ALL, ("compact", 1, 2), ("compact", 2, 2), SYNC_ALL)),
        "deleted is back",
    ),
    "who was forced to lead has others start at the MTRO of before": Trap(
        without("forced_election_forgets_mtro"), FORCED, "deleted is back"
    ),
}
