"""Kafka's schemas of the records of `__consumer_offsets`. The names are those of its JSON files.

The version of a key says what the record is about, that of a value how it is written.
"""

import uuid
from dataclasses import field
from typing import Final

from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.record_schemas import (
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    STRUCT,
    UUID,
    RecordSchema,
    schema,
    since,
    tagged,
)
from sexton.types import NO_EPOCH, NO_TIMESTAMP

# Keys


@schema
class OffsetCommitKey:
    group: str = field(metadata=STRING)
    topic: str = field(metadata=STRING)
    partition: int = field(metadata=INT32)


@schema
class GroupKey:
    """Key of the facts that a group has once (GroupMetadataKey, ConsumerGroupMetadataKey and others)."""

    group: str = field(metadata=STRING)


@schema
class GroupMemberKey:
    """Key of the facts about a member (ConsumerGroupMemberMetadataKey and others)."""

    group: str = field(metadata=STRING)
    member_id: str = field(metadata=STRING)


@schema
class ConsumerGroupRegularExpressionKey:
    group: str = field(metadata=STRING)
    regex: str = field(metadata=STRING)


# Values


@schema
class OffsetCommitValue:
    offset: int = field(metadata=INT64)
    leader_epoch: int = field(metadata=since(3, INT32, NO_EPOCH))
    metadata: str = field(metadata=STRING)
    commit_timestamp: int = field(metadata=INT64)
    expire_timestamp: int = field(metadata=since(1, INT64, NO_TIMESTAMP, until=1))
    topic_id: uuid.UUID | None = field(metadata=tagged(0, 4, UUID, None))


@schema
class MemberMetadata:
    member_id: str = field(metadata=STRING)
    group_instance_id: str | None = field(metadata=since(3, STRING, None))
    client_id: str = field(metadata=STRING)
    client_host: str = field(metadata=STRING)
    rebalance_timeout: int = field(metadata=since(1, INT32, -1))
    session_timeout: int = field(metadata=INT32)
    subscription: bytes = field(metadata=BYTES)
    assignment: bytes = field(metadata=BYTES)


@schema
class GroupMetadataValue:
    protocol_type: str = field(metadata=STRING)
    generation: int = field(metadata=INT32)
    protocol: str | None = field(metadata=STRING)
    leader: str | None = field(metadata=STRING)
    current_state_timestamp: int = field(metadata=since(2, INT64, NO_TIMESTAMP))
    members: tuple[MemberMetadata, ...] = field(metadata=STRUCT)


@schema
class ConsumerGroupMetadataValue:
    epoch: int = field(metadata=INT32)
    metadata_hash: int = field(metadata=tagged(0, 0, INT64, 0))


@schema
class ClassicProtocol:
    name: str = field(metadata=STRING)
    metadata: bytes = field(metadata=BYTES)


@schema
class ClassicMemberMetadata:
    session_timeout_ms: int = field(metadata=INT32)
    supported_protocols: tuple[ClassicProtocol, ...] = field(metadata=STRUCT)


@schema
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = field(metadata=STRING)
    rack_id: str | None = field(metadata=STRING)
    client_id: str = field(metadata=STRING)
    client_host: str = field(metadata=STRING)
    subscribed_topic_names: tuple[str, ...] = field(metadata=STRING)
    subscribed_topic_regex: str | None = field(metadata=STRING)
    rebalance_timeout_ms: int = field(metadata=INT32)
    server_assignor: str | None = field(metadata=STRING)
    classic_member_metadata: ClassicMemberMetadata | None = field(metadata=tagged(0, 0, STRUCT, None))


@schema
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = field(metadata=INT32)


@schema
class TopicPartitions:
    topic_id: uuid.UUID | None = field(metadata=UUID)
    partitions: tuple[int, ...] = field(metadata=INT32)


@schema
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartitions, ...] = field(metadata=STRUCT)


@schema
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int = field(metadata=INT32)
    previous_member_epoch: int = field(metadata=INT32)
    state: int = field(metadata=INT8)
    assigned_partitions: tuple[TopicPartitions, ...] = field(metadata=STRUCT)
    partitions_pending_revocation: tuple[TopicPartitions, ...] = field(metadata=STRUCT)


@schema
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...] = field(metadata=STRING)
    version: int = field(metadata=INT64)
    timestamp: int = field(metadata=INT64)


def _flexible(declared: type) -> RecordSchema:
    return RecordSchema(declared, OFFSETS_TOPIC, flexible_since=0)


OFFSET_KEY: Final = RecordSchema(OffsetCommitKey, OFFSETS_TOPIC)
GROUP_KEY: Final = RecordSchema(GroupKey, OFFSETS_TOPIC)
MEMBER_KEY: Final = RecordSchema(GroupMemberKey, OFFSETS_TOPIC)
REGEX_KEY: Final = RecordSchema(ConsumerGroupRegularExpressionKey, OFFSETS_TOPIC)

OFFSET: Final = RecordSchema(OffsetCommitValue, OFFSETS_TOPIC, newest=4, flexible_since=4)
CLASSIC_GROUP: Final = RecordSchema(GroupMetadataValue, OFFSETS_TOPIC, newest=4, flexible_since=4)
EPOCH: Final = _flexible(ConsumerGroupMetadataValue)
MEMBER: Final = _flexible(ConsumerGroupMemberMetadataValue)
TARGET_EPOCH: Final = _flexible(ConsumerGroupTargetAssignmentMetadataValue)
TARGET: Final = _flexible(ConsumerGroupTargetAssignmentMemberValue)
CURRENT: Final = _flexible(ConsumerGroupCurrentMemberAssignmentValue)
REGEX: Final = _flexible(ConsumerGroupRegularExpressionValue)
