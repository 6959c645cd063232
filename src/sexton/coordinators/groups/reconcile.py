"""One member's step from its current towards its target assignment (KIP-848), with partitions revoked before they are
assigned to others.

A member is asked to revoke partitions that are not in its target, and keeps its epoch until it has; then it moves to
the target's epoch and gets those of its target that no other member holds. The others it gets later, when their holders
have revoked them. A partition counts as held from the moment it is assigned until its holder has confirmed the
revocation, has left, or was fenced: this is what keeps two members from reading one partition.

Deviation from Kafka, on the safe side: a heartbeat that names fewer partitions than the member was assigned does not
free the others before the member was asked to revoke them. It may be about to start reading them. Kafka frees them at
once, also when the member joins again under its id (it was fenced), which may be a late request; here that happens only
when another process joins for it (a static member): then it reads nothing but what it names.

Clients name their partitions when they join, after a request that failed, and when they have taken on another
assignment; never otherwise. After a failed request it cannot be known from that whether they have not received a
partition yet, are busy taking it on (and will read it, whatever they receive meanwhile), or have revoked it. A member
that has not received it must not be asked to revoke it either: it would find nothing to do, and never confirm. So a
member that does not name all partitions that it holds gets all of them again (`held_again`), and goes on from there
like any other.

That a request failed is known from the next one's being full: Java's client and librdkafka send all fields only then,
franz-go always does when it names partitions. Or from its having the epoch before, as of librdkafka, which confirms
again and again what it has until it is answered. A partition that a member had named before, was asked to revoke, and
does not name any more, it has revoked. (A request that was sent before and is carried out after others, over a
connection that its client gave up, can still be taken for that. So it is in Kafka, for every request.)

Nor is a member asked to let go of just that which it has been given since it last named what it has. It may not have
heard of it: after a request that timed out librdkafka goes on as if it had been answered. Or it has not begun to take
it on, for which librdkafka looks up topic names first, and drops what it was given for what comes meanwhile. What it
has is then all that it is told, so it would never confirm. It is told again what it was given, until it names that.

Known: after a failover it is not known what a member has named last. If it is then to let go of just what it has not
heard of, or not begun to take on, it never confirms; it is fenced after its rebalance timeout, and joins again. So it
is in Kafka, without a failover too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from sexton.coordinators.groups.consumer import ConsumerMember
from sexton.coordinators.groups.records import MemberState, Partitions
from sexton.coordinators.groups.states import check_member
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import PartitionId

EMPTY: frozenset[int] = frozenset()


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[uuid.UUID, int], bool],
    is_joining: bool = False,
) -> ConsumerMember:
    """`owned` is what the member says it owns; None if it did not say. Returns the member unchanged if it must wait."""
    owned_now = owned if is_joining else None
    match member.state:
        case MemberState.STABLE:
            if member.epoch == target_epoch:
                return member
            step = _step(member, member.epoch, target_epoch, target, owned_now, is_held)
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns_any(owned, member.revoking):
                return member
            # It has revoked: it moves past the epoch for which it had to, which may not be the newest one.
            step = _step(member, member.epoch + 1, target_epoch, target, owned_now, is_held)
        case MemberState.UNRELEASED_PARTITIONS:
            step = _step(member, member.epoch, target_epoch, target, owned_now, is_held)
        case MemberState.UNKNOWN:
            check_state(member, owned)
            step = _step(member, target_epoch, target_epoch, target, owned, is_held)
    check_member(member.member_id, member.state, step.state)
    return step


def check_state(member: ConsumerMember, owned: Partitions | None) -> None:
    """Raises if it cannot be known what the member holds."""
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


def held_again(member: ConsumerMember, owned: Partitions, named: Set[PartitionId]) -> ConsumerMember | None:
    """For a full heartbeat, perhaps sent after a failed request. `named` are partitions that it is known to have
    received. Returns the member with all partitions that it holds, to be sent to it again; None if it names all of
    them, but for those that it has revoked."""
    missing = named_of(member, owned) ^ frozenset(member.held())
    unrevoked = {(topic_id, number) for topic_id, numbers in member.assigned.items() for number in numbers}
    if member.state is MemberState.UNKNOWN or missing <= named - unrevoked:
        return None
    if not member.revoking:
        return member
    check_member(member.member_id, member.state, MemberState.UNRELEASED_PARTITIONS)
    held = {
        topic_id: member.assigned.get(topic_id, EMPTY) | member.revoking.get(topic_id, EMPTY)
        for topic_id in sorted(member.assigned.keys() | member.revoking.keys())
    }
    return replace(member, state=MemberState.UNRELEASED_PARTITIONS, assigned=held, revoking={})


def named_of(member: ConsumerMember, owned: Partitions) -> frozenset[PartitionId]:
    """The partitions that the member holds, and says that it owns."""
    return frozenset((topic_id, number) for topic_id, number in member.held() if number in owned.get(topic_id, EMPTY))


def is_subset(owned: Partitions | None, assigned: Mapping[uuid.UUID, frozenset[int]]) -> bool:
    if owned is None:
        return False
    return all(numbers <= assigned.get(topic_id, EMPTY) for topic_id, numbers in owned.items())


def has_taken(member: ConsumerMember, owned: Partitions | None) -> bool:
    """Whether the member says that it owns what it is assigned, no less and no more."""
    return owned is not None and is_subset(owned, member.assigned) and is_subset(member.assigned, owned)
