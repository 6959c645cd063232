"""Classic members and KIP-848 members in one group, so that an application can move from one protocol to the other, one
instance at a time.

The first KIP-848 member that joins a classic group of consumers turns it into a consumer group (upgrade). Members that
still use the classic protocol stay in it: the coordinator assigns, asks them to rejoin by a heartbeat error, and
returns their assignment in SyncGroup. When the last KIP-848 member leaves, the group becomes classic again (downgrade).
Which of these are allowed is `group.consumer.migration.policy`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.classic import ClassicGroup, ClassicMember
from sexton.coordinators.groups.classic_protocol import ClassicProtocol
from sexton.coordinators.groups.consumer import ConsumerGroup, ConsumerMember
from sexton.coordinators.groups.consumer_protocol import ConsumerProtocol
from sexton.coordinators.groups.core import Core
from sexton.coordinators.groups.messages import (
    NO_MEMBER_ID,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from sexton.coordinators.groups.reconcile import check_state
from sexton.coordinators.groups.states import ClassicState
from sexton.coordinators.groups.timers import Timer, TimerKind
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError


class Migration:
    def __init__(self, core: Core, classic: ClassicProtocol, consumer: ConsumerProtocol) -> None:
        self._core = core
        self._classic = classic
        self._consumer = consumer

    # Classic members of a consumer group

    def join(self, group: ConsumerGroup, request: JoinRequest, token: int) -> None:
        core = self._core
        is_unknown = request.member_id == NO_MEMBER_ID
        self._consumer.check_room(group, request.member_id)
        if not group.supports_classic(request.protocol_type, request.protocols):
            raise KafkaError(ErrorCode.inconsistent_group_protocol, "No protocol that all classic members speak.")
        try:
            subscription = embedded.read_subscription(request.protocols[0][1])
        except embedded.MalformedProtocolError as error:
            raise KafkaError(
                ErrorCode.inconsistent_group_protocol, f"Not a consumer's subscription: {error}"
            ) from error
        member_id = core.new_consumer_member_id() if is_unknown else request.member_id
        if request.instance_id is None and is_unknown and request.requires_member_id:
            core.answer(token, JoinAnswer(ErrorCode.member_id_required, member_id))
            return
        owned = self._to_ids(subscription.owned)
        known = (
            group.members.get(member_id) if request.instance_id is None else group.static_member(request.instance_id)
        )
        if known is not None:
            check_state(known, owned)
        before, replaced = self._find_member(group, request, member_id)
        member = replace(
            before,
            instance_id=request.instance_id,
            rack_id=subscription.rack_id or before.rack_id,
            client=request.client,
            topics=tuple(sorted(set(subscription.topics))),
            regex=None,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            classic=r.ClassicProtocols(request.session_timeout_ms, request.protocols),
        )
        self._consumer.update_member(group, before, member)
        member = self._consumer.step(group, member_id, owned, is_joining=True)
        answer = JoinAnswer(
            error=ErrorCode.none,
            member_id=member_id,
            generation=member.epoch,
            protocol_type=embedded.PROTOCOL_TYPE,
            protocol_name=request.protocols[0][0],
            leader=NO_MEMBER_ID,
        )
        core.answer(token, answer)
        core.timers.cancel(Timer(TimerKind.CONSUMER_JOIN, group.group, member_id))
        if replaced is not None and replaced.classic is None and self.can_downgrade(group):
            self.downgrade(group, must_rebalance=False)
            return
        self._consumer.keep_session(group, member)
        core.timers.set(
            Timer(TimerKind.CONSUMER_SYNC, group.group, member_id), core.now.monotonic_ms + member.rebalance_timeout_ms
        )

    def _find_member(
        self, group: ConsumerGroup, request: JoinRequest, member_id: str
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Returns the member as it was, and the static member that it has just replaced."""
        if request.instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id), None
        if request.member_id != NO_MEMBER_ID:
            return group.checked_static_member(request.instance_id, member_id), None
        static = group.static_member(request.instance_id)
        if static is None:
            return ConsumerMember(member_id), None
        return self._consumer.replace_static(group, static, member_id), static

    def sync(self, group: ConsumerGroup, request: SyncRequest, token: int) -> None:
        core = self._core
        member, classic = _classic_member(group, request.member_id, request.instance_id)
        _check_generation(member, request.generation)
        if request.protocol_type not in (None, embedded.PROTOCOL_TYPE) or request.protocol_name not in (
            None,
            classic.protocols[0][0],
        ):
            raise KafkaError(ErrorCode.inconsistent_group_protocol, f"The member speaks {classic.protocols[0][0]}.")
        if group.epoch > member.epoch and member.state is not r.MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, member)
            raise KafkaError(ErrorCode.rebalance_in_progress, "The member is to join again.")
        core.timers.cancel(Timer(TimerKind.CONSUMER_SYNC, group.group, member.member_id))
        self._consumer.keep_session(group, member)
        assignment = self._to_bytes(member.assigned, classic.protocols[0][1])
        core.answer(token, SyncAnswer(ErrorCode.none, request.protocol_type, request.protocol_name, assignment))

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> None:
        member, _ = _classic_member(group, request.member_id, request.instance_id)
        _check_generation(member, request.generation)
        self._consumer.keep_session(group, member)
        must_revoke = member.state is r.MemberState.UNREVOKED_PARTITIONS
        can_get_more = member.state is r.MemberState.UNRELEASED_PARTITIONS and not self._is_waiting(group, member)
        if member.epoch < group.epoch or must_revoke or can_get_more:
            self._expect_join(group, member)
            raise KafkaError(ErrorCode.rebalance_in_progress, "The member is to join again.")

    def _is_waiting(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether another member still holds any partition that this member lacks, as in Kafka."""
        missing = [
            (topic_id, number)
            for topic_id, numbers in group.target.get(member.member_id, {}).items()
            for number in sorted(numbers - member.assigned.get(topic_id, frozenset()))
        ]
        return any(group.is_held(*partition) for partition in missing)

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        core = self._core
        timer = Timer(TimerKind.CONSUMER_JOIN, group.group, member.member_id)
        if timer not in core.timers:
            core.timers.set(timer, core.now.monotonic_ms + member.rebalance_timeout_ms)

    def leave(self, group: ConsumerGroup, members: Sequence[LeavingMember]) -> tuple[LeavingMember, ...]:
        results: list[LeavingMember] = []
        leaving: dict[str, ConsumerMember] = {}
        for one in members:
            try:
                if one.instance_id is not None and one.member_id == NO_MEMBER_ID:
                    static = group.static_member(one.instance_id)
                    member_id = static.member_id if static is not None else NO_MEMBER_ID
                else:
                    member_id = one.member_id
                member, _ = _classic_member(group, member_id, one.instance_id)
                if member.member_id in leaving:
                    raise KafkaError(ErrorCode.unknown_member_id, "It has just left.")
                leaving[member.member_id] = member
                results.append(LeavingMember(member.member_id, one.instance_id))
            except KafkaError as error:
                results.append(LeavingMember(one.member_id, one.instance_id, error.code))
        if leaving:
            self._consumer.remove_members(group, list(leaving.values()))
        return tuple(results)

    # From one kind of group to the other

    def can_upgrade(self, group: ClassicGroup) -> bool:
        settings = self._core.settings
        return (
            settings.group_consumer_migration_policy in ("bidirectional", "upgrade")
            and group.uses_consumer_protocol
            and len(group.members) <= settings.group_consumer_max_size
        )

    def upgrade(self, group: ClassicGroup) -> ConsumerGroup:
        """Members that wait in the classic rebalance are asked to join again: there is a new one now."""
        core = self._core
        name = group.group
        protocol = group.protocol or (group.select_protocol() if group.members else "")
        try:
            members = self._as_consumer_members(group, protocol)
        except embedded.MalformedProtocolError as error:
            raise KafkaError(
                ErrorCode.group_id_not_found,
                f"Cannot upgrade the classic group {name}: its consumer protocol is malformed ({error}).",
            ) from error
        for old in group.members.values():
            core.answer(group.take_join(old), JoinAnswer(ErrorCode.rebalance_in_progress, old.member_id))
            token, old.sync_token = old.sync_token, None
            core.answer(token, SyncAnswer(ErrorCode.rebalance_in_progress))
        for member_id in [*group.members, *group.pending_members]:
            core.timers.cancel(Timer(TimerKind.CLASSIC_SESSION, name, member_id))
        core.timers.cancel(Timer(TimerKind.CLASSIC_JOIN, name))
        core.timers.cancel(Timer(TimerKind.CLASSIC_SYNC, name))
        core.write(r.ClassicGroupKey(name), None)
        for member in members:
            core.write(r.MemberKey(name, member.member_id), member.to_value())
        core.write(r.EpochKey(name), r.EpochValue(group.generation))
        for member in members:
            core.write(r.TargetKey(name, member.member_id), r.TargetValue(member.assigned))
        core.write(r.TargetEpochKey(name), r.TargetEpochValue(group.generation))
        for member in members:
            value = r.CurrentValue(member.epoch, member.previous_epoch, member.state, member.assigned, {})
            core.write(r.CurrentKey(name, member.member_id), value)
        upgraded = core.groups[name]
        assert isinstance(upgraded, ConsumerGroup)
        for member in members:
            self._consumer.keep_session(upgraded, member)
        return upgraded

    def _as_consumer_members(self, group: ClassicGroup, protocol: str) -> list[ConsumerMember]:
        subscriptions = {
            old.member_id: embedded.read_subscription(old.metadata(protocol)) for old in group.members.values()
        }
        held = self._held(group, subscriptions)
        members: list[ConsumerMember] = []
        for old in group.members.values():
            subscription = subscriptions[old.member_id]
            members.append(
                ConsumerMember(
                    old.member_id,
                    old.instance_id,
                    subscription.rack_id,
                    old.client,
                    tuple(sorted(set(subscription.topics))),
                    rebalance_timeout_ms=old.rebalance_timeout_ms,
                    classic=r.ClassicProtocols(old.session_timeout_ms, old.protocols),
                    epoch=group.generation,
                    previous_epoch=group.generation,
                    assigned=held[old.member_id],
                )
            )
        return members

    def _held(
        self, group: ClassicGroup, subscriptions: Mapping[str, embedded.Subscription]
    ) -> dict[str, dict[uuid.UUID, frozenset[int]]]:
        """Returns what each member may be reading: its assignment, and what it owned when it last joined.

        Kafka looks at the assignments alone, which is less safe. A rebalance that was restarted has none, and a
        cooperative member that is revoking a partition is no longer assigned it, but still reads it.
        """
        held: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in group.members}
        taken: dict[uuid.UUID, frozenset[int]] = {}

        def hold(member_id: str, partitions: Mapping[str, Sequence[int]]) -> None:
            for topic_id, numbers in self._to_ids(partitions).items():
                # A client-side assignor may have given a partition to two members; here it has one holder.
                mine = numbers - taken.get(topic_id, frozenset())
                if mine:
                    held[member_id][topic_id] = held[member_id].get(topic_id, frozenset()) | mine
                    taken[topic_id] = taken.get(topic_id, frozenset()) | mine

        for old in group.members.values():
            hold(old.member_id, embedded.read_assignment(old.assignment))
        # If two members say that they owned a partition, the one that joined later is right.
        for member_id in sorted(subscriptions, key=lambda one: -subscriptions[one].generation):
            hold(member_id, subscriptions[member_id].owned)
        return held

    def can_downgrade(self, group: ConsumerGroup) -> bool:
        settings = self._core.settings
        return (
            0 < len(group.members) <= settings.group_max_size
            and group.classic_members_count() == len(group.members)
            and settings.group_consumer_migration_policy in ("bidirectional", "downgrade")
            and group.is_small_enough_for_classic
        )

    def downgrade(self, group: ConsumerGroup, must_rebalance: bool) -> None:
        """Makes a group whose members all use the classic protocol a classic group. `must_rebalance` means that a
        member left, and its partitions are free. The group also rebalances if a member has not reached its target
        assignment: a classic group has no other way to send it.

        Unlike in Kafka, it is recorded that the group must rebalance. In Kafka that is lost with the coordinator, and
        the free partitions then have no reader.
        """
        core = self._core
        is_reconciled = all(member.is_reconciled_to(group.epoch) for member in group.members.values())
        classic = ClassicGroup(group.group, ClassicState.STABLE, core.now.wall_ms, group.epoch)
        for member in group.members.values():
            assert member.classic is not None, "only classic members are left"
            classic.add(
                ClassicMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client=member.client,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    protocols=member.classic.protocols,
                ),
                embedded.PROTOCOL_TYPE,
            )
        classic.protocol = classic.select_protocol()
        classic.refresh_subscribed_topics()
        for old in classic.members.values():
            target = group.target.get(old.member_id, {})
            old.assignment = self._to_bytes(target, old.metadata(classic.protocol))
        classic.must_rebalance = must_rebalance or not is_reconciled
        self._consumer.write_tombstones(group)
        core.groups[group.group] = classic
        core.write_classic(classic)
        self._classic.on_loaded(classic)

    # Topics are names in the classic protocol and ids in KIP-848

    def _to_ids(self, partitions: Mapping[str, Sequence[int]]) -> dict[uuid.UUID, frozenset[int]]:
        found = {self._core.topics.topic_id(name): frozenset(numbers) for name, numbers in partitions.items()}
        return {topic_id: numbers for topic_id, numbers in found.items() if topic_id is not None and numbers}

    def _to_bytes(self, partitions: r.Partitions, subscription: bytes) -> bytes:
        """Encodes the assignment in the version of the consumer protocol that the member itself used."""
        version = embedded.read_subscription(subscription).version
        found = {self._core.topics.topic_name(topic_id): sorted(numbers) for topic_id, numbers in partitions.items()}
        named = {name: numbers for name, numbers in found.items() if name is not None}
        return embedded.write_assignment(named, version)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, r.ClassicProtocols]:
    member = group.member(member_id) if instance_id is None else group.checked_static_member(instance_id, member_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
    return member, member.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        raise KafkaError(ErrorCode.illegal_generation, f"The member is at epoch {member.epoch}.")
