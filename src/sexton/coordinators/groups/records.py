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
from typing import TypeAlias

from sexton.coordinators.wire import Reader, Writer
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

_KEY_NUMBERS: dict[type, int] = {
    OffsetKey: 1,
    ClassicGroupKey: 2,
    EpochKey: 3,
    MemberKey: 5,
    TargetEpochKey: 6,
    TargetKey: 7,
    CurrentKey: 8,
    RegexKey: 16,
}


def encode(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: Key) -> bytes:
    w = Writer()
    w.i16(_KEY_NUMBERS[type(key)])
    w.string(key.group)
    match key:
        case OffsetKey():
            w.string(key.topic)
            w.i32(key.partition)
        case MemberKey() | TargetKey() | CurrentKey():
            w.string(key.member_id)
        case RegexKey():
            w.string(key.regex)
    return bytes(w.out)


def decode_key(data: bytes) -> Key | None:
    """Returns None for a kind of record that is not supported here."""
    r = Reader(data)
    match r.i16():
        case 0 | 1:
            return OffsetKey(r.string(), r.string(), r.i32())
        case 2:
            return ClassicGroupKey(r.string())
        case 3:
            return EpochKey(r.string())
        case 5:
            return MemberKey(r.string(), r.string())
        case 6:
            return TargetEpochKey(r.string())
        case 7:
            return TargetKey(r.string(), r.string())
        case 8:
            return CurrentKey(r.string(), r.string())
        case 16:
            return RegexKey(r.string(), r.string())
    return None


def encode_value(value: Value) -> bytes:
    match value:
        case OffsetValue():
            return _encode_offset(value)
        case ClassicGroupValue():
            return _encode_classic_group(value)
        case MemberValue():
            return _encode_member(value)
    w = Writer(flexible=True)
    w.i16(0)
    match value:
        case EpochValue():
            w.i32(value.epoch)
            hash_ = Writer()
            hash_.i64(value.metadata_hash)
            w.tags({0: bytes(hash_.out)} if value.metadata_hash else None)
            return bytes(w.out)
        case TargetEpochValue():
            w.i32(value.epoch)
        case TargetValue():
            _write_partitions(w, value.partitions)
        case CurrentValue():
            w.i32(value.member_epoch)
            w.i32(value.previous_epoch)
            w.i8(value.state)
            _write_partitions(w, value.assigned)
            _write_partitions(w, value.revoking)
        case RegexValue():
            w.array(value.topics, w.string)
            w.i64(value.version)
            w.i64(value.timestamp_ms)
    w.tags()
    return bytes(w.out)


def decode_value(key: Key, data: bytes) -> Value:
    version = Reader(data).i16()
    match key:
        case OffsetKey():
            return _decode_offset(data, version)
        case ClassicGroupKey():
            return _decode_classic_group(data, version)
        case MemberKey():
            return _decode_member(data)
    r = Reader(data, flexible=True)
    r.i16()
    match key:
        case EpochKey():
            epoch = r.i32()
            hash_ = r.tags().get(0)
            return EpochValue(epoch, Reader(hash_).i64() if hash_ else 0)
        case TargetEpochKey():
            return TargetEpochValue(r.i32())
        case TargetKey():
            return TargetValue(_read_partitions(r))
        case CurrentKey():
            epochs = r.i32(), r.i32()
            return CurrentValue(*epochs, _member_state(r.i8()), _read_partitions(r), _read_partitions(r))
        case RegexKey():
            return RegexValue(tuple(r.array(r.string)), r.i64(), r.i64())


def _member_state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _encode_offset(value: OffsetValue) -> bytes:
    if value.topic_id is not None:
        return _encode_offset_of_topic(value, value.topic_id)
    w = Writer()
    if value.expire_timestamp_ms != NO_TIMESTAMP:  # only version 1 has this field
        w.i16(1)
        w.i64(value.offset)
        w.string(value.metadata)
        w.i64(value.commit_timestamp_ms)
        w.i64(value.expire_timestamp_ms)
    else:
        w.i16(3)
        w.i64(value.offset)
        w.i32(value.leader_epoch)
        w.string(value.metadata)
        w.i64(value.commit_timestamp_ms)
    return bytes(w.out)


def _encode_offset_of_topic(value: OffsetValue, topic_id: uuid.UUID) -> bytes:
    w = Writer(flexible=True)
    w.i16(4)
    w.i64(value.offset)
    w.i32(value.leader_epoch)
    w.string(value.metadata)
    w.i64(value.commit_timestamp_ms)
    w.tags({0: topic_id.bytes})
    return bytes(w.out)


