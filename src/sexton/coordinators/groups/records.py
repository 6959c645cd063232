"""The records of `__consumer_offsets`, byte for byte as Kafka writes them.

A key begins with a 16-bit number that says what the record is about; a value begins with its own version. The topic is
compacted: each key is one fact, and a tombstone deletes it. `DumpLogSegments --offsets-decoder` reads what is written
here, and what Kafka wrote is read here (a Kafka cluster's group state can be taken over by copying the topic).

Not supported, because nothing here needs it: the deprecated partition metadata of a consumer group (key 4, replaced by
a hash since Kafka 4.1), share groups and streams groups. Their records are skipped when read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from sexton.coordinators.groups import schemas
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.record_schemas import RecordSchema, version_of
from sexton.types import NO_EPOCH, NO_TIMESTAMP

Partitions: TypeAlias = Mapping[uuid.UUID, frozenset[int]]
"""Partition numbers by topic id. Topics without partitions are left out, so that equal assignments compare equal."""


class MemberState(IntEnum):
    """State of a KIP-848 member; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """A state written by a later version of the software."""


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetValue:
    offset: int
    metadata: str
    commit_timestamp_ms: int
    leader_epoch: int = NO_EPOCH
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Set only if the client (OffsetCommit up to v4) asked for a retention of its own."""
    topic_id: uuid.UUID | None = None
    """Id of the topic at the time of the commit. None in records of Kafka before 4.1, and if `expire_timestamp_ms` is
    set: one version of the record has the one field, a later version the other."""


@dataclass(frozen=True, slots=True)
class ClassicGroupKey:
    group: str


@dataclass(frozen=True, slots=True)
class ClassicMemberValue:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicGroupValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[ClassicMemberValue, ...]


@dataclass(frozen=True, slots=True)
class EpochKey:
    group: str


@dataclass(frozen=True, slots=True)
class EpochValue:
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class MemberKey:
    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """Timeout and protocols of a consumer group's member that still uses the classic protocol, from its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberValue:
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicProtocols | None = None


@dataclass(frozen=True, slots=True)
class TargetEpochKey:
    group: str


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    epoch: int


@dataclass(frozen=True, slots=True)
class TargetKey:
    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetValue:
    partitions: Partitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CurrentKey:
    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentValue:
    member_epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Partitions
    revoking: Partitions


@dataclass(frozen=True, slots=True)
class RegexKey:
    group: str
    regex: str


@dataclass(frozen=True, slots=True)
class RegexValue:
    topics: tuple[str, ...]
    version: int
    """Revision of the topics against which it was resolved."""
    timestamp_ms: int


Key: TypeAlias = OffsetKey | ClassicGroupKey | EpochKey | MemberKey | TargetEpochKey | TargetKey | CurrentKey | RegexKey
Value: TypeAlias = (
    OffsetValue
    | ClassicGroupValue
    | EpochValue
    | MemberValue
    | TargetEpochValue
    | TargetValue
    | CurrentValue
    | RegexValue
)
Record: TypeAlias = tuple[Key, Value | None]

_KEYS: dict[type, tuple[int, RecordSchema]] = {
    OffsetKey: (1, schemas.OFFSET_KEY),
    ClassicGroupKey: (2, schemas.GROUP_KEY),
    EpochKey: (3, schemas.GROUP_KEY),
    MemberKey: (5, schemas.MEMBER_KEY),
    TargetEpochKey: (6, schemas.GROUP_KEY),
    TargetKey: (7, schemas.MEMBER_KEY),
    CurrentKey: (8, schemas.MEMBER_KEY),
    RegexKey: (16, schemas.REGEX_KEY),
}
_KEYS_BY_NUMBER: dict[int, tuple[type, RecordSchema]] = {
    number: (kind, schema) for kind, (number, schema) in _KEYS.items()
}
_KEYS_BY_NUMBER[0] = _KEYS_BY_NUMBER[1]


def encode(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: Key) -> bytes:
    number, schema = _KEYS[type(key)]
    match key:
        case OffsetKey():
            return schema.encode(number, {"group": key.group, "topic": key.topic, "partition": key.partition})
        case MemberKey() | TargetKey() | CurrentKey():
            return schema.encode(number, {"group": key.group, "member_id": key.member_id})
        case RegexKey():
            return schema.encode(number, {"group": key.group, "regex": key.regex})
        case ClassicGroupKey() | EpochKey() | TargetEpochKey():
            return schema.encode(number, {"group": key.group})


def decode_key(data: bytes) -> Key | None:
    """Returns None for a kind of record that is not supported here."""
    found = _KEYS_BY_NUMBER.get(version_of(data, OFFSETS_TOPIC))
    if found is None:
        return None
    kind, schema = found
    key: Key = kind(**_by_name(schema.decode(data)))
    return key


def _by_name(entity: Any) -> dict[str, Any]:
    return {name: getattr(entity, name) for name in entity.__slots__}


def encode_value(value: Value) -> bytes:
    match value:
        case OffsetValue():
            return _encode_offset(value)
        case ClassicGroupValue():
            return _encode_classic_group(value)
        case EpochValue():
            return schemas.EPOCH.encode(0, _by_name(value))
        case MemberValue():
            return _encode_member(value)
        case TargetEpochValue():
            return schemas.TARGET_EPOCH.encode(0, {"assignment_epoch": value.epoch})
        case TargetValue():
            return schemas.TARGET.encode(0, {"topic_partitions": _listed(value.partitions)})
        case CurrentValue():
            return _encode_current(value)
        case RegexValue():
            fields = {"topics": value.topics, "version": value.version, "timestamp": value.timestamp_ms}
            return schemas.REGEX.encode(0, fields)


