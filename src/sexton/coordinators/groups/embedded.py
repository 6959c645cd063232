"""The consumer protocol inside the classic one: what members send each other through the coordinator.

To a coordinator these are opaque bytes, with three exceptions: it must know which topics a group reads (offsets of the
others may expire or be deleted), and it must translate when members of the classic protocol and of KIP-848 are in one
group, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sexton.coordinators.wire import Reader, Writer
from sexton.errors import CorruptLogError

PROTOCOL_TYPE = "consumer"
ASSIGNMENT_VERSION_MAX = 3


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
    """An unknown newer version is parsed as the newest known one: each version only adds at the end."""
    try:
        r = Reader(data)
        version = r.i16()
        topics = tuple(r.array(r.string))
        _skip_user_data(r)
        owned = _read_topics(r) if version >= 1 else {}
        generation = r.i32() if version >= 2 else -1
        rack_id = r.nullable_string() if version >= 3 else None
    except CorruptLogError as error:
        raise MalformedProtocolError(str(error)) from error
    if version < 0:
        raise MalformedProtocolError(f"version {version}")
    return Subscription(topics, version, owned, generation, rack_id)


def read_topics(data: bytes) -> tuple[str, ...]:
    """Parses only the part that all versions share."""
    try:
        r = Reader(data)
        r.i16()
        return tuple(r.array(r.string))
    except CorruptLogError as error:
        raise MalformedProtocolError(str(error)) from error


def read_assignment(data: bytes) -> dict[str, list[int]]:
    """Empty bytes are an empty assignment: members get them while nothing has been assigned."""
    if not data:
        return {}
    try:
        r = Reader(data)
        r.i16()
        return _read_topics(r)
    except CorruptLogError as error:
        raise MalformedProtocolError(str(error)) from error


def write_subscription(subscription: Subscription) -> bytes:
    w = Writer()
    w.i16(subscription.version)
    w.array(subscription.topics, w.string)
    w.bytes_(None)
    if subscription.version >= 1:
        _write_topics(w, subscription.owned)
    if subscription.version >= 2:
        w.i32(subscription.generation)
    if subscription.version >= 3:
        w.string(subscription.rack_id)
    return bytes(w.out)


def write_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    w = Writer()
    w.i16(max(0, min(version, ASSIGNMENT_VERSION_MAX)))
    _write_topics(w, partitions)
    w.bytes_(None)
    return bytes(w.out)


def _skip_user_data(r: Reader) -> None:
    r.skip(max(r.i32(), 0))


def _read_topics(r: Reader) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}

    def read() -> None:
        name = r.string()
        topics.setdefault(name, []).extend(r.array(r.i32))

    r.array(read)
    return topics


def _write_topics(w: Writer, topics: Mapping[str, Sequence[int]]) -> None:
    def write(name: str) -> None:
        w.string(name)
        w.array(sorted(topics[name]), w.i32)

    w.array(sorted(topics), write)
