"""The consumer protocol inside the classic one: what members send each other through the coordinator.

To a coordinator these are opaque bytes, with three exceptions: it must know which topics a group reads (offsets of the
others may expire or be deleted), and it must translate when members of the classic protocol and of KIP-848 are in one
group, in both directions.

A version of 16 bits comes first. An unknown newer version is read as the newest known one: each version only adds at
the end.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.consumer_protocol_assignment import v0 as assignment_v0
from kio.schema.consumer_protocol_subscription import v0, v1, v2, v3

from sexton.protocol.encoder import encoder
from sexton.protocol.messages import MalformedMessageError, entity_decoder
from sexton.protocol.record_schemas import INT32, STRING, STRUCT, entity_of, schema

PROTOCOL_TYPE: Final = "consumer"
ASSIGNMENT_VERSION_MAX: Final = 3
"""All versions of an assignment have the same fields."""

_VERSION = struct.Struct(">h")
_SUBSCRIPTIONS = [
    v0.data.ConsumerProtocolSubscription,
    v1.data.ConsumerProtocolSubscription,
    v2.data.ConsumerProtocolSubscription,
    v3.data.ConsumerProtocolSubscription,
]
_decode_subscription = [entity_decoder(kind) for kind in _SUBSCRIPTIONS]
_encode_subscription = [encoder(kind) for kind in _SUBSCRIPTIONS]


@schema
class _Topics:
    """The part of a subscription that all versions share."""

    topics: tuple[str, ...] = field(metadata=STRING)


@schema
class _AssignedTopic:
    topic: str = field(metadata=STRING)
    partitions: tuple[int, ...] = field(metadata=INT32)


@schema
class _Assigned:
    """An assignment without its user data, which may be missing."""

    assigned_partitions: tuple[_AssignedTopic, ...] = field(metadata=STRUCT)


_decode_topics = entity_decoder(entity_of(_Topics))
_decode_assignment = entity_decoder(entity_of(_Assigned))
_encode_assignment = encoder(assignment_v0.data.ConsumerProtocolAssignment)


class MalformedProtocolError(Exception):
    """The bytes are not the consumer protocol, whatever the protocol type says."""


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: tuple[str, ...]
    version: int = 0
    owned: Mapping[str, Sequence[int]] = field(default_factory=dict)
    generation: int = -1
    rack_id: str | None = None


def read_subscription(data: bytes) -> Subscription:
    version = _version_of(data)
    found = _read(_decode_subscription[min(version, len(_SUBSCRIPTIONS) - 1)], data)
    return Subscription(
        found.topics,
        version,
        _by_topic(found.owned_partitions) if version >= 1 else {},
        found.generation_id if version >= 2 else -1,
        found.rack_id if version >= 3 else None,
    )


def read_topics(data: bytes) -> tuple[str, ...]:
    """Parses only the part that all versions share."""
    topics: tuple[str, ...] = _read(_decode_topics, data).topics
    return topics


def read_assignment(data: bytes) -> dict[str, list[int]]:
    """Empty bytes are an empty assignment: members get them while nothing has been assigned."""
    if not data:
        return {}
    return _by_topic(_read(_decode_assignment, data).assigned_partitions)


def write_subscription(subscription: Subscription) -> bytes:
    out = bytearray(_VERSION.pack(subscription.version))
    values = {
        "topics": subscription.topics,
        "owned_partitions": _listed(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": subscription.rack_id,
    }
    _encode_subscription[subscription.version](out, values)
    return bytes(out)


def write_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    out = bytearray(_VERSION.pack(max(0, min(version, ASSIGNMENT_VERSION_MAX))))
    _encode_assignment(out, {"assigned_partitions": _listed(partitions)})
    return bytes(out)


def _version_of(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedProtocolError("too short to have a version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise MalformedProtocolError(f"version {version}")
    return int(version)


def _read(decode: Callable[[memoryview, int], Any], data: bytes) -> Any:
    try:
        return decode(memoryview(data), _VERSION.size)
    except MalformedMessageError as error:
        raise MalformedProtocolError(str(error)) from error


def _by_topic(listed: Iterable[Any]) -> dict[str, list[int]]:
    """A topic may be listed more than once."""
    topics: dict[str, list[int]] = {}
    for one in listed:
        topics.setdefault(one.topic, []).extend(one.partitions)
    return topics


def _listed(topics: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    return [{"topic": name, "partitions": sorted(topics[name])} for name in sorted(topics)]
