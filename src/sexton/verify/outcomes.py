"""What a client's error means for a history: certainly not done (FAIL), or nobody knows (INFO).

FAIL is said only where a broker that has refused a request has certainly not carried it out, so everything that is not
in the table is INFO: timeouts, disconnects, errors of the client's own, and NOT_LEADER_OR_FOLLOWER, too, for the broker
that says so may have written the records before it lost the partition (KAFKA-13574).

A transaction has one more rule: as long as nobody has tried to commit it, it is not committed. `session` knows that.
"""

from __future__ import annotations

from typing import Final

from sexton.verify.clients.base import Failure

REFUSALS: Final = frozenset(
    {
        "brokernotavailable",
        "clusterauthorization",
        "clusterauthorizationfailed",
        "commitfailed",
        "fencedinstanceid",
        "groupauthorization",
        "groupauthorizationfailed",
        "illegalgeneration",
        "invalidproducerepoch",
        "invalidreplicationfactor",
        "invalidtopic",
        "notcontroller",
        "outofordersequence",
        "outofordersequencenumber",
        "producerfenced",
        "rebalanceinprogress",
        "stalememberepoch",
        "topicauthorization",
        "topicauthorizationfailed",
        "topicexception",
        "transactionalidauthorization",
        "transactionalidauthorizationfailed",
        "unknownmemberid",
        "unknowntopicorpart",
        "unknowntopicorpartition",
    }
)
"""As `spelled` spells them. librdkafka shortens some; `topicexception` is its INVALID_TOPIC. `commitfailed` is what
clients make of a coordinator's answer to who is not, or not any more, a member."""

_ENDINGS: Final = ("exception", "error")


def spelled(name: str) -> str:
    """One spelling for what clients call NOT_LEADER_OR_FOLLOWER, NotLeaderOrFollowerException or
    NotLeaderOrFollowerError. The errors that librdkafka makes up itself begin with an underscore, and keep it."""
    if name.startswith("_"):
        return name
    plain = name.replace("_", "").lower()
    for ending in _ENDINGS:
        if plain.endswith(ending) and plain not in REFUSALS:
            return plain.removesuffix(ending)
    return plain


def is_refused(failure: Failure) -> bool:
    """Whether it certainly was not done."""
    return spelled(failure.name) in REFUSALS
