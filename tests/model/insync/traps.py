"""What each rule protects from: the rule to remove, and an arena in which something is then lost, or stuck.

The same arena with all rules on must be clean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.insync.arenas import Arena, Prefix
from tests.model.insync.rules import SEXTON, Rules


class Trap(NamedTuple):
    rules: Rules
    arena: Arena
    found: str = "rule 1"
    """The kind of violation. One that is not rule 1 shows when the partition is brought to rest."""


def without(*names: str) -> Rules:
    return SEXTON._replace(**dict.fromkeys(names, False))


LEFT: Prefix = (("leave", 0, 2), ("carry_out", 0), ("fetch", 2, 0, 0))
"""Broker 2 is not in sync, and has caught up with an empty log."""

WRITTEN: Prefix = (("append", 0), *(("fetch", follower, 0, 0) for follower in (1, 2, 1, 2)))
"""One record, on all brokers that follow, and the leader knows."""

ONE_LEADER: dict[str, Any] = {"epochs_max": 0, "without": ("fence",)}

ONE_STOPS: dict[str, Any] = {
    **{"epochs_max": 1, "processes_max": 2, "lazy_flush": True, "stops": True},
    "prefix": (("leave", 0, 2), ("carry_out", 0), *WRITTEN[:2], WRITTEN[3]),
}

TRAPS = {
    "a replica that is to join does not count before it has joined": Trap(
        without("joining_is_counted"), Arena(**ONE_LEADER, prefix=LEFT)
    ),
    "a replica that is to leave counts no more before it has left": Trap(
        without("leaving_is_counted"), Arena(**ONE_LEADER)
    ),
    "a join was carried out, its answer lost, the next attempt refused because of another partition's broker": Trap(
        without("unknown_outcome_counts"), Arena(**ONE_LEADER, poisoned=True, prefix=LEFT)
    ),
    "a join was carried out, its answer lost, and the follower's process is another one by now": Trap(
        without("unknown_outcome_counts"), Arena(**ONE_LEADER, processes_max=2, prefix=LEFT)
    ),
    "a join is carried out after a later attempt was refused": Trap(
        without("unknown_outcome_counts"),
        Arena(
            epochs_max=0,
            requests_max=2,
            poisoned=True,
            without=("fence", "carry_out_unheard"),
            prefix=(*LEFT, ("join", 0, 2), ("give_up", 0), ("ask_again", 0)),
        ),
    ),
    "a change that names a process that is gone is never given up": Trap(
        without("unknown_outcome_is_withdrawn"), Arena(**ONE_LEADER, processes_max=2, prefix=LEFT), "left out"
    ),
    "a replica is removed and added again between two polls of its leader": Trap(
        without("progress_of_incarnation"),
        Arena(**ONE_LEADER, incarnations_max=2, targets=((0, 1), (0, 1, 2)), prefix=WRITTEN),
    ),
    "a join that is asked for again names a process that has lost its unflushed records": Trap(
        without("join_names_who_caught_up"),
        Arena(epochs_max=0, processes_max=2, lazy_flush=True, without=("fence", "flush"), prefix=(*LEFT[:2], *WRITTEN)),
    ),
    "a join that is asked for again names a process that was started with an old disk": Trap(
        without("join_names_who_caught_up"),
        Arena(
            **ONE_LEADER,
            processes_max=3,
            images=True,
            prefix=(
                *(*LEFT[:2], ("take_image", 2), ("crash", 2), ("register", 2), ("reconcile", 2), ("poll", 0)),
                *WRITTEN,
            ),
        ),
    ),
    "a join names its follower by number alone": Trap(
        without("join_names_process"),
        Arena(epochs_max=0, processes_max=2, lazy_flush=True, without=("fence", "flush"), prefix=(*LEFT[:2], *WRITTEN)),
    ),
    "a fetch of a log that is to be wiped counts for the log that takes its place": Trap(
        without("fetch_names_log"), Arena(**ONE_LEADER, incarnations_max=2, wipes=True, prefix=WRITTEN)
    ),
    "a replica that may have lost its last records stays in sync over a restart": Trap(
        without("uncertain_leaves"),
        Arena(epochs_max=0, processes_max=2, lazy_flush=True, without=("fence", "flush")),
    ),
    "a broker that stops hands over to one that has lost power": Trap(
        without("hands_over_to_the_living"), Arena(**ONE_STOPS, without=("fence", "flush", "leave"))
    ),
    "a broker that stops is fenced at once, and the controller leaves the place to one that has lost power": Trap(
        without("needed_is_not_fenced"), Arena(**ONE_STOPS, without=("flush", "leave"))
    ),
    "the metastore carries out what is based on an old row": Trap(
        without("partition_epoch_compared"), Arena(epochs_max=1, requests_max=2)
    ),
}