def decode_value(key: Key, data: bytes) -> Value:
    match key:
        case OffsetKey():
            return _decode_offset(data)
        case ClassicGroupKey():
            return _decode_classic_group(data)
        case EpochKey():
            return EpochValue(**_by_name(schemas.EPOCH.decode(data)))
        case MemberKey():
            return _decode_member(data)
        case TargetEpochKey():
            return TargetEpochValue(schemas.TARGET_EPOCH.decode(data).assignment_epoch)
        case TargetKey():
            return TargetValue(_partitions(schemas.TARGET.decode(data).topic_partitions))
        case CurrentKey():
            return _decode_current(data)
        case RegexKey():
            found = schemas.REGEX.decode(data)
            return RegexValue(found.topics, found.version, found.timestamp)


def _encode_offset(value: OffsetValue) -> bytes:
    if value.topic_id is not None:
        version = 4
    elif value.expire_timestamp_ms != NO_TIMESTAMP:
        version = 1  # only this version has the field
    else:
        version = 3
    return schemas.OFFSET.encode(
        version,
        {
            "offset": value.offset,
            "leader_epoch": value.leader_epoch,
            "metadata": value.metadata,
            "commit_timestamp": value.commit_timestamp_ms,
            "expire_timestamp": value.expire_timestamp_ms,
            "topic_id": value.topic_id,
        },
    )


def _decode_offset(data: bytes) -> OffsetValue:
    found = schemas.OFFSET.decode(data)
    return OffsetValue(
        offset=found.offset,
        metadata=found.metadata,
        commit_timestamp_ms=found.commit_timestamp,
        leader_epoch=found.leader_epoch,
        expire_timestamp_ms=found.expire_timestamp,
        topic_id=found.topic_id,
    )


def _encode_classic_group(value: ClassicGroupValue) -> bytes:
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "rebalance_timeout": member.rebalance_timeout_ms,
            "session_timeout": member.session_timeout_ms,
            "subscription": member.subscription,
            "assignment": member.assignment,
        }
        for member in value.members
    ]
    return schemas.CLASSIC_GROUP.encode(
        3,
        {
            "protocol_type": value.protocol_type,
            "generation": value.generation,
            "protocol": value.protocol,
            "leader": value.leader,
            "current_state_timestamp": value.state_timestamp_ms,
            "members": members,
        },
    )


def _decode_classic_group(data: bytes) -> ClassicGroupValue:
    found = schemas.CLASSIC_GROUP.decode(data)
    members = tuple(
        ClassicMemberValue(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout,
            session_timeout_ms=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in found.members
    )
    return ClassicGroupValue(
        protocol_type=found.protocol_type,
        generation=found.generation,
        protocol=found.protocol,
        leader=found.leader,
        state_timestamp_ms=found.current_state_timestamp,
        members=members,
    )


def _encode_member(value: MemberValue) -> bytes:
    classic = value.classic and {
        "session_timeout_ms": value.classic.session_timeout_ms,
        "supported_protocols": [{"name": name, "metadata": metadata} for name, metadata in value.classic.protocols],
    }
    return schemas.MEMBER.encode(
        0,
        {
            "instance_id": value.instance_id,
            "rack_id": value.rack_id,
            "client_id": value.client_id,
            "client_host": value.client_host,
            "subscribed_topic_names": value.topics,
            "subscribed_topic_regex": value.regex,
            "rebalance_timeout_ms": value.rebalance_timeout_ms,
            "server_assignor": value.server_assignor,
            "classic_member_metadata": classic,
        },
    )


def _decode_member(data: bytes) -> MemberValue:
    found = schemas.MEMBER.decode(data)
    classic = found.classic_member_metadata
    return MemberValue(
        instance_id=found.instance_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topics=found.subscribed_topic_names,
        regex=found.subscribed_topic_regex,
        rebalance_timeout_ms=found.rebalance_timeout_ms,
        server_assignor=found.server_assignor,
        classic=classic
        and ClassicProtocols(
            classic.session_timeout_ms, tuple((one.name, one.metadata) for one in classic.supported_protocols)
        ),
    )


def _encode_current(value: CurrentValue) -> bytes:
    return schemas.CURRENT.encode(
        0,
        {
            "member_epoch": value.member_epoch,
            "previous_member_epoch": value.previous_epoch,
            "state": value.state,
            "assigned_partitions": _listed(value.assigned),
            "partitions_pending_revocation": _listed(value.revoking),
        },
    )


def _decode_current(data: bytes) -> CurrentValue:
    found = schemas.CURRENT.decode(data)
    return CurrentValue(
        found.member_epoch,
        found.previous_member_epoch,
        MemberState(found.state) if found.state in _MEMBER_STATES else MemberState.UNKNOWN,
        _partitions(found.assigned_partitions),
        _partitions(found.partitions_pending_revocation),
    )


_MEMBER_STATES = frozenset(MemberState)


def _listed(partitions: Partitions) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": sorted(partitions[topic_id])} for topic_id in sorted(partitions)]


def _partitions(listed: Any) -> dict[uuid.UUID, frozenset[int]]:
    return {topic.topic_id: frozenset(topic.partitions) for topic in listed if topic.partitions}
