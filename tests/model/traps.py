"""What each rule protects from: the rule to remove, an arena in which it is missed, and what is found there.

Arenas are small, and some begin with the prefix of a known bad trace, because the way to the trap is long: random walks
and blind exploration alone miss the deep ones. The same arena with all rules on must be clean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.arenas import (
    ABORTS,
    COMMITS,
    DELETE_A,
    PUT_A,
    PUT_B,
    T_PUT_A,
    T_PUT_B,
    Arena,
    Write,
    script,
)
from tests.model.state import Action
from tests.model.switches import KAFKA, SEXTON, Rules

Prefix = tuple[Action, ...]


class Trap(NamedTuple):
    rules: Rules
    arena: Arena
    found: str
    """The kind of violation."""
    by_definition: bool = False
    """Consumers see nothing of it: what is violated is what a word means, or a rule about values."""
    at_rest: bool = False
    """Nothing is wrong with any state; the partition cannot be brought to rest."""


def without(*names: str) -> Rules:
    return SEXTON._replace(**dict.fromkeys(names, False))


def put(*writes: Write) -> Prefix:
    return tuple(("append", *write) for write in writes)


def fetch(*brokers: int) -> Prefix:
    return tuple(("fetch", broker, 0) for broker in brokers)


SYNC_ALL: Action = ("sync_all",)
COMPACT_ALL: Action = ("compact_all",)
WAIT: Action = ("wait",)

CALM: dict[str, Any] = {"epochs_max": 0, "crashes": False}
"""Nothing fails but replication: replicas fall behind."""

IMAGE: Prefix = (*put(PUT_A), SYNC_ALL, ("take_image", 2), *put(DELETE_A), SYNC_ALL)
"""There is an image of broker 2's disk from before the tombstone."""

AHEAD: Prefix = (*put(PUT_A), SYNC_ALL, *put(PUT_A), *fetch(1, 2, 1, 2))
"""The leader and broker 2 know the high watermark 2, broker 1 knows 1."""

REMOVED_INDEPENDENTLY: Prefix = (
    *(*put(PUT_A), SYNC_ALL, ("shrink", 2), *put(DELETE_A), ("sync", 1)),
    *(("compact", 0, 2), WAIT, ("compact", 0, 2)),
)
"""While the topic is `independent`, the tombstone is gone from the leader, and broker 2 has only the value."""

SEEDS = {
    "a deleted key is back": Trap(KAFKA, Arena(script(PUT_A, DELETE_A), **CALM), "deleted is back"),
    "aborted data is served as committed": Trap(
        KAFKA,
        Arena(script(T_PUT_A, ABORTS, T_PUT_B, COMMITS), **CALM, coarse=True, prefix=(*put(T_PUT_A), SYNC_ALL)),
        "aborted visible",
    ),
    "committed data is hidden": Trap(
        KAFKA,
        Arena(
            script(T_PUT_A, COMMITS, PUT_A, T_PUT_B, ABORTS),
            **CALM,
            coarse=True,
            prefix=(*put(T_PUT_A), SYNC_ALL),
        ),
        "committed hidden",
    ),
    "read_committed is frozen": Trap(KAFKA, Arena(script(T_PUT_A, COMMITS, PUT_A), **CALM, coarse=True), "frozen"),
}
"""The four of seed 1, with coordination off."""

