"""What a compactor is told to do, and what it answers. JSON: few messages, and people can read them."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sexton.compaction.rules import Terms


@dataclass(frozen=True, slots=True)
class PlannedProducer:
    """A live producer: its last batch below the bound stays, empty if need be."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int
    last_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    plan_id: str
    broker_id: int
    topic: str
    topic_id: str
    partition: int
    incarnation: str
    generation: int
    directory: str
    """Of the partition, on the broker's machine."""
    staging: str
    """Where the new segments go: a directory on the same volume."""
    segments: tuple[tuple[int, int], ...]
    """Base offset and size of all up to the high watermark, in order. Those at or above the bound only say how
    transactions ended."""
    bound: int
    first_dirty_offset: int
    high_watermark: int
    now_ms: int
    delete_retention_ms: int
    mtro: int
    mxro: int
    settle_below: int
    is_independent: bool
    segment_bytes: int
    index_interval_bytes: int
    producers: tuple[PlannedProducer, ...] = ()
    host: str = ""
    port: int = 0
    """Of the broker: filled in by the compactor, which knows how it reached it."""

    @property
    def terms(self) -> Terms:
        from sexton.compaction.rules import Terms  # NumPy comes along, and a broker starts without it

        terms = Terms(self.now_ms, self.bound, self.delete_retention_ms, self.mtro, self.mxro, self.settle_below)
        return terms.independent() if self.is_independent else terms

    @property
    def input_bytes(self) -> int:
        return sum(size for base, size in self.segments if base < self.bound)


@dataclass(frozen=True, slots=True)
class NewSegment:
    base_offset: int
    end_offset: int
    old_base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PassResult:
    """What was staged. Nothing at all is a result, too: then nothing had to change."""

    plan_id: str
    segments: tuple[NewSegment, ...] = ()
    fates: Mapping[str, int] = field(default_factory=dict)
    held_back_bytes: int = 0
    """Of tombstones and markers that wait for replicas."""


@dataclass(frozen=True, slots=True)
class Committed:
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


def encode(message: Any) -> bytes:
    return json.dumps(message, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a message")


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """Raises ValueError on anything but a JSON object."""
    found = json.loads(bytes(data))
    if not isinstance(found, dict):
        raise ValueError("a message is a JSON object")
    return found


def decode_plan(fields: Mapping[str, Any]) -> Plan:
    known = {**fields}
    known["segments"] = tuple((int(base), int(size)) for base, size in fields["segments"])
    known["producers"] = tuple(PlannedProducer(**one) for one in fields["producers"])
    return Plan(**known)


def decode_result(fields: Mapping[str, Any]) -> PassResult:
    """Raises ValueError, KeyError or TypeError on what is no result."""
    segments = tuple(
        NewSegment(_offset(one["base_offset"]), _offset(one["end_offset"]), _offsets(one["old_base_offsets"]))
        for one in fields["segments"]
    )
    fates = {str(name): int(count) for name, count in fields["fates"].items()}
    return PassResult(str(fields["plan_id"]), segments, fates, int(fields.get("held_back_bytes", 0)))


def _offsets(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_offset(value) for value in values)


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no offset")
    return value
