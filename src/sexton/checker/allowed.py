"""What is allowed to happen: an anomaly that a model allows is listed, and does not make the verdict false.

`kafka` is what Kafka promises, as far as anybody knows: Jepsen's list, and what settings of the run take away. `jepsen`
gives the verdicts of Jepsen's own checker, for histories that come from there; anomalies that it does not know are
listed only. `strict` allows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from sexton.checker.anomalies import ANOMALIES, Weight
from sexton.checker.view import View
from sexton.history.op import Ext


class Model(StrEnum):
    KAFKA = "kafka"
    JEPSEN = "jepsen"
    STRICT = "strict"


JEPSEN_NUMBER_MAX: Final = 17

_INTERLEAVE: Final = "transactions' records interleave"
_WRITES: Final = frozenset(
    {"int-send-skip", "G0", "G0-realtime", "PL-1-cycle-exists", "strong-PL-1-cycle-exists"},
)
_REBALANCES: Final = frozenset({"poll-skip", "nonmonotonic-poll"})
_WITH_WRITES: Final = frozenset({"G1c", "G1c-realtime", "PL-2-cycle-exists", "strong-PL-2-cycle-exists"})
"""Of these, what needs no ww edge is `G1c-wr` as well."""
_UNCOMMITTED: Final = frozenset({"G1a", "precommitted-read", "G1c-wr", "G1c-wr-realtime", "aborted-in-table"})
_LOSSES: Final = frozenset(
    {"lost-write", "lost-record", "lost-key", "stale-value", "unseen", "acknowledged-nowhere", "group-skip"}
)
_TOLD_OFFSETS: Final = frozenset({"inconsistent-offsets", "nonmonotonic-send"})
"""What lost records leave behind: their producers were told offsets at which there are others by now."""

_STALE: Final = "G-single-realtime"
_RETRIES: Final = frozenset({"duplicate", "nonmonotonic-send"})


def allowed(view: View, model: Model, ignore: frozenset[str] = frozenset()) -> Mapping[str, str]:
    """By anomaly: why."""
    reasons = dict.fromkeys(sorted(ignore), "ignored on request")
    if model is Model.STRICT:
        return reasons
    reasons |= dict.fromkeys(_WRITES, _INTERLEAVE)
    if view.run.uses_subscribe:
        reasons |= dict.fromkeys(_REBALANCES, "rebalances move positions")
    if view.options.ww_deps:
        reasons |= dict.fromkeys(_WITH_WRITES, _INTERLEAVE)
    if model is Model.JEPSEN:
        return reasons | {
            name: "unknown to Jepsen" for name, anomaly in ANOMALIES.items() if anomaly.number > JEPSEN_NUMBER_MAX
        }
    if not view.run.is_read_committed:
        reasons |= dict.fromkeys(_UNCOMMITTED, "consumers read uncommitted records")
    if view.nemesis:
        reasons[_STALE] = "a leader that was deposed, and has not heard of it, answers readers as well"
    if not view.run.has_acks_all:
        reasons[_STALE] = "producers do not wait for all replicas, and readers are given what all have"
    if not view.run.has_acks_all and view.nemesis:
        reasons |= dict.fromkeys(_LOSSES, "producers do not wait for all replicas, and brokers failed")
        reasons |= dict.fromkeys(_TOLD_OFFSETS, "of records that were lost so, others have the offsets")
    if is_excused(view):
        reasons |= dict.fromkeys(ANOMALIES, "files were damaged, and nobody promises anything then")
    if not view.run.is_idempotent:
        reasons |= dict.fromkeys(_RETRIES, "producers that are not idempotent sent records again")
    return reasons


def is_excused(view: View) -> bool:
    """Whether files were damaged of a system that does not say what it makes of it."""
    return not view.run.is_damage_judged and any(op.ext.get(Ext.DAMAGED) for op in view.nemesis)


def weight(name: str, model: Model) -> Weight:
    """In Jepsen, what is not seen or not judged is as bad as what is wrong."""
    own = ANOMALIES[name].weight
    return Weight.WRONG if model is Model.JEPSEN and own is Weight.UNKNOWN else own