TRAPS = {
    "history derived from batches: a stale replica keeps a record that nobody acknowledged": Trap(
        without("history_copied_whole"),
        Arena(
            script(PUT_B, PUT_B, PUT_A, PUT_A), epochs_max=2, crashes=False, coarse=True, prefix=(*put(PUT_B), SYNC_ALL)
        ),
        "never committed",
    ),
    # That reports count by process would help here, too.
    "no incarnations: a replica wiped after its report is counted at the old report": Trap(
        without("incarnations", "reports_by_process"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            consumer=True,
            lost_disks=True,
            incarnations_max=2,
            coarse=True,
            prefix=(*put(PUT_A, DELETE_A), SYNC_ALL),
        ),
        "consumer misled",
    ),
    "not only empty logs start at MTRO: MCCO is raised over uncleaned data": Trap(
        without("only_empty_starts_at_removable"),
        Arena(script(PUT_A, DELETE_A), **CALM, membership=True, incarnations_max=2, coarse=True),
        "deleted is back",
    ),
    "old disk of an older incarnation, and no fence": Trap(
        without("other_incarnation_is_wiped", "fetch_fence"),
        Arena(script(PUT_A, DELETE_A), **CALM, membership=True, incarnations_max=3, coarse=True),
        "deleted is back",
    ),
    "no fence: an old disk image brings a deleted key back": Trap(
        without("fetch_fence"),
        Arena(script(PUT_A, DELETE_A), **CALM, images=True, incarnations_max=2, coarse=True, prefix=IMAGE),
        "deleted is back",
    ),
    "the planning high watermark is not durable: a crash hides what compaction kept": Trap(
        without("planned_high_watermark"), Arena(script(PUT_A, PUT_A), epochs_max=1, prefix=AHEAD), "value lost"
    ),
    "a follower's high watermark goes back at failover": Trap(
        without("high_watermark_never_back"),
        Arena(script(PUT_A, PUT_A), epochs_max=1, crashes=False, prefix=AHEAD),
        "value lost",
    ),
    "a horizon starts above MTRO: a slow consumer misses the tombstone": Trap(
        without("horizon_below_removable"),
        Arena(script(PUT_A, DELETE_A), **CALM, consumer=True, coarse=True),
        "consumer misled",
    ),
    "no generations: after an unclean election new records are already below MTRO": Trap(
        without("generations"),
        Arena(
            script(PUT_A, PUT_B, DELETE_A, DELETE_A, PUT_A, DELETE_A),
            epochs_max=1,
            crashes=False,
            generations_max=1,
            incarnations_max=2,
            coarse=True,
            without=("elect", "force"),
            prefix=(
                *(*put(PUT_A, PUT_B, DELETE_A, DELETE_A), SYNC_ALL, COMPACT_ALL, SYNC_ALL),
                *(("lose_disk", 2), ("fetch", 2, 1), ("crash", 0), ("force", 2)),
                *(*put(PUT_A), ("sync", 1), *put(DELETE_A)),
            ),
        ),
        "deleted is back",
    ),
    "a settled batch ends the producer's open transaction": Trap(
        without("settled_changes_nothing"),
        Arena(script(T_PUT_A, T_PUT_A, ABORTS), **CALM, every_bound=True, coarse=True, partial_fetches=True),
        "aborted visible",
    ),
    "a settled batch while a transaction is open is an error": Trap(
        without("settled_is_no_error"),
        Arena(script(T_PUT_A, T_PUT_B, COMMITS), **CALM, coarse=True, prefix=(*put(T_PUT_A), SYNC_ALL)),
        "left out",
        at_rest=True,
    ),
    "the last batch goes when it is empty: a new replica never reaches the end": Trap(
        without("last_batch_stays"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            lost_disks=True,
            incarnations_max=2,
            coarse=True,
            prefix=(*put(PUT_A, DELETE_A), SYNC_ALL, COMPACT_ALL, SYNC_ALL, COMPACT_ALL),
        ),
        "left out",
        at_rest=True,
    ),
    "records and aborted list from two states, index entries that go with the data": Trap(
        without("one_snapshot_per_fetch", "index_entry_leaves_with_marker"),
        Arena(script(T_PUT_A, ABORTS, PUT_B), **CALM, coarse=True),
        "aborted visible",
    ),
    "records and aborted list from two states, however late index entries go": Trap(
        without("one_snapshot_per_fetch"),
        Arena(
            script(T_PUT_A, ABORTS, PUT_B),
            **CALM,
            coarse=True,
            prefix=(*put(T_PUT_A, ABORTS, PUT_B), SYNC_ALL),
        ),
        "aborted visible",
    ),
    "a plan is committed on a log that has been compacted since": Trap(
        without("commit_names_inputs", "commit_judged"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            plans=True,
            coarse=True,
            prefix=(*put(PUT_A), SYNC_ALL, ("plan", 1, 1), *put(DELETE_A), SYNC_ALL, COMPACT_ALL, SYNC_ALL),
        ),
        "deleted is back",
    ),
    "a plan is committed on a log that retention has shortened": Trap(
        without("commit_names_inputs"),
        Arena(script(PUT_A, PUT_B), **CALM, plans=True, retention=True, coarse=True),
        "rule 2",
        by_definition=True,
    ),
    "what was removed without coordination is unknown to the fence": Trap(
        without("clean_offset_becomes_fence"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            incarnations_max=2,
            starts_independent=True,
            coarse=True,
            prefix=(*REMOVED_INDEPENDENTLY, ("leave_independent",)),
        ),
        "deleted is back",
    ),
}
"""Rows of the table in docs/rules.md, in its order."""

