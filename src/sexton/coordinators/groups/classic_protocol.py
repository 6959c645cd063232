"""The classic rebalance protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and their timeouts.

A rebalance in short: JoinGroup requests wait until all members have joined or the rebalance timeout has passed; then a
new generation starts, all get their response, and the leader's has the list of members. SyncGroup requests wait until
the leader's arrives with the assignment; that is recorded, and the group is stable.

Unlike in Kafka, the group becomes stable when the assignment is appended, not when it is committed: no response that
could show the difference is sent before the commit (see `core.py`). And a SyncGroup that waits when its member is
removed gets UNKNOWN_MEMBER_ID; Kafka never answers it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexton.coordinators.groups.classic import ClassicGroup, ClassicMember
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
from sexton.coordinators.groups.states import ClassicState
from sexton.coordinators.groups.timers import Timer, TimerKind
from sexton.protocol.errors import ErrorCode, KafkaError

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a member that has not received its id yet is kept. It cannot send heartbeats. If its client gave up waiting
and joined again, it would otherwise be counted twice for ever."""

NOBODY_BACK_MS_MIN = 1_000
"""Shortest interval between two checks whether one of the static members is back. Clients choose the interval (the
rebalance timeout), and it may be 0."""


class ClassicProtocol:
    """Drives the classic groups of one coordinator. An operation that raises has written no record and sent no
    response."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # JoinGroup

    def join(self, group: ClassicGroup, request: JoinRequest, token: int) -> None:
        if not self._has_room_for(group, request.member_id):
            self._core.answer(token, JoinAnswer(ErrorCode.group_max_size_reached))
            if request.member_id in group.members:  # the size limit was lowered: the last to rejoin is removed
                self._drop(group, request.member_id)
                self._after_removal(group)
            return
        if not group.supports(request.protocol_type, request.protocols):
            raise KafkaError(ErrorCode.inconsistent_group_protocol, "No protocol that all members speak.")
        if not group.has_bytes_for(request):
            raise KafkaError(ErrorCode.group_max_size_reached, "What its members bring would not fit into a record.")
        if request.member_id == NO_MEMBER_ID:
            self._join_new(group, request, token)
        elif request.member_id in group.pending_members:
            if request.instance_id is not None:
                raise KafkaError(ErrorCode.unknown_member_id, "The id was given to a member that is not static.")
            self._add_member(group, request, request.member_id, token)
        else:
            self._rejoin(group, request, group.check_member(request.member_id, request.instance_id), token)

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        size_max = self._core.settings.group_max_size
        member = group.members.get(member_id)
        match group.state:
            case ClassicState.PREPARING:
                # Counts waiting members, not all members: so a group that became too big drops the last ones to rejoin.
                return (member is not None and member.join_token is not None) or group.waiting_count < size_max
            case ClassicState.COMPLETING | ClassicState.STABLE:
                return member is not None or len(group.members) < size_max
        return True

    def _join_new(self, group: ClassicGroup, request: JoinRequest, token: int) -> None:
        core = self._core
        member_id = core.new_classic_member_id(
            request.client.client_id if request.instance_id is None else request.instance_id
        )
        if request.instance_id is not None:
            known = group.static_members.get(request.instance_id)
            if known is not None:
                self._replace_static(group, request, known, member_id, token)
                return
        elif request.requires_member_id:
            group.pending_members[member_id] = None
            deadline_ms = core.now.monotonic_ms + request.session_timeout_ms
            core.timers.set(Timer(TimerKind.CLASSIC_SESSION, group.group, member_id), deadline_ms)
            core.answer(token, JoinAnswer(ErrorCode.member_id_required, member_id))
            return
        self._add_member(group, request, member_id, token)

    def _add_member(self, group: ClassicGroup, request: JoinRequest, member_id: str, token: int) -> None:
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client=request.client,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_token=token,
        )
        if group.state is ClassicState.PREPARING and group.initial_delay_ms is not None:
            group.member_added = True
        group.add(member, request.protocol_type)
        self._expect_heartbeat(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(group)

    def _rejoin(self, group: ClassicGroup, request: JoinRequest, member: ClassicMember, token: int) -> None:
        match group.state:
            case ClassicState.PREPARING:
                must_rebalance = True
            case ClassicState.COMPLETING:
                # With the same metadata it only repeats a JoinGroup whose response was lost.
                must_rebalance = member.protocols != request.protocols
            case ClassicState.STABLE:
                # A leader that rejoins has seen a change that members' metadata do not show, such as new partitions.
                must_rebalance = group.leader == member.member_id or member.protocols != request.protocols
            case _:
                raise KafkaError(ErrorCode.unknown_member_id, f"Group {group.group} has no members.")
        if not must_rebalance:
            is_assigning = group.state is ClassicState.COMPLETING
            self._core.answer(token, self._joined(group, member, with_members=is_assigning))
            return
        group.update(member, request)
        self._displace_join(group, member, token)
        self._rebalance_or_complete(group)

    def _displace_join(self, group: ClassicGroup, member: ClassicMember, token: int) -> None:
        displaced = group.park_join(member, token)
        self._core.answer(displaced, JoinAnswer(ErrorCode.rebalance_in_progress, member.member_id))

    def _replace_static(self, group: ClassicGroup, request: JoinRequest, old_id: str, new_id: str, token: int) -> None:
        """A static member is back under a new member id; the client that still uses the old one is fenced."""
        core = self._core
        old = group.members[old_id]
        old_leader = group.leader or NO_MEMBER_ID
        core.answer(group.take_join(old), JoinAnswer(ErrorCode.fenced_instance_id, old_id))
        self._answer_sync(old, SyncAnswer(ErrorCode.fenced_instance_id))
        core.timers.cancel(Timer(TimerKind.CLASSIC_SESSION, group.group, old_id))
        member = group.replace_static(request.instance_id or "", old_id, new_id, request.client)
        member.is_new = False
        self._expect_heartbeat(group, member)
        group.update(member, request)
        if group.state is ClassicState.STABLE and group.select_protocol() == group.protocol:
            core.write_classic(group)
            if request.can_skip_assignment:
                is_leader = group.leader == new_id
                answer = self._joined(group, member, with_members=is_leader, skip_assignment=is_leader)
            else:
                # It must not believe that it leads, or it would assign: the response names the old leader's id.
                answer = self._joined(group, member, with_members=False, leader=old_leader)
            core.answer(token, answer)
            return
        group.park_join(member, token)
        self._rebalance_or_complete(group)

    def _joined(
        self,
        group: ClassicGroup,
        member: ClassicMember,
        *,
        with_members: bool,
        skip_assignment: bool = False,
        leader: str | None = None,
    ) -> JoinAnswer:
        return JoinAnswer(
            error=ErrorCode.none,
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=(group.leader or NO_MEMBER_ID) if leader is None else leader,
            skip_assignment=skip_assignment,
            members=group.joined_members() if with_members and group.leader == member.member_id else (),
        )

    # The rebalance

    def _rebalance_or_complete(self, group: ClassicGroup) -> None:
        if group.can_rebalance:
            self.prepare_rebalance(group)
        elif group.state is ClassicState.PREPARING and group.initial_delay_ms is None and group.has_all_joined:
            self._complete_join(group)

    def prepare_rebalance(self, group: ClassicGroup) -> None:
        core = self._core
        if group.state is ClassicState.COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                if self._answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress)):
                    self._expect_heartbeat(group, member)
        group.pending_sync.clear()
        core.timers.cancel(Timer(TimerKind.CLASSIC_SYNC, group.group))
        was_empty = group.state is ClassicState.EMPTY
        group.transition(ClassicState.PREPARING, core.now.wall_ms)
        if was_empty:
            delay_ms = core.settings.group_initial_rebalance_delay_ms
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.member_added = False
            self._set_join_timer(group, delay_ms)
        elif group.has_all_joined:
            self._complete_join(group)
        else:
            self._set_join_timer(group, group.rebalance_timeout_ms)

    def _set_join_timer(self, group: ClassicGroup, delay_ms: int) -> None:
        core = self._core
        core.timers.set(Timer(TimerKind.CLASSIC_JOIN, group.group), core.now.monotonic_ms + delay_ms)

    def _on_join_timer(self, group: ClassicGroup) -> None:
        if group.state is not ClassicState.PREPARING:
            return
        delay_ms = group.initial_delay_ms
        if delay_ms is not None and group.member_added and group.initial_remaining_ms > 0:
            group.member_added = False
            next_ms = min(self._core.settings.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms = max(group.initial_remaining_ms - delay_ms, 0)
            group.initial_delay_ms = next_ms
            self._set_join_timer(group, next_ms)
            return
        self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        core = self._core
        group.initial_delay_ms = None
        core.timers.cancel(Timer(TimerKind.CLASSIC_JOIN, group.group))
        for member in list(group.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._drop(group, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none of them is back: wait until one is, or their sessions expire.
            self._set_join_timer(group, max(group.rebalance_timeout_ms, NOBODY_BACK_MS_MIN))
            return
        group.start_generation(core.now.wall_ms)
        if group.is_empty:
            core.write_classic(group)
            return
        for member in group.members.values():
            core.answer(group.take_join(member), self._joined(group, member, with_members=True))
            self._expect_heartbeat(group, member)
            member.is_new = False
            group.pending_sync[member.member_id] = None
        deadline_ms = core.now.monotonic_ms + group.rebalance_timeout_ms
        core.timers.set(Timer(TimerKind.CLASSIC_SYNC, group.group), deadline_ms)

    # SyncGroup

    def sync(self, group: ClassicGroup, request: SyncRequest, token: int) -> None:
        core = self._core
        member = group.check_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise KafkaError(ErrorCode.illegal_generation, f"The group is at generation {group.generation}.")
        if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol):
            raise KafkaError(ErrorCode.inconsistent_group_protocol, f"The group speaks {group.protocol}.")
        match group.state:
            case ClassicState.PREPARING:
                raise KafkaError(ErrorCode.rebalance_in_progress, "The members are to join again.")
            case ClassicState.COMPLETING:
                is_leader = group.leader == member.member_id
                if is_leader and not group.can_record(request.assignments):
                    # Kafka fails all members. Here only the leader's request fails, and the others get a later
                    # assignment.
                    raise KafkaError(ErrorCode.unknown_server_error, "The assignment does not fit into a record.")
                self._answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress))
                member.sync_token = token
                self._has_synced(group, member)
                if is_leader:
                    self._assign(group, request)
            case ClassicState.STABLE:
                self._has_synced(group, member)
                self._expect_heartbeat(group, member)
                core.answer(token, self._synced(group, member))
            case _:
                raise KafkaError(ErrorCode.unknown_member_id, f"Group {group.group} has no members.")

    def _has_synced(self, group: ClassicGroup, member: ClassicMember) -> None:
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            self._core.timers.cancel(Timer(TimerKind.CLASSIC_SYNC, group.group))

    def _assign(self, group: ClassicGroup, request: SyncRequest) -> None:
        for member in group.members.values():
            member.assignment = request.assignments.get(member.member_id, b"")
        group.transition(ClassicState.STABLE, self._core.now.wall_ms)
        self._core.write_classic(group)
        for member in group.members.values():
            if self._answer_sync(member, self._synced(group, member)):
                self._expect_heartbeat(group, member)

    def _synced(self, group: ClassicGroup, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)

    def _answer_sync(self, member: ClassicMember, answer: SyncAnswer) -> bool:
        token, member.sync_token = member.sync_token, None
        self._core.answer(token, answer)
        return token is not None

    def _on_sync_timer(self, group: ClassicGroup) -> None:
        if group.state not in (ClassicState.COMPLETING, ClassicState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            self._drop(group, member_id)
        self.prepare_rebalance(group)

    # Heartbeat, LeaveGroup, sessions

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest) -> None:
        member = group.check_member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise KafkaError(ErrorCode.illegal_generation, f"The group is at generation {group.generation}.")
        self._expect_heartbeat(group, member)
        if group.state is ClassicState.PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress, "The members are to join again.")

    def leave(self, group: ClassicGroup, members: Sequence[LeavingMember]) -> tuple[LeavingMember, ...]:
        """Unlike Kafka, which rebalances a stable group even if only a pending member left, this counts only members
        that had joined."""
        members_count = len(group.members)
        results = tuple(self._leave_one(group, member) for member in members)
        if len(group.members) < members_count or group.state is ClassicState.PREPARING:
            self._after_removal(group)
        return results

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember) -> LeavingMember:
        try:
            if leaving.member_id == NO_MEMBER_ID:  # an admin removes a static member by its instance id
                member_id = group.static_members.get(leaving.instance_id or "")
                if leaving.instance_id is None or member_id is None:
                    raise KafkaError(ErrorCode.unknown_member_id)
                self._drop(group, member_id)
            elif leaving.member_id in group.pending_members:
                self._drop(group, leaving.member_id)
            else:
                group.check_member(leaving.member_id, leaving.instance_id)
                self._drop(group, leaving.member_id)
        except KafkaError as error:
            return LeavingMember(leaving.member_id, leaving.instance_id, error.code)
        return LeavingMember(leaving.member_id, leaving.instance_id)

    def _after_removal(self, group: ClassicGroup) -> None:
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING):
            self.prepare_rebalance(group)
        elif group.state is ClassicState.PREPARING and group.has_all_joined and group.initial_delay_ms is None:
            self._complete_join(group)

    def _drop(self, group: ClassicGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._core.answer(group.take_join(member), JoinAnswer(ErrorCode.unknown_member_id))
            self._answer_sync(member, SyncAnswer(ErrorCode.unknown_member_id))
        group.remove(member_id)
        self._core.timers.cancel(Timer(TimerKind.CLASSIC_SESSION, group.group, member_id))

    def _expect_heartbeat(self, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None) -> None:
        core = self._core
        deadline_ms = core.now.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        core.timers.set(Timer(TimerKind.CLASSIC_SESSION, group.group, member.member_id), deadline_ms)

    def keep_session(self, group: ClassicGroup, member_id: str) -> None:
        """A member that commits offsets is alive: its session timeout starts again."""
        member = group.members.get(member_id)
        if member is not None and group.state in (ClassicState.STABLE, ClassicState.PREPARING):
            self._expect_heartbeat(group, member)

    def _on_session_timer(self, group: ClassicGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            if member_id not in group.pending_members:
                return
            group.remove(member_id)
            if group.state is ClassicState.PREPARING and group.has_all_joined and group.initial_delay_ms is None:
                self._complete_join(group)
        elif not member.is_excused:
            self._drop(group, member_id)
            self._after_removal(group)

    def on_timer(self, group: ClassicGroup, timer: Timer) -> None:
        match timer.kind:
            case TimerKind.CLASSIC_SESSION:
                self._on_session_timer(group, timer.member_id)
            case TimerKind.CLASSIC_JOIN:
                self._on_join_timer(group)
            case TimerKind.CLASSIC_SYNC:
                self._on_sync_timer(group)

    # Leadership of the partition

    def on_loaded(self, group: ClassicGroup) -> None:
        """Starts a whole session timeout for all members, so that they can find the new coordinator."""
        for member in group.members.values():
            self._expect_heartbeat(group, member)
        if group.must_rebalance or len(group.members) > self._core.settings.group_max_size:
            self.prepare_rebalance(group)


def _differ(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual
