"""Requests to a group coordinator and its responses, independent of API versions: the API modules translate.

Responses have an error code of their own because a waiting request (JoinGroup, SyncGroup) may be refused long after the
call that brought it has returned.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from sexton.coordinators.groups.records import Partitions
from sexton.protocol.errors import ErrorCode
from sexton.types import NO_OFFSET

NO_MEMBER_ID = ""
NO_GENERATION = -1

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member leaves and will be back: it keeps its partitions until the session times out."""


@dataclass(frozen=True, slots=True)
class Client:
    """The client that sent a request, for people who inspect the group."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class JoinRequest:
    group: str
    member_id: str
    instance_id: str | None
    client: Client
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_member_id: bool = True
    """From v4 on (KIP-394): a new dynamic member first gets a member id and joins with it."""
    can_skip_assignment: bool = True
    """From v9 on (KIP-814): a returning static leader gets the members without having to assign again."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: ErrorCode = ErrorCode.none
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    group: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group: str
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatRequest:
    """A heartbeat. None (and -1) mean unchanged since the last one."""

    group: str
    member_id: str
    member_epoch: int
    client: Client
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    requires_member_id: bool = True
    """From v1 on (KIP-1082): the client chooses its own member id."""

    @property
    def is_full(self) -> bool:
        """Whether the member wants its whole assignment again: when it joins and after any error."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None if the assignment has not changed."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    group: str
    member_id: str
    instance_id: str | None
    generation_or_epoch: int
    topics: Sequence[tuple[str, Sequence[CommittedOffset]]]
    version: int
    retention_ms: int = -1


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    group: str
    member_id: str | None = None
    member_epoch: int = -1
    topics: Sequence[tuple[str, Sequence[int]]] | None = None
    """None means all topics."""
    require_stable: bool = False
    """Return UNSTABLE_OFFSET_COMMIT for a partition with a pending transactional offset instead of the offset that it
    may replace (KIP-447)."""


class FetchedOffset(NamedTuple):
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class DescribedClassicMember:
    member_id: str
    instance_id: str | None
    client: Client
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedClassicGroup:
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedClassicMember, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumerMember:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client: Client
    topics: tuple[str, ...]
    regex: str | None
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumerMember, ...]
    topic_names: Mapping[uuid.UUID, str]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group: str
    protocol_type: str
    state: str
    type: str


OffsetResults: TypeAlias = list[tuple[str, list[tuple[int, ErrorCode]]]]
ParkedAnswer: TypeAlias = JoinAnswer | SyncAnswer
