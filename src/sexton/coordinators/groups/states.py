"""Every state transition of a group or a member, in two tables.

A classic group moves as its members join and its leader assigns:

    Empty ──> PreparingRebalance ──> CompletingRebalance ──> Stable
      ^             │    ^  ^                 │                 │
      └─────────────┘    │  └─────────────────┘                 │
                         └──────────────────────────────────────┘      (and from everywhere to Dead)

A consumer group (KIP-848) has no state of its own: it follows from its epochs and its members
(`ConsumerGroup.state`). Its *members* have states on the way to their target assignment: they revoke partitions before
others get them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sexton.coordinators.groups.records import MemberState


class IllegalTransitionError(Exception):
    """A bug: the table does not have this transition. Nothing was changed."""


class ClassicState(StrEnum):
    EMPTY = "Empty"
    """The group has no members; offsets may be kept until they expire."""
    PREPARING = "PreparingRebalance"
    """Waiting for members to join. JoinGroup requests wait for their responses."""
    COMPLETING = "CompletingRebalance"
    """Waiting for the leader's assignment. SyncGroup requests wait for their responses."""
    STABLE = "Stable"
    DEAD = "Dead"
    """The group was removed from this coordinator."""


class ConsumerState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


CLASSIC_TRANSITIONS: Mapping[ClassicState, frozenset[ClassicState]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING, ClassicState.DEAD}),
    ClassicState.PREPARING: frozenset({ClassicState.COMPLETING, ClassicState.EMPTY, ClassicState.DEAD}),
    ClassicState.COMPLETING: frozenset({ClassicState.STABLE, ClassicState.PREPARING, ClassicState.DEAD}),
    ClassicState.STABLE: frozenset({ClassicState.PREPARING, ClassicState.DEAD}),
    ClassicState.DEAD: frozenset(),
}

_ANY_MEMBER_STATE = frozenset({MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS})

MEMBER_TRANSITIONS: Mapping[MemberState, frozenset[MemberState]] = {
    MemberState.STABLE: _ANY_MEMBER_STATE,
    MemberState.UNREVOKED_PARTITIONS: _ANY_MEMBER_STATE,
    MemberState.UNRELEASED_PARTITIONS: _ANY_MEMBER_STATE,
    # No member moves into UNKNOWN; a member found in it starts again without an assignment.
    MemberState.UNKNOWN: _ANY_MEMBER_STATE,
}


def check_classic(group: str, before: ClassicState, after: ClassicState) -> None:
    if after not in CLASSIC_TRANSITIONS[before]:
        raise IllegalTransitionError(f"group {group} cannot go from {before} to {after}")


def check_member(member_id: str, before: MemberState, after: MemberState) -> None:
    if after not in MEMBER_TRANSITIONS[before]:
        raise IllegalTransitionError(f"member {member_id} cannot go from {before.name} to {after.name}")
