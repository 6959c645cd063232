"""The consumer rebalance protocol of KIP-848: everything happens in ConsumerGroupHeartbeat.

A heartbeat carries what changed about the member. If that, or a change of the topics, changed what the group reads, the
group epoch is raised and the target assignment is computed again; then the member takes one step towards its target
(`reconcile.py`). Regular expressions are resolved in the same step, when a member sends one or topics have changed;
Kafka does it later and in another thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from sexton.coordinators.bounds import fits_record
from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.assignors import ASSIGNORS, AssignedMember
from sexton.coordinators.groups.consumer import ConsumerGroup, ConsumerMember
from sexton.coordinators.groups.core import Core
from sexton.coordinators.groups.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeatAnswer,
    ConsumerHeartbeatRequest,
)
from sexton.coordinators.groups.reconcile import check_state, has_taken, held_again, is_subset, named_of, reconcile
from sexton.coordinators.groups.timers import Timer, TimerKind
from sexton.coordinators.groups.topics import metadata_hash
from sexton.coordinators.patterns import compile_pattern
from sexton.protocol.errors import ErrorCode, KafkaError

REGEX_FIELD = "SubscribedTopicRegex"
MEMBER_TIMERS = (
    TimerKind.CONSUMER_SESSION,
    TimerKind.CONSUMER_REBALANCE,
    TimerKind.CONSUMER_JOIN,
    TimerKind.CONSUMER_SYNC,
)


def check_request(core: Core, request: ConsumerHeartbeatRequest) -> None:
    """Checks a request independently of the group's state."""
    for name, value in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if value == "":
            raise KafkaError(ErrorCode.invalid_request, f"{name} can't be empty.")
    if request.group == "":
        raise KafkaError(ErrorCode.invalid_request, "GroupId can't be empty.")
    is_joining = request.member_epoch == JOIN_EPOCH
    if request.member_id == "" and not (is_joining and not request.requires_member_id):
        raise KafkaError(ErrorCode.invalid_request, "MemberId can't be empty.")
    if is_joining:
        if request.rebalance_timeout_ms == -1:
            raise KafkaError(ErrorCode.invalid_request, "RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise KafkaError(ErrorCode.invalid_request, "TopicPartitions must be empty when (re-)joining.")
        if request.topics is None and request.regex is None:
            raise KafkaError(
                ErrorCode.invalid_request,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise KafkaError(ErrorCode.invalid_request, "InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise KafkaError(ErrorCode.invalid_request, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in core.settings.assignors:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(core.settings.assignors)}.",
        )
    if request.regex:
        compile_pattern(request.regex, REGEX_FIELD)


class ConsumerProtocol:
    """Drives the consumer groups of one coordinator. Errors are raised before anything is changed."""

    def __init__(self, core: Core, downgrade: Callable[[ConsumerGroup], bool]) -> None:
        """`downgrade` makes a group of classic members a classic group if that is allowed, and returns whether it
        did."""
        self._core = core
        self._downgrade = downgrade

    # Members that use KIP-848

    def heartbeat(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatAnswer:
        core = self._core
        self.check_room(group, request.member_id)
        self.check_regex(group, request.regex)
        member_id = request.member_id or core.new_consumer_member_id()
        known = group.members.get(member_id)
        before = self._find_member(group, request, member_id)
        check_state(before, request.owned)
        self.update_member(group, before, _as_asked(before, request))
        is_joining = request.member_epoch == JOIN_EPOCH
        again: ConsumerMember | None = None
        if request.owned is not None:
            holder = group.members[member_id]
            if is_joining:
                # It may be a late request, of a client that has long joined, and reads.
                if known is not None and known.classic is None and known.epoch > JOIN_EPOCH:
                    again = held_again(holder, request.owned, frozenset())
            elif request.is_full or request.member_epoch < holder.epoch:
                again = held_again(holder, request.owned, group.named.get(member_id, frozenset()))
            # Who is told again may be letting go of what it names, and take it on anew: that it has received it counts
            # once it names everything.
            group.named[member_id] = named_of(holder, request.owned) if again is None else frozenset()
        if again is None:
            after = self.step(group, member_id, request.owned, is_joining)
        else:
            after = self._tell_again(group, again)
        config = core.config_of(group.group)
        self._expect_heartbeat(group, member_id, config.consumer_session_timeout_ms)
        is_changed = after.assigned != before.assigned
        if has_taken(after, request.owned):
            group.untaken.discard(member_id)
        elif is_changed and not request.is_full:
            group.untaken.add(member_id)
        has_news = request.is_full or is_changed or member_id in group.untaken
        return ConsumerHeartbeatAnswer(
            member_id,
            after.epoch,
            config.consumer_heartbeat_interval_ms,
            after.assigned if has_news else None,
        )

    def stay(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatAnswer:
        """A member's heartbeat while nothing can be recorded: it goes on with what it has, and its session with it. If
        it brings something new it must bring that again."""
        member = self._find_member(group, request, request.member_id)
        if self._changes_nothing(group, member, request):
            return self.heartbeat(group, request)
        self.keep_session(group, member)
        if request.owned is not None or _as_asked(member, request) != member:
            revoking = Timer(TimerKind.CONSUMER_REBALANCE, group.group, member.member_id)
            if request.owned is not None and revoking in self._core.timers:  # it may have revoked, and cannot say so
                self._core.timers.set(revoking, self._core.now.monotonic_ms + member.rebalance_timeout_ms)
            what = "The group's records cannot be written now. Try again"
            raise KafkaError(ErrorCode.coordinator_not_available, what)
        return ConsumerHeartbeatAnswer(
            member.member_id,
            member.epoch,
            self._core.config_of(group.group).consumer_heartbeat_interval_ms,
            member.assigned if member.member_id in group.untaken else None,
        )

    def _changes_nothing(self, group: ConsumerGroup, member: ConsumerMember, request: ConsumerHeartbeatRequest) -> bool:
        return (
            group.epoch == group.assignment_epoch
            and member.is_reconciled_to(group.assignment_epoch)
            and _as_asked(member, request) == member
            and self._knows_topics(group)
        )

    def _knows_topics(self, group: ConsumerGroup) -> bool:
        """Whether the topics are as they were when the group epoch was last raised."""
        revision = self._core.topics.revision
        if revision in (group.seen_revision, group.news_revision):
            return revision == group.seen_revision
        if self._are_as_before(group):
            return True
        group.news_revision = revision
        return False

    def _are_as_before(self, group: ConsumerGroup) -> bool:
        for regex in {member.regex for member in group.members.values() if member.regex}:
            known = group.regexes.get(regex)
            if known is None or known.topics != self._matching_now(group, regex):
                return False
        return metadata_hash(self._core.topics, group.subscribed_topics()) == group.metadata_hash

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = self._core.settings.group_consumer_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise KafkaError(
                ErrorCode.group_max_size_reached, f"The consumer group has reached its maximum of {size_max} members."
            )

    def check_regex(self, group: ConsumerGroup, regex: str | None) -> None:
        """Checks that the topics which the expression matches fit into a record."""
        if regex and regex not in group.regexes and not fits_record(self._matching(regex)):
            what = "SubscribedRegex matches more topics than fit into a record: subscribe to fewer."
            raise KafkaError(ErrorCode.invalid_regular_expression, what)

    def _matching(self, regex: str) -> tuple[str, ...]:
        matches = compile_pattern(regex, REGEX_FIELD)
        return tuple(sorted(name for name in self._core.topics.names() if matches(name)))

    def _matching_now(self, group: ConsumerGroup, regex: str) -> tuple[str, ...]:
        """For an expression of a member. What another version has taken may be refused here: then the group keeps the
        topics that it has, for the other members are not to blame."""
        try:
            return self._matching(regex)
        except KafkaError:
            known = group.regexes.get(regex)
            return () if known is None else known.topics

    def _find_member(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest, member_id: str) -> ConsumerMember:
        is_joining = request.member_epoch == JOIN_EPOCH
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                if not is_joining:
                    raise KafkaError(
                        ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group}."
                    )
                return ConsumerMember(member_id)
            _check_epoch(member, request)
            return member
        if not is_joining:
            member = group.checked_static_member(request.instance_id, member_id)
            _check_epoch(member, request)
            return member
        static = group.static_member(request.instance_id)
        if static is None:
            return group.members.get(member_id) or ConsumerMember(member_id)
        if static.classic is None and static.epoch != LEAVE_STATIC_EPOCH:
            if static.member_id == member_id:
                # The same process, whose join response was lost. Kafka takes it for another one, and clients give up.
                return static
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the "
                f"instance id is owned by member {static.member_id}.",
            )
        return self.replace_static(group, static, member_id)

    def replace_static(self, group: ConsumerGroup, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Gives a static member a new member id: its current and target assignments go with it."""
        core = self._core
        target = group.target.get(old.member_id, {})
        new = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        self._write_removal(group, old.member_id)
        core.write(r.MemberKey(group.group, member_id), new.to_value())
        core.write(r.TargetKey(group.group, member_id), r.TargetValue(target))
        self._write_current(group, new)
        return new

    def leave(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatAnswer:
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.checked_static_member(request.instance_id, request.member_id)
            if request.member_epoch == LEAVE_STATIC_EPOCH:
                self._write_current(group, replace(member, epoch=LEAVE_STATIC_EPOCH, revoking={}))
                return ConsumerHeartbeatAnswer(member.member_id, LEAVE_STATIC_EPOCH)
        self.remove_members(group, [member])
        return ConsumerHeartbeatAnswer(member.member_id, LEAVE_EPOCH)

    # The steps, shared with members that use the classic protocol

    def update_member(self, group: ConsumerGroup, before: ConsumerMember, member: ConsumerMember) -> None:
        """Records what changed about a member; a change of its subscription raises the group epoch."""
        is_new = member.member_id not in group.members
        if member != before or is_new:
            self._core.write(r.MemberKey(group.group, member.member_id), member.to_value())
        # After a crash the log may have the new member, and not the new group epoch for it.
        is_new = is_new or member.member_id not in group.target
        reads_other_topics = member.topics != before.topics or (member.regex or "") != (before.regex or "")
        if reads_other_topics or is_new:
            self._forget_unused_regexes(group)
        self._refresh(group, must_bump=reads_other_topics or is_new)

    def _refresh(self, group: ConsumerGroup, must_bump: bool) -> None:
        """Examines the topics if they, or the group's subscriptions, have changed."""
        core = self._core
        if not must_bump and group.seen_revision == core.topics.revision:
            return
        self._resolve_regexes(group)
        group.seen_revision = core.topics.revision
        hash_ = metadata_hash(core.topics, group.subscribed_topics())
        if must_bump or hash_ != group.metadata_hash:
            core.write(r.EpochKey(group.group), r.EpochValue(group.epoch + 1, hash_))

    def _resolve_regexes(self, group: ConsumerGroup) -> None:
        core = self._core
        for regex in sorted({member.regex for member in group.members.values() if member.regex}):
            topics = self._matching_now(group, regex)
            known = group.regexes.get(regex)
            if known is not None and not fits_record(topics):
                continue  # the group keeps the topics that it has
            if known is None or known.topics != topics:
                value = r.RegexValue(topics, core.topics.revision, core.now.wall_ms)
                core.write(r.RegexKey(group.group, regex), value)

    def _forget_unused_regexes(self, group: ConsumerGroup) -> None:
        used = {member.regex for member in group.members.values()}
        for regex in [regex for regex in group.regexes if regex not in used]:
            self._core.write(r.RegexKey(group.group, regex), None)

    def step(
        self, group: ConsumerGroup, member_id: str, owned: r.Partitions | None, is_joining: bool
    ) -> ConsumerMember:
        """Takes the member's step towards its target assignment, which is computed first if it is outdated."""
        if group.epoch > group.assignment_epoch:
            self._assign(group)
        member = group.members[member_id]
        if member.is_reconciled_to(group.assignment_epoch):
            return member
        target = group.target.get(member_id, {})
        stepped = reconcile(member, group.assignment_epoch, target, owned, group.is_held, is_joining)
        if self._would_find_nothing_to_do(group, stepped):
            return self._tell_again(group, member)
        if stepped != member:
            self._write_current(group, stepped)
            self._watch_revocation(group, stepped)
        elif member.state is not r.MemberState.UNREVOKED_PARTITIONS:
            self._core.timers.cancel(Timer(TimerKind.CONSUMER_REBALANCE, group.group, member_id))
        return stepped

    def _would_find_nothing_to_do(self, group: ConsumerGroup, stepped: ConsumerMember) -> bool:
        """Whether the member is asked to revoke just what it has not named since it was given it. It may not have heard
        of that, or not have begun to take it on: it would never confirm. If it cannot take that on any more, because
        the topic is gone or the member has unsubscribed, it is asked all the same."""
        named = group.named.get(stepped.member_id)
        if named is None or not stepped.revoking or stepped.classic is not None:
            return False
        kept = {(topic_id, number) for topic_id, numbers in stepped.assigned.items() for number in numbers}
        topics = {self._core.topics.topic_name(topic_id) for topic_id in stepped.revoking}
        return kept == named and topics <= set(group.topics_of(stepped))

    def _tell_again(self, group: ConsumerGroup, member: ConsumerMember) -> ConsumerMember:
        """Keeps the member's state until it has received its whole assignment again. If other members wait for its
        partitions, not for ever: it gets the rebalance timeout, as if it had to revoke them."""
        core = self._core
        timer = Timer(TimerKind.CONSUMER_REBALANCE, group.group, member.member_id)
        group.untaken.add(member.member_id)
        if member != group.members[member.member_id]:
            self._write_current(group, member)
        if group.epoch > group.assignment_epoch:
            self._assign(group)
        if not member.is_reconciled_to(group.assignment_epoch) and timer not in core.timers:
            core.timers.set(timer, core.now.monotonic_ms + member.rebalance_timeout_ms)
        return member

    def _watch_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        core = self._core
        if member.classic is not None:
            return  # a classic member has a join and a sync timeout instead
        timer = Timer(TimerKind.CONSUMER_REBALANCE, group.group, member.member_id)
        core.timers.cancel(timer)
        if member.state is r.MemberState.UNREVOKED_PARTITIONS:
            core.timers.set(timer, core.now.monotonic_ms + member.rebalance_timeout_ms)

    def _assign(self, group: ConsumerGroup) -> None:
        core = self._core
        ids = {name: core.topics.topic_id(name) for name in sorted(group.subscribed_topics())}
        counts = {topic_id: core.topics.partitions_count(topic_id) for topic_id in ids.values() if topic_id is not None}
        known: dict[tuple[tuple[str, ...], str | None], frozenset[uuid.UUID]] = {}
        members: dict[str, AssignedMember] = {}
        for member in group.members.values():
            subscription = (member.topics, member.regex)
            if subscription not in known:  # most members have the same
                found = [ids[name] for name in group.topics_of(member)]
                known[subscription] = frozenset(topic_id for topic_id in found if topic_id is not None)
            target = group.target.get(member.member_id, {})
            members[member.member_id] = AssignedMember(member.instance_id, known[subscription], target)
        assignor = group.preferred_assignor(core.settings.assignors[0])
        for member_id, assigned in ASSIGNORS[assignor](members, counts).items():
            before = group.target.get(member_id)
            if before is None or (before is not assigned and before != assigned):
                core.write(r.TargetKey(group.group, member_id), r.TargetValue(assigned))
        core.write(r.TargetEpochKey(group.group), r.TargetEpochValue(group.epoch))

    def remove_members(self, group: ConsumerGroup, members: list[ConsumerMember]) -> None:
        """Removes members that left or timed out. The next heartbeat of any other member computes the new target."""
        for member in members:
            self._write_removal(group, member.member_id)
        if any(member.classic is None for member in members) and self._downgrade(group):
            return
        self._forget_unused_regexes(group)
        hash_ = metadata_hash(self._core.topics, group.subscribed_topics())
        self._core.write(r.EpochKey(group.group), r.EpochValue(group.epoch + 1, hash_))

    def _write_removal(self, group: ConsumerGroup, member_id: str) -> None:
        core = self._core
        core.write(r.CurrentKey(group.group, member_id), None)
        core.write(r.TargetKey(group.group, member_id), None)
        core.write(r.MemberKey(group.group, member_id), None)
        for kind in MEMBER_TIMERS:
            core.timers.cancel(Timer(kind, group.group, member_id))

    def _write_current(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        value = r.CurrentValue(member.epoch, member.previous_epoch, member.state, member.assigned, member.revoking)
        self._core.write(r.CurrentKey(group.group, member.member_id), value)

    def write_tombstones(self, group: ConsumerGroup) -> None:
        """Deletes the whole group. Its offsets stay."""
        core = self._core
        for member_id in list(group.members):
            self._write_removal(group, member_id)
        for regex in list(group.regexes):
            core.write(r.RegexKey(group.group, regex), None)
        core.write(r.TargetEpochKey(group.group), None)
        core.write(r.EpochKey(group.group), None)

    def _expect_heartbeat(self, group: ConsumerGroup, member_id: str, timeout_ms: int) -> None:
        core = self._core
        timer = Timer(TimerKind.CONSUMER_SESSION, group.group, member_id)
        core.timers.set(timer, core.now.monotonic_ms + timeout_ms)

    def keep_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        timeout_ms = self._core.config_of(group.group).consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._expect_heartbeat(group, member.member_id, timeout_ms)

    def on_loaded(self, group: ConsumerGroup) -> None:
        """Starts the whole session timeout of all members, and the whole revocation timeout, so that they can find the
        new coordinator. What the former one told them it told without a record: they may not have heard it."""
        for member in group.members.values():
            if member.classic is None:
                group.untaken.add(member.member_id)
            self.keep_session(group, member)
            self._watch_revocation(group, member)


def _as_asked(member: ConsumerMember, request: ConsumerHeartbeatRequest) -> ConsumerMember:
    """The member as its heartbeat says that it is."""
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client=request.client,
        topics=member.topics if request.topics is None else tuple(sorted(set(request.topics))),
        regex=member.regex if request.regex is None else request.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=request.server_assignor or member.server_assignor,
        classic=None,
    )


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeatRequest) -> None:
    """The previous epoch is accepted too, if the member does not own more than its assignment: the response with its
    new epoch may have been lost. So is a member that joins again: it was fenced, and clients keep their id."""
    received = request.member_epoch
    if received == member.epoch or received == JOIN_EPOCH < member.epoch:
        return
    if received < member.epoch and received == member.previous_epoch and is_subset(request.owned, member.assigned):
        return
    raise KafkaError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {'greater' if received > member.epoch else 'smaller'} member epoch "
        f"({received}) than the one known by the group coordinator ({member.epoch}). The member must abandon all its "
        "partitions and rejoin.",
    )