MORE = {
    "the weaker reading of MXFO: an orphan freezes the partition": Trap(
        without("strong_mxfo"),
        Arena(
            script(T_PUT_A, ABORTS, PUT_B),
            **CALM,
            membership=True,
            incarnations_max=2,
            partial_fetches=True,
            coarse=True,
            prefix=(*put(T_PUT_A, ABORTS), SYNC_ALL, *(("resolve", broker) for broker in range(3)), SYNC_ALL),
        ),
        "frozen",
    ),
    "silent replicas do not count": Trap(
        without("silent_replicas_count"),
        Arena(
            script(PUT_A, DELETE_A),
            epochs_max=1,
            crashes=False,
            consumer=True,
            prefix=(*put(PUT_A, DELETE_A), SYNC_ALL, ("elect", 1)),
        ),
        "consumer misled",
    ),
    "a replica joins before its high watermark has reached that of its copy": Trap(
        without("join_waits_for_planned"),
        Arena(script(PUT_A, PUT_A), epochs_max=1, lost_disks=True, incarnations_max=2, prefix=AHEAD),
        "value lost",
    ),
    "MTRO is acted on before it is durable": Trap(
        without("removable_durable_first"),
        Arena(
            script(PUT_A, DELETE_A),
            epochs_max=1,
            images=True,
            incarnations_max=2,
            coarse=True,
            prefix=(*IMAGE, COMPACT_ALL, ("report", 1), ("report", 2), ("compact", 0, 2), WAIT, ("compact", 0, 2)),
        ),
        "deleted is back",
    ),
    "MCCO is durable before the swap": Trap(
        without("swap_before_compacted"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            swap_crashes=True,
            consumer=True,
            coarse=True,
            prefix=(*put(PUT_A, DELETE_A), SYNC_ALL),
        ),
        "consumer misled",
    ),
    "records are taken without the fence of their leader": Trap(
        without("told_before_records"),
        Arena(
            script(PUT_A, DELETE_A),
            epochs_max=1,
            crashes=False,
            lost_disks=True,
            incarnations_max=2,
            starts_independent=True,
            coarse=True,
            prefix=(*REMOVED_INDEPENDENTLY, ("lose_disk", 1), ("sync", 1), ("leave_independent",)),
        ),
        "deleted is back",
    ),
    "a history is taken over before the log start that it begins with": Trap(
        without("start_before_history"),
        Arena(
            script(PUT_A, PUT_B),
            epochs_max=1,
            crashes=False,
            retention=True,
            coarse=True,
            partial_fetches=True,
            prefix=(*put(PUT_A, PUT_B), SYNC_ALL),
        ),
        "rule 7",
        by_definition=True,
    ),
    "a disk that went back in time, but not before MTRO, passes the fence": Trap(
        without("fence_asks_for_progress"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            images=True,
            consumer=True,
            incarnations_max=2,
            coarse=True,
            prefix=(*put(PUT_A, DELETE_A), SYNC_ALL, ("take_image", 2), COMPACT_ALL, SYNC_ALL),
        ),
        "consumer misled",
    ),
    "a disk that went back in time is counted at what it had reported": Trap(
        without("reports_by_process"),
        Arena(
            script(PUT_A, DELETE_A),
            **CALM,
            images=True,
            consumer=True,
            incarnations_max=2,
            coarse=True,
            without=("take_image",),
            prefix=(
                *(*put(PUT_A, DELETE_A), SYNC_ALL, ("take_image", 2), ("compact", 2, 2), ("sync", 2)),
                *(("shrink", 2), ("restore_image", 2), ("sync", 2)),
            ),
        ),
        "consumer misled",
    ),
}
"""Rules that are stated elsewhere, and three that the model asked for."""
