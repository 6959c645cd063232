"""The state of a classic group: its members, its leader, its protocol. The events are in `classic_protocol.py`; the
states and their transitions are in `states.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sexton.coordinators.bounds import RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES
from sexton.coordinators.groups.messages import Client, JoinedMember, JoinRequest
from sexton.coordinators.groups.records import ClassicGroupValue, ClassicMemberValue
from sexton.coordinators.groups.states import ClassicState, check_classic
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_TIMESTAMP

TYPE = "classic"


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata of each protocol, in the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Whether it has not received its member id yet, and so cannot send heartbeats. It may be removed while its
    JoinGroup waits."""
    join_token: int | None = None
    sync_token: int | None = None

    @property
    def is_excused(self) -> bool:
        """Whether it need not send heartbeats, because its JoinGroup or SyncGroup is waiting for its response."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    @property
    def size_bytes(self) -> int:
        """Upper bound of the member's bytes in the group's record, without its assignment."""
        strings = (self.member_id, self.instance_id or "", self.client.client_id, self.client.host)
        return sum(len(one.encode()) for one in strings) + _largest(self.protocols) + RECORD_OVERHEAD_BYTES

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True)
class ClassicGroup:
    group: str
    state: ClassicState = ClassicState.EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation: int = 0
    protocol_type: str | None = None
    """None if no member has ever joined; the group only keeps offsets of a consumer that assigns its partitions
    itself."""
    protocol: str | None = None
    leader: str | None = None
    must_rebalance: bool = False
    """Whether the recorded members have assignments that no leader has computed and that they may not know. Recorded by
    a null leader, so that the next coordinator that loads the group goes on with the rebalance."""
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    pending_members: dict[str, None] = field(default_factory=dict)
    """Member ids that were given out and have not joined yet (KIP-394)."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members that have received the new generation and have not sent SyncGroup."""
    subscribed_topics: frozenset[str] | None = None
    """Topics of all members. None if unknown, because the protocol is not the consumer's or cannot be parsed."""
    initial_delay_ms: int | None = None
    """How long a new group waits for more members this time; `initial_remaining_ms` is how long it may wait after
    that."""
    initial_remaining_ms: int = 0
    member_added: bool = False
    waiting_count: int = 0
    """Number of members whose JoinGroup is waiting. This and the next attributes are kept up to date, not counted each
    time, so that n joins do not cost n²."""
    protocol_counts: dict[str, int] = field(default_factory=dict)
    """Number of members that support each protocol."""
    members_bytes: int = 0
    """Sum of `size_bytes` of all members."""

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether the group exists only because of its offsets: it has no record of its own."""
        return self.is_empty and self.protocol_type is None and not self.pending_members and self.generation == 0

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == embedded.PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_members and self.waiting_count == len(self.members)

    @property
    def can_rebalance(self) -> bool:
        return self.state in (ClassicState.EMPTY, ClassicState.COMPLETING, ClassicState.STABLE)

    def transition(self, state: ClassicState, now_ms: int) -> None:
        check_classic(self.group, self.state, state)
        self.state = state
        self.state_timestamp_ms = now_ms

    def supports(self, protocol_type: str, protocols: Sequence[tuple[str, bytes]]) -> bool:
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(self._is_common(name) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Each member votes for its own favourite among the protocols that all support; the first with most votes
        wins."""
        candidates = {name for name in self.protocol_counts if self._is_common(name)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def has_bytes_for(self, request: JoinRequest) -> bool:
        """Whether the group would still fit into its one record with this member's metadata."""
        known = self.members.get(self.static_members.get(request.instance_id or "", request.member_id))
        before = 0 if known is None else known.size_bytes
        strings = (request.member_id, request.instance_id or "", request.client.client_id, request.client.host)
        now = sum(len(one.encode()) for one in strings) + _largest(request.protocols) + 2 * RECORD_OVERHEAD_BYTES
        assigned = 0 if known is None else sum(len(member.assignment) for member in self.members.values())
        return self.members_bytes - before + now + assigned <= RECORD_BYTES_MAX

    def can_record(self, assignments: Mapping[str, bytes]) -> bool:
        """Whether the group would fit into its record with these assignments. Assignments of non-members are not
        recorded."""
        assigned = sum(len(assignments.get(member_id, b"")) for member_id in self.members)
        return self.members_bytes + assigned <= RECORD_BYTES_MAX

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        self.members_bytes += member.size_bytes
        self.waiting_count += member.join_token is not None
        self.pending_members.pop(member.member_id, None)

    def update(self, member: ClassicMember, request: JoinRequest) -> None:
        self._count_protocols(member, -1)
        self.members_bytes -= member.size_bytes
        member.protocols = request.protocols
        self.members_bytes += member.size_bytes
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms

    def park_join(self, member: ClassicMember, token: int) -> int | None:
        """Returns the token of the member's previous JoinGroup, which this one replaces: only the last one gets the
        assignment."""
        displaced, member.join_token = member.join_token, token
        self.waiting_count += displaced is None
        return displaced

    def take_join(self, member: ClassicMember) -> int | None:
        token, member.join_token = member.join_token, None
        self.waiting_count -= token is not None
        return token

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            self.members_bytes -= member.size_bytes
            self.waiting_count -= member.join_token is not None
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_members.pop(member_id, None)
        self.pending_sync.pop(member_id, None)

    def replace_static(self, instance_id: str, old_id: str, new_id: str, client: Client) -> ClassicMember:
        """Gives a static member a new member id, at the same position in the order."""
        member = self.members[old_id]
        self.members_bytes -= member.size_bytes
        member.member_id = new_id
        member.client = client
        self.members_bytes += member.size_bytes
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        self.static_members[instance_id] = new_id
        self.pending_sync.pop(old_id, None)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """Makes a member lead that has rejoined, if the leader has not: only such a member can assign. Returns False if
        no member has rejoined."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is None:
            joined = next((m.member_id for m in self.members.values() if m.join_token is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def start_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.must_rebalance = False
        self.protocol = self.select_protocol() if self.members else None
        self.transition(ClassicState.COMPLETING if self.members else ClassicState.EMPTY, now_ms)
        self.refresh_subscribed_topics()
        self.pending_sync.clear()

    def refresh_subscribed_topics(self) -> None:
        self.subscribed_topics = self._subscribed_topics()

    def is_subscribed(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.unknown_member_id, f"No member with instance id {instance_id}.")
            if known != member_id:
                raise KafkaError(ErrorCode.fenced_instance_id, f"Instance {instance_id} is now member {known}.")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} is not in group {self.group}.")
        return member

    def check_offset_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        if generation < 0 and self.is_empty:
            return  # an admin, or a consumer that assigns its partitions itself
        if generation >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation != self.generation:
                raise KafkaError(ErrorCode.illegal_generation, f"The group is at generation {self.generation}.")
        elif not self.is_empty:
            raise KafkaError(ErrorCode.unknown_member_id, "The group has members; the commit is not from one.")
        if self.state is ClassicState.COMPLETING:
            raise KafkaError(ErrorCode.rebalance_in_progress, "The members have not been assigned yet.")

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """Unlike `check_offset_commit`, accepts commits while the group rebalances: the transaction began with the
        assignment by which it has read."""
        if generation < 0 and self.is_empty:
            return
        self.check_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.illegal_generation, f"The group is at generation {self.generation}.")

    def check_deletable(self) -> None:
        if not self.is_empty:
            raise KafkaError(ErrorCode.non_empty_group, f"Group {self.group} has members.")

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(JoinedMember(m.member_id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values())

    def to_value(self) -> ClassicGroupValue:
        return ClassicGroupValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=None if self.must_rebalance else self.leader,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                ClassicMemberValue(
                    member_id=m.member_id,
                    instance_id=m.instance_id,
                    client_id=m.client.client_id,
                    client_host=m.client.host,
                    rebalance_timeout_ms=m.rebalance_timeout_ms,
                    session_timeout_ms=m.session_timeout_ms,
                    subscription=m.metadata(self.protocol),
                    assignment=m.assignment,
                )
                for m in self.members.values()
            ),
        )

    @classmethod
    def from_value(cls, group: str, value: ClassicGroupValue) -> ClassicGroup:
        loaded = cls(
            group,
            ClassicState.STABLE if value.members else ClassicState.EMPTY,
            state_timestamp_ms=value.state_timestamp_ms,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol=value.protocol,
            leader=value.leader,
            must_rebalance=value.leader is None and bool(value.members),
        )
        for m in value.members:
            member = ClassicMember(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client=Client(m.client_id, m.client_host),
                rebalance_timeout_ms=m.rebalance_timeout_ms,
                session_timeout_ms=m.session_timeout_ms,
                protocols=((value.protocol or "", m.subscription),),
                assignment=m.assignment,
            )
            loaded.add(member, value.protocol_type)
        if loaded.leader not in loaded.members:  # a leader that is no member: not written by any coordinator
            loaded.leader = next(iter(loaded.members), None)
        loaded.refresh_subscribed_topics()
        return loaded

    def check_invariants(self) -> None:
        assert (self.leader is not None) == bool(self.members), "a group with members has a leader"
        assert self.leader is None or self.leader in self.members, "the leader is a member"
        assert set(self.static_members.values()) <= self.members.keys(), "static members are members"
        waiting = sum(m.join_token is not None for m in self.members.values())
        assert waiting == self.waiting_count, "the members that wait are counted"
        assert self.members_bytes == sum(m.size_bytes for m in self.members.values()), "their bytes are counted"
        assert not (self.pending_members.keys() & self.members.keys()), "a pending member has not joined"
        assert self.pending_sync.keys() <= self.members.keys(), "whoever must sync is a member"
        if self.state is ClassicState.EMPTY:
            assert not self.members, "an empty group has no members"
        if self.state is ClassicState.STABLE:
            assert all(m.join_token is None and m.sync_token is None for m in self.members.values()), "nobody waits"

    def _is_common(self, protocol: str) -> bool:
        return self.protocol_counts.get(protocol, 0) == len(self.members)

    def _count_protocols(self, member: ClassicMember, change: int) -> None:
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self.protocol_counts[name] = self.protocol_counts.get(name, 0) + change
            if not self.protocol_counts[name]:
                del self.protocol_counts[name]

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(embedded.read_topics(member.metadata(self.protocol)))
        except embedded.MalformedProtocolError:
            return None
        return frozenset(topics)


def _largest(protocols: Sequence[tuple[str, bytes]]) -> int:
    """Size of the largest metadata: only that of the chosen protocol is recorded."""
    return max((len(metadata) for _, metadata in protocols), default=0)
