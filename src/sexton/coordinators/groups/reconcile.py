"""One member's step from what it has towards what it should have (KIP-848), with partitions revoked before they are
given away.

A member is told to let go of what is not in its target, and keeps its epoch until it has; then it moves to the
target's epoch and gets those of its target that nobody else holds. What others still hold it gets later, when they
have let go. A partition counts as held from the moment it is assigned until its owner has confirmed that it was
revoked, has left, or was fenced: this is what keeps two members from reading one partition.

Deviation from Kafka, on the safe side: a heartbeat that names fewer partitions than the member was given does not free
the others before the member was told that they are no longer its own. It may be about to start reading them. Kafka
frees them at once, and so do we only when the member is joining: then it reads nothing but what it says.

Clients say what they own when they join, after a request that failed, and when they have taken on another assignment;
never otherwise. After a failed request nobody can tell from what they say whether they have not heard of a partition
yet, are busy taking it on (and will read it, whatever they are told meanwhile), or have let go of it. One that has
not heard of it must not be told to let go either: it would find nothing to do, and never say so. So whoever does not
name all that it holds hears all of it again (`held_again`), and goes on from there like everybody else.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from sexton.coordinators.groups.consumer import ConsumerMember
from sexton.coordinators.groups.records import MemberState, Partitions
from sexton.coordinators.groups.states import check_member
from sexton.protocol.errors import ErrorCode, KafkaError

EMPTY: frozenset[int] = frozenset()


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[uuid.UUID, int], bool],
    is_joining: bool = False,
) -> ConsumerMember:
    """`owned` is what the member says it has; None if it did not say. Returns the member unchanged if it must wait."""
    owned_now = owned if is_joining else None
    match member.state:
        case MemberState.STABLE:
            if member.epoch == target_epoch:
                return member
            step = _step(member, member.epoch, target_epoch, target, owned_now, is_held)
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns_any(owned, member.revoking):
                return member
            # It has let go: it is past the epoch for which it had to, which may not be the newest one.
            step = _step(member, member.epoch + 1, target_epoch, target, owned_now, is_held)
        case MemberState.UNRELEASED_PARTITIONS:
            step = _step(member, member.epoch, target_epoch, target, owned_now, is_held)
        case MemberState.UNKNOWN:
            check_state(member, owned)
            step = _step(member, target_epoch, target_epoch, target, owned, is_held)
    check_member(member.member_id, member.state, step.state)
    return step


def check_state(member: ConsumerMember, owned: Partitions | None) -> None:
    """Raises if nobody can tell what the member holds."""
    if member.state is MemberState.UNKNOWN and (owned is None or owned):
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            "The member is in a state of a later version: it must let go of everything and rejoin.",
        )


def _step(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[uuid.UUID, int], bool],
) -> ConsumerMember:
    kept: dict[uuid.UUID, frozenset[int]] = {}
    revoking: dict[uuid.UUID, frozenset[int]] = {}
    assigned: dict[uuid.UUID, frozenset[int]] = {}
    must_wait = False
    for topic_id in sorted(target.keys() | member.assigned.keys()):
        wanted = target.get(topic_id, EMPTY)
        had = member.assigned.get(topic_id, EMPTY)
        free = frozenset(number for number in wanted - had if not is_held(topic_id, number))
        must_wait = must_wait or len(free) < len(wanted - had)
        _put(kept, topic_id, had & wanted)
        _put(revoking, topic_id, had - wanted)
        _put(assigned, topic_id, (had & wanted) | free)
    if revoking and _owns_any(owned, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=revoking,
        )
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if must_wait else MemberState.STABLE,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking={},
    )


def _put(into: dict[uuid.UUID, frozenset[int]], topic_id: uuid.UUID, numbers: frozenset[int]) -> None:
    if numbers:
        into[topic_id] = numbers


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """A member that does not say what it owns may own anything."""
    if owned is None:
        return True
    return any(owned.get(topic_id, EMPTY) & numbers for topic_id, numbers in partitions.items())


def held_again(member: ConsumerMember, owned: Partitions | None) -> ConsumerMember | None:
    """Of a member whose last request failed: the member with all that it holds, to be told so; None if it knows."""
    held = {
        topic_id: member.assigned.get(topic_id, EMPTY) | member.revoking.get(topic_id, EMPTY)
        for topic_id in sorted(member.assigned.keys() | member.revoking.keys())
    }
    if member.state is MemberState.UNKNOWN or is_subset(held, owned or {}):
        return None
    if not member.revoking:
        return member
    check_member(member.member_id, member.state, MemberState.UNRELEASED_PARTITIONS)
    return replace(member, state=MemberState.UNRELEASED_PARTITIONS, assigned=held, revoking={})


def is_subset(owned: Partitions | None, assigned: Mapping[uuid.UUID, frozenset[int]]) -> bool:
    if owned is None:
        return False
    return all(numbers <= assigned.get(topic_id, EMPTY) for topic_id, numbers in owned.items())
