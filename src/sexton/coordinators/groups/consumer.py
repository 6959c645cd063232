"""The state of a consumer group (KIP-848): the coordinator assigns, and each member moves to its target assignment at
its own pace.

There are three epochs: the group epoch is raised whenever members or topics change, the assignment epoch is the group
epoch for which the target assignment was computed, and a member's epoch says which target it has reached. All state in
here changes by replaying records (`replay.py`), whether they were read from the log or have just been written.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from sexton.coordinators.bounds import RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES
from sexton.coordinators.groups.messages import LEAVE_EPOCH, Client
from sexton.coordinators.groups.records import ClassicProtocols, MemberState, MemberValue, Partitions, RegexValue
from sexton.coordinators.groups.states import ConsumerState
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import PartitionId

TYPE = "consumer"
NO_REVISION = -1
UNKNOWN_CLIENT = Client("", "")
OFFSET_COMMIT_VERSION_MIN = 9
"""Older versions of OffsetCommit do not have STALE_MEMBER_EPOCH."""


ASSIGNED_TOPIC_BYTES = 260
"""Bytes of the longest possible topic name in a classic member's assignment."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client: Client = UNKNOWN_CLIENT
    topics: tuple[str, ...] = ()
    """Subscribed topics, sorted, so that equal subscriptions compare equal."""
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicProtocols | None = None
    """Set while the member uses the classic protocol."""
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    """Partitions that the member must revoke. It still holds them, because it has not confirmed the revocation."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def to_value(self) -> MemberValue:
        return MemberValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client.client_id,
            client_host=self.client.host,
            topics=self.topics,
            regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic=self.classic,
        )

    def held(self) -> Iterable[PartitionId]:
        for partitions in (self.assigned, self.revoking):
            for topic_id, numbers in partitions.items():
                for number in sorted(numbers):
                    yield topic_id, number


@dataclass(slots=True)
class ConsumerGroup:
    group: str
    epoch: int = 0
    assignment_epoch: int = 0
    metadata_hash: int = 0
    """Hash of the subscribed topics' metadata at the last group epoch."""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    holders: dict[PartitionId, str] = field(default_factory=dict)
    """Member that holds each partition, or must still revoke it."""
    regexes: dict[str, RegexValue] = field(default_factory=dict)
    """Topics that each regular expression matched."""
    seen_revision: int = NO_REVISION
    """Revision of the topics when they were last examined. Not recorded: after a failover they are examined again."""
    news_revision: int = field(default=NO_REVISION, compare=False)
    """Revision of the topics at which they were found to have changed while nothing could be recorded: until it can be,
    not each heartbeat matches all topics against all regular expressions."""
    named: dict[str, frozenset[PartitionId]] = field(default_factory=dict, compare=False)
    """Of the partitions that each member held, those that it named when it last named any: it has received them. Not
    recorded: after a failover members count as not having received what they do not name."""
    untaken: set[str] = field(default_factory=set, compare=False)
    """Members that were told another assignment and have not named just that since. The answer may be lost, and
    librdkafka does not ask for everything after a request that timed out: they are told again in every answer. Not
    recorded: after a failover that is everybody, until they name what they have. Java's client may never do that. To
    hear again what it has is no news to any client."""

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def topics_of(self, member: ConsumerMember) -> tuple[str, ...]:
        if not member.regex:
            return member.topics
        resolved = self.regexes.get(member.regex)
        return member.topics + (resolved.topics if resolved else ())

    def subscribed_topics(self) -> set[str]:
        topics: set[str] = set()
        seen: set[tuple[tuple[str, ...], str | None]] = set()
        for member in self.members.values():
            if (member.topics, member.regex) not in seen:
                seen.add((member.topics, member.regex))
                topics.update(self.topics_of(member))
        return topics

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.subscribed_topics()

    def is_held(self, topic_id: uuid.UUID, number: int) -> bool:
        return (topic_id, number) in self.holders

    def preferred_assignor(self, default: str) -> str:
        """Returns the assignor that most members ask for; of several with equal votes the first in alphabetical
        order."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name)) if votes else default

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group}.")
        return member

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def checked_static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        member = self.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise KafkaError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
            )
        return member

    @property
    def is_small_enough_for_classic(self) -> bool:
        """Whether the group would fit into the one record of a classic group, with the members' metadata and
        assignments."""
        size_bytes = 0
        for member in self.members.values():
            protocols = () if member.classic is None else member.classic.protocols
            size_bytes += max((len(metadata) for _, metadata in protocols), default=0) + RECORD_OVERHEAD_BYTES
            strings = (member.member_id, member.instance_id or "", member.client.client_id, member.client.host)
            size_bytes += sum(len(one.encode()) for one in strings)
            for numbers in self.target.get(member.member_id, {}).values():
                size_bytes += ASSIGNED_TOPIC_BYTES + 4 * len(numbers)
        return size_bytes <= RECORD_BYTES_MAX

    def classic_members_count(self) -> int:
        return sum(member.classic is not None for member in self.members.values())

    def supports_classic(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Whether a classic member has a protocol in common with all other classic members."""
        if protocol_type != embedded.PROTOCOL_TYPE:
            return False
        others = [member.classic for member in self.members.values() if member.classic is not None]
        return any(all(name in dict(other.protocols) for other in others) for name, _ in protocols)

    def set_member(self, member: ConsumerMember) -> None:
        """The later record wins: in a compacted log, a partition may appear at its new holder before it has disappeared
        at the old one."""
        self._forget_holdings(member.member_id)
        before = self.members.get(member.member_id)
        if before is not None and before.instance_id != member.instance_id:
            self._forget_instance(before)
        self.members[member.member_id] = member
        for held in member.held():
            self.holders[held] = member.member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove_member(self, member_id: str) -> None:
        self._forget_holdings(member_id)
        self.named.pop(member_id, None)
        self.untaken.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._forget_instance(member)

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _forget_holdings(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            for held in member.held():
                if self.holders.get(held) == member_id:
                    del self.holders[held]

    def check_offset_commit(self, member_id: str, epoch: int, version: int) -> None:
        if epoch < 0 and self.is_empty:
            return  # an admin, or a consumer that assigns its partitions itself
        member = self.member(member_id)
        if member.classic is None and version < OFFSET_COMMIT_VERSION_MIN:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "Members of a consumer group commit with OffsetCommit version 9 or later.",
            )
        self._check_epoch(member, epoch)

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        self._check_epoch(self.member(member_id or ""), epoch)

    def _check_epoch(self, member: ConsumerMember, epoch: int) -> None:
        if epoch != member.epoch:
            is_classic = member.classic is not None
            raise KafkaError(
                ErrorCode.illegal_generation if is_classic else ErrorCode.stale_member_epoch,
                f"The received epoch {epoch} is not the member's, {member.epoch}.",
            )

    def check_deletable(self) -> None:
        if not self.is_empty:
            raise KafkaError(ErrorCode.non_empty_group, f"Group {self.group} has members.")

    def check_invariants(self) -> None:
        held: dict[PartitionId, str] = {}
        for member in self.members.values():
            for partition in member.held():
                assert partition not in held, f"{partition} is held by {held[partition]} and {member.member_id}"
                held[partition] = member.member_id
            assert member.epoch <= self.epoch or member.epoch == LEAVE_EPOCH, "no member is ahead of its group"
        assert held == self.holders, "holders are those who hold"
        assert set(self.static_members.values()) <= self.members.keys(), "static members are members"
        assert self.assignment_epoch <= self.epoch, "no target is ahead of its group"
        assert self.target.keys() <= self.members.keys(), "targets are for members"
