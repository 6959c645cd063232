"""What the parties of a compaction agree on: broker and compactor on the plan and its result, leader and follower on
what the follower may adopt. Sent as JSON (`protocol.private`): there are few messages, and people can read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sexton.compaction.due import Leftovers, decode_leftovers
from sexton.compaction.rules import LastOfProducer
from sexton.compaction.terms import Terms
from sexton.compaction.watermarks.replica import Pair

READ_BYTES_MAX: Final = 16 << 20
"""Bytes of a segment in one response. They are sent by sendfile, so this bounds how long one reader occupies a
connection."""

WRITE_BYTES_MAX: Final = 8 << 20
"""Bytes of a new segment in one request: the broker holds them in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    plan_id: str
    broker_id: int
    topic: str
    topic_id: str
    partition: int
    incarnation: str
    generation: int
    directory: str
    """The partition's directory on the broker's machine."""
    staging: str
    """The directory for the new segments, on the same volume."""
    segments: tuple[tuple[int, int], ...]
    """Base offset and size of all segments up to the high watermark, in order. Segments at or above the bound are read
    only for the outcomes of transactions."""
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
    producers: tuple[LastOfProducer, ...] = ()
    """Live producers whose last batch may lie below the bound."""
    host: str = ""
    port: int = 0
    """Address of the broker: filled in by the compactor, which knows how it reached it."""

    @property
    def terms(self) -> Terms:
        terms = Terms(
            now_ms=self.now_ms,
            bound=self.bound,
            delete_retention_ms=self.delete_retention_ms,
            mtro=self.mtro,
            mxro=self.mxro,
            settle_below=self.settle_below,
        )
        return terms.independent() if self.is_independent else terms

    @property
    def input_bytes(self) -> int:
        return sum(size for base, size in self.segments if base < self.bound)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A new segment, and the closed, adjacent old ones that it replaces."""

    base_offset: int
    end_offset: int
    """The offset after its last batch. For an adopted segment it is determined by validation."""
    old_base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PassResult:
    """The staged segments. An empty result means that nothing had to change."""

    plan_id: str
    segments: tuple[NewSegment, ...] = ()
    fates: Mapping[str, int] = field(default_factory=dict)
    held_back_bytes: int = 0
    """Bytes of tombstones and markers that wait for replicas."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A log before and after new segments were swapped in, made of its own or adopted."""

    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


class OfferedSegment(NamedTuple):
    """A closed segment of a leader, for its followers to copy."""

    base_offset: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A finished compaction as a whole, with the watermarks that allowed its removals."""

    generation: int
    bound: int
    log_start_offset: int
    planned_high_watermark: int
    mtro: int
    mxro: int
    fence_below: int
    made_ms: int
    segments: tuple[OfferedSegment, ...]
    leftovers: Leftovers | None

    @property
    def removable(self) -> Pair:
        return Pair(self.mtro, self.mxro)


def decode_plan(fields: Mapping[str, Any]) -> Plan:
    known = {**fields}
    known["segments"] = tuple((int(base), int(size)) for base, size in fields["segments"])
    known["producers"] = tuple(
        LastOfProducer(int(one["producer_id"]), int(one["producer_epoch"]), int(one["last_data_offset"]))
        for one in fields["producers"]
    )
    return Plan(**known)


def decode_result(fields: Mapping[str, Any]) -> PassResult:
    """Raises ValueError, KeyError or TypeError if malformed."""
    segments = tuple(
        NewSegment(_offset(one["base_offset"]), _offset(one["end_offset"]), _offsets(one["old_base_offsets"]))
        for one in fields["segments"]
    )
    fates = {str(name): int(count) for name, count in fields["fates"].items()}
    return PassResult(str(fields["plan_id"]), segments, fates, int(fields.get("held_back_bytes", 0)))


def decode_offer(fields: Mapping[str, Any]) -> Offer:
    """Raises ValueError, KeyError or TypeError if malformed."""
    known = {**fields}
    known["segments"] = tuple(OfferedSegment(*map(int, one)) for one in fields["segments"])
    left = fields["leftovers"]
    known["leftovers"] = None if left is None else decode_leftovers(left)
    return Offer(**known)


def _offsets(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_offset(value) for value in values)


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no offset")
    return value