def _decode_offset(data: bytes, version: int) -> OffsetValue:
    r = Reader(data, flexible=version >= 4)
    r.i16()
    offset = r.i64()
    leader_epoch = r.i32() if version >= 3 else NO_EPOCH
    metadata = r.string()
    commit_timestamp_ms = r.i64()
    expire_timestamp_ms = r.i64() if version == 1 else NO_TIMESTAMP
    topic_id = r.tags().get(0)
    return OffsetValue(
        offset,
        metadata,
        commit_timestamp_ms,
        leader_epoch,
        expire_timestamp_ms,
        Reader(topic_id).uuid() if topic_id else None,
    )


def _encode_classic_group(value: ClassicGroupValue) -> bytes:
    w = Writer()
    w.i16(3)
    w.string(value.protocol_type)
    w.i32(value.generation)
    w.string(value.protocol)
    w.string(value.leader)
    w.i64(value.state_timestamp_ms)

    def write(member: ClassicMemberValue) -> None:
        w.string(member.member_id)
        w.string(member.instance_id)
        w.string(member.client_id)
        w.string(member.client_host)
        w.i32(member.rebalance_timeout_ms)
        w.i32(member.session_timeout_ms)
        w.bytes_(member.subscription)
        w.bytes_(member.assignment)

    w.array(value.members, write)
    return bytes(w.out)


def _decode_classic_group(data: bytes, version: int) -> ClassicGroupValue:
    r = Reader(data, flexible=version >= 4)
    r.i16()

    def read() -> ClassicMemberValue:
        member_id = r.string()
        instance_id = r.nullable_string() if version >= 3 else None
        client_id, client_host = r.string(), r.string()
        rebalance_timeout_ms = r.i32() if version >= 1 else -1
        session_timeout_ms = r.i32()
        if rebalance_timeout_ms == -1:
            rebalance_timeout_ms = session_timeout_ms
        subscription, assignment = r.bytes_(), r.bytes_()
        r.tags()
        return ClassicMemberValue(
            member_id,
            instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms,
            session_timeout_ms,
            subscription,
            assignment,
        )

    protocol_type, generation = r.string(), r.i32()
    protocol, leader = r.nullable_string(), r.nullable_string()
    state_timestamp_ms = r.i64() if version >= 2 else NO_TIMESTAMP
    return ClassicGroupValue(protocol_type, generation, protocol, leader, state_timestamp_ms, tuple(r.array(read)))


def _encode_member(value: MemberValue) -> bytes:
    w = Writer(flexible=True)
    w.i16(0)
    w.string(value.instance_id)
    w.string(value.rack_id)
    w.string(value.client_id)
    w.string(value.client_host)
    w.array(value.topics, w.string)
    w.string(value.regex)
    w.i32(value.rebalance_timeout_ms)
    w.string(value.server_assignor)
    w.tags({0: _encode_classic_protocols(value.classic)} if value.classic else None)
    return bytes(w.out)


def _encode_classic_protocols(classic: ClassicProtocols) -> bytes:
    w = Writer(flexible=True)
    w.i8(1)  # a nullable structure begins with a byte that says whether it is there

    def write(protocol: tuple[str, bytes]) -> None:
        w.string(protocol[0])
        w.bytes_(protocol[1])
        w.tags()

    w.i32(classic.session_timeout_ms)
    w.array(classic.protocols, write)
    w.tags()
    return bytes(w.out)


def _decode_member(data: bytes) -> MemberValue:
    r = Reader(data, flexible=True)
    r.i16()
    instance_id, rack_id = r.nullable_string(), r.nullable_string()
    client_id, client_host = r.string(), r.string()
    topics = tuple(r.array(r.string))
    regex = r.nullable_string()
    rebalance_timeout_ms = r.i32()
    server_assignor = r.nullable_string()
    classic = r.tags().get(0)
    return MemberValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_timeout_ms,
        server_assignor,
        _decode_classic_protocols(classic) if classic else None,
    )


def _decode_classic_protocols(data: bytes) -> ClassicProtocols | None:
    r = Reader(data, flexible=True)
    if r.i8() < 0:
        return None

    def read() -> tuple[str, bytes]:
        protocol = r.string(), r.bytes_()
        r.tags()
        return protocol

    return ClassicProtocols(r.i32(), tuple(r.array(read)))


def _write_partitions(w: Writer, partitions: Partitions) -> None:
    def write(topic_id: uuid.UUID) -> None:
        w.uuid(topic_id)
        w.array(sorted(partitions[topic_id]), w.i32)
        w.tags()

    w.array(sorted(partitions), write)


def _read_partitions(r: Reader) -> dict[uuid.UUID, frozenset[int]]:
    def read() -> tuple[uuid.UUID, frozenset[int]]:
        entry = r.uuid(), frozenset(r.array(r.i32))
        r.tags()
        return entry

    return {topic_id: numbers for topic_id, numbers in r.array(read) if numbers}
