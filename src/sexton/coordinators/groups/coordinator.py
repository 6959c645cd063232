"""The groups of one partition of `__consumer_offsets`, as a pure state machine.

It is built by replaying the partition's records, then driven by requests and by time. Each operation takes the current
time and returns its `Effects`: records to append, responses to send. It assumes that the records will be committed; if
they are not, the whole coordinator is discarded and loaded again, so that state that was never committed cannot be
seen. A request that is refused raises KafkaError and changes nothing that is recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from sexton.coordinators.bounds import DUE_COUNT_MAX, DUE_RECORDS_MAX
from sexton.coordinators.groups import classic, consumer, replay
from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.classic_protocol import ClassicProtocol
from sexton.coordinators.groups.consumer import ConsumerGroup, ConsumerMember
from sexton.coordinators.groups.consumer_protocol import MEMBER_TIMERS, ConsumerProtocol, check_request
from sexton.coordinators.groups.core import Core, Effects
from sexton.coordinators.groups.door import check_heartbeat, check_leave, check_sync, checked_join
from sexton.coordinators.groups.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_ID,
    ConsumerHeartbeatAnswer,
    ConsumerHeartbeatRequest,
    DescribedClassicGroup,
    DescribedClassicMember,
    DescribedConsumerGroup,
    DescribedConsumerMember,
    FetchedOffset,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    ListedGroup,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetResults,
    SyncAnswer,
    SyncRequest,
)
from sexton.coordinators.groups.migration import Migration
from sexton.coordinators.groups.offset_operations import OffsetOperations
from sexton.coordinators.groups.states import ClassicState
from sexton.coordinators.groups.timers import Timer, TimerKind
from sexton.coordinators.groups.topics import Topics
from sexton.coordinators.timers import Now
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings
from sexton.settings.group import GroupConfig
from sexton.types import ProducerIdAndEpoch

Group: TypeAlias = ClassicGroup | ConsumerGroup


class GroupCoordinator:
    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics,
        rng: random.Random,
        own_config_of: Callable[[str], GroupConfig | None] = lambda group: None,
    ) -> None:
        self.core = Core(settings, topics, rng, own_config_of)
        self._classic = ClassicProtocol(self.core)
        self._consumer = ConsumerProtocol(self.core, self._downgrade)
        self._migration = Migration(self.core, self._classic, self._consumer)
        self._offsets = OffsetOperations(self.core, self._classic, self._delete_group)

    def reconfigure(self, settings: GroupSettings) -> None:
        """Applies from the next operation on; deadlines that are set stay."""
        self.core.settings = settings

    @property
    def effects(self) -> Effects:
        """Effects of the last operation that could have any, also if it was refused."""
        return self.core.effects

    # Loading

    def replay(self, key: bytes, value: bytes | None, owner: ProducerIdAndEpoch | None = None) -> None:
        """Replays one record, in log order; `owner` is set if it is part of a transaction. Unknown kinds of records are
        skipped."""
        decoded = r.decode_key(key)
        if decoded is None:
            return
        made = None if value is None else r.decode_value(decoded, value)
        if owner is None:
            replay.apply(self.core, decoded, made)
        elif isinstance(decoded, r.OffsetKey) and isinstance(made, r.OffsetValue):
            replay.apply_pending(self.core, owner, decoded, made)

    def replay_end(self, producer_id: int, is_commit: bool) -> None:
        """Replays a transaction's marker."""
        replay.apply_end(self.core, producer_id, is_commit)

    def on_loaded(self, now: Now) -> Effects:
        """Called when the log has been read: every member gets a whole session timeout from now."""
        core = self.core
        core.begin(now)
        for group in list(core.groups.values()):
            if isinstance(group, ClassicGroup):
                self._classic.on_loaded(group)
            else:
                self._consumer.on_loaded(group)
        core.timers.set(Timer(TimerKind.OFFSETS), now.monotonic_ms + core.settings.offsets_retention_check_interval_ms)
        return core.effects

    # Time

    def next_deadline_ms(self) -> int | None:
        """On the monotonic clock."""
        return self.core.timers.next_deadline_ms()

    def tick(self, now: Now) -> Effects:
        """Handles expired timers, up to a limit: the rest is due at once, in another turn and another append."""
        core = self.core
        core.begin(now)
        late: dict[str, dict[str, ConsumerMember]] = {}
        for _ in range(DUE_COUNT_MAX):
            if len(core.effects.records) >= DUE_RECORDS_MAX:
                break
            timer = core.timers.pop_due(now.monotonic_ms)
            if timer is None:
                break
            if timer.kind is TimerKind.OFFSETS:
                more = self._offsets.expire()
                delay_ms = 0 if more else core.settings.offsets_retention_check_interval_ms
                core.timers.set(timer, now.monotonic_ms + delay_ms)
                if more:
                    break  # in pieces, each its own append
                continue
            group = core.groups.get(timer.group)
            if isinstance(group, ClassicGroup):
                self._classic.on_timer(group, timer)
            elif group is not None and timer.kind in MEMBER_TIMERS and timer.member_id in group.members:
                # Whatever the timer: the member sent no heartbeat, or has not revoked, rejoined or synced in time.
                late.setdefault(timer.group, {})[timer.member_id] = group.members[timer.member_id]
        for name, members in late.items():
            group = core.groups[name]
            assert isinstance(group, ConsumerGroup), "only its own members' timers change a group while time passes"
            self._consumer.remove_members(group, list(members.values()))
        return core.effects

    # The classic protocol

    def join(self, request: JoinRequest, token: int, now: Now) -> Effects:
        """The response is sent under `token`, perhaps much later."""
        core = self.core
        core.begin(now)
        try:
            request = checked_join(request, core.settings)
            group = core.groups.get(request.group)
            if isinstance(group, ConsumerGroup) and not group.is_empty:
                self._migration.join(group, request, token)
            else:
                self._classic.join(self._classic_group_to_join(group, request), request, token)
        except KafkaError as error:
            kept = NO_MEMBER_ID if error.code is ErrorCode.group_max_size_reached else request.member_id
            core.answer(token, JoinAnswer(error.code, kept))
        return core.effects

    def _classic_group_to_join(self, group: Group | None, request: JoinRequest) -> ClassicGroup:
        if isinstance(group, ClassicGroup):
            return group
        if request.member_id != NO_MEMBER_ID:
            raise KafkaError(ErrorCode.unknown_member_id, f"There is no group {request.group} with members.")
        if not request.protocol_type or not request.protocols:
            raise KafkaError(ErrorCode.inconsistent_group_protocol, "A member must speak some protocol.")
        if group is not None:
            self._consumer.write_tombstones(group)
        made = self.core.groups[request.group] = ClassicGroup(request.group)
        return made

    def sync(self, request: SyncRequest, token: int, now: Now) -> Effects:
        core = self.core
        core.begin(now)
        try:
            if request.group == "":
                raise KafkaError(ErrorCode.invalid_group_id)
            check_sync(request)
            group = core.groups.get(request.group)
            if isinstance(group, ClassicGroup):
                self._classic.sync(group, request, token)
            elif group is not None:
                self._migration.sync(group, request, token)
            else:
                raise KafkaError(ErrorCode.unknown_member_id)
        except KafkaError as error:
            core.answer(token, SyncAnswer(error.code))
        return core.effects

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Effects:
        core = self.core
        core.begin(now)
        if request.group == "":
            raise KafkaError(ErrorCode.invalid_group_id)
        group = core.groups.get(request.group)
        if isinstance(group, ClassicGroup):
            self._classic.heartbeat(group, request)
        elif group is not None:
            self._migration.heartbeat(group, request)
        else:
            raise KafkaError(ErrorCode.unknown_member_id)
        return core.effects

    def leave(self, name: str, members: Sequence[LeavingMember], now: Now) -> tuple[LeaveAnswer, Effects]:
        core = self.core
        core.begin(now)
        if name == "":
            raise KafkaError(ErrorCode.invalid_group_id)
        check_leave(members)
        group = core.groups.get(name)
        if isinstance(group, ClassicGroup):
            results = self._classic.leave(group, members)
        elif group is not None:
            results = self._migration.leave(group, members)
        else:
            results = tuple(LeavingMember(m.member_id, m.instance_id, ErrorCode.unknown_member_id) for m in members)
        return LeaveAnswer(results), core.effects

    # The consumer protocol

    def consumer_heartbeat(
        self, request: ConsumerHeartbeatRequest, now: Now, *, can_write: bool = True
    ) -> tuple[ConsumerHeartbeatAnswer, Effects]:
        """With `can_write` off, it writes nothing; only for members that have joined."""
        core = self.core
        core.begin(now)
        check_heartbeat(request)
        check_request(core, request)
        group = core.groups.get(request.group)
        if not can_write:
            answer = self._consumer.stay(self._existing_consumer_group(request.group), request)
        elif request.member_epoch <= LEAVE_EPOCH:
            answer = self._consumer.leave(self._existing_consumer_group(request.group), request)
        elif request.member_epoch == JOIN_EPOCH and not isinstance(group, ConsumerGroup):
            answer = self._consumer.heartbeat(self._consumer_group_to_join(group, request), request)
        else:
            answer = self._consumer.heartbeat(self._existing_consumer_group(request.group), request)
        return answer, core.effects

    def _existing_consumer_group(self, name: str) -> ConsumerGroup:
        group = self.core.groups.get(name)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Consumer group {name} not found.")
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {name} is not a consumer group.")
        return group

    def _consumer_group_to_join(self, group: ClassicGroup | None, request: ConsumerHeartbeatRequest) -> ConsumerGroup:
        """Creates the consumer group. An empty classic group is replaced; one with members is upgraded, if it can
        be."""
        core = self.core
        self._consumer.check_room(ConsumerGroup(request.group), request.member_id)
        self._consumer.check_regex(ConsumerGroup(request.group), request.regex)
        if group is not None and not group.is_empty:
            if not self._migration.can_upgrade(group):
                raise KafkaError(ErrorCode.group_id_not_found, f"Group {request.group} is not a consumer group.")
            if len(group.members) >= core.settings.group_consumer_max_size:
                raise KafkaError(ErrorCode.group_max_size_reached, "The group would be full.")
            if request.instance_id is None and request.member_id in group.members:
                what = f"Member {request.member_id} is at generation {group.generation} of a classic group."
                raise KafkaError(ErrorCode.fenced_member_epoch, what)
            return self._migration.upgrade(group)
        if group is not None and not group.is_simple:
            core.write(r.ClassicGroupKey(request.group), None)
        made = core.groups[request.group] = ConsumerGroup(request.group)
        return made

    def _downgrade(self, group: ConsumerGroup) -> bool:
        if not self._migration.can_downgrade(group):
            return False
        self._migration.downgrade(group, must_rebalance=True)
        return True

    # Offsets

    def commit_offsets(self, request: OffsetCommitRequest, now: Now) -> tuple[OffsetResults, Effects]:
        self.core.begin(now)
        return self._offsets.commit(request), self.core.effects

    def commit_in_transaction(
        self, request: OffsetCommitRequest, owner: ProducerIdAndEpoch, now: Now
    ) -> tuple[OffsetResults, Effects]:
        self.core.begin(now)
        return self._offsets.commit_in_transaction(request, owner), self.core.effects

    def is_in_transaction(self, owner: ProducerIdAndEpoch) -> bool:
        """Whether the producer has committed offsets here in its open transaction."""
        return self.core.pending.is_open(owner)

    def end_transaction(self, producer_id: int, is_commit: bool, now: Now) -> Effects:
        """Called right before the transaction's marker is written."""
        self.core.begin(now)
        replay.apply_end(self.core, producer_id, is_commit)
        return self.core.effects

    def fetch_offsets(self, request: OffsetFetchRequest) -> list[tuple[str, list[FetchedOffset]]]:
        return self._offsets.fetch(request)

    def delete_offsets(
        self, name: str, topics: Sequence[tuple[str, Sequence[int]]], now: Now
    ) -> tuple[OffsetResults, Effects]:
        self.core.begin(now)
        return self._offsets.delete(name, topics), self.core.effects

    def topics_deleted(self, until_ms: Mapping[str, int]) -> None:
        """Called as soon as the deletion is seen: what is committed later than that is of the next topics of these
        names."""
        self._offsets.topics_deleted(until_ms)

    def forget_deleted(self, names: Collection[str] | None, now: Now) -> Effects:
        """Deletes offsets of deleted topics, of these names or of all. At most some records per call: repeat until
        there are none."""
        self.core.begin(now)
        self._offsets.forget_deleted(names)
        return self.core.effects

    def with_offsets(self, topics: Collection[str]) -> list[str]:
        """Those that have offsets, or pending ones."""
        return self._offsets.with_offsets(topics)

    # Groups as a whole

    def delete_group(self, name: str, now: Now) -> Effects:
        core = self.core
        core.begin(now)
        group = core.groups.get(name)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {name} not found.")
        group.check_deletable()
        self._offsets.delete_all(name)
        self._delete_group(name)
        return core.effects

    def _delete_group(self, name: str) -> None:
        core = self.core
        group = core.groups.get(name)
        if isinstance(group, ConsumerGroup):
            self._consumer.write_tombstones(group)
        elif group is not None:
            for member_id in group.pending_members:
                core.timers.cancel(Timer(TimerKind.CLASSIC_SESSION, name, member_id))
            if not group.is_simple:
                core.write(r.ClassicGroupKey(name), None)
            core.groups.pop(name, None)
            group.transition(ClassicState.DEAD, core.now.wall_ms)

    def describe_classic(self, name: str) -> DescribedClassicGroup | None:
        group = self.core.groups.get(name)
        if not isinstance(group, ClassicGroup):
            return None
        protocol = group.protocol if group.state is ClassicState.STABLE else None
        return DescribedClassicGroup(
            group.state.value,
            group.protocol_type or "",
            protocol or "",
            tuple(
                DescribedClassicMember(m.member_id, m.instance_id, m.client, m.metadata(protocol), m.assignment)
                for m in group.members.values()
            ),
        )

    def describe_consumer(self, name: str) -> DescribedConsumerGroup | None:
        group = self.core.groups.get(name)
        if not isinstance(group, ConsumerGroup):
            return None
        members = tuple(
            DescribedConsumerMember(
                member_id=m.member_id,
                instance_id=m.instance_id,
                rack_id=m.rack_id,
                member_epoch=m.epoch,
                client=m.client,
                topics=m.topics,
                regex=m.regex,
                assigned=m.assigned,
                target=group.target.get(m.member_id, {}),
                is_classic=m.classic is not None,
            )
            for m in group.members.values()
        )
        topic_ids = {topic_id for m in members for topic_id in (*m.assigned, *m.target)}
        names = {topic_id: self.core.topics.topic_name(topic_id) for topic_id in sorted(topic_ids)}
        return DescribedConsumerGroup(
            state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=group.preferred_assignor(self.core.settings.assignors[0]),
            members=members,
            topic_names={topic_id: name for topic_id, name in names.items() if name is not None},
        )

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Filters ignore case; an empty filter lets all pass."""
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {kind.strip().lower() for kind in types}
        listed = []
        for name, group in self.core.groups.items():
            if isinstance(group, ClassicGroup):
                one = ListedGroup(name, group.protocol_type or "", group.state.value, classic.TYPE)
            else:
                one = ListedGroup(name, embedded.PROTOCOL_TYPE, group.state.value, consumer.TYPE)
            if wanted_states and one.state.lower() not in wanted_states:
                continue
            if wanted_types and one.type not in wanted_types:
                continue
            listed.append(one)
        return listed

    def check_invariants(self) -> None:
        for group in self.core.groups.values():
            group.check_invariants()
