"""`ReplicaFetch`, the one message that followers send to leaders.

It is Sexton's own (API key 30000, never advertised), because it must carry what Kafka's Fetch has no field for: the
*durable* end of the follower's log, the leader's whole epoch history, and, since version 1, the watermarks of
coordinated compaction (`compaction.watermarks`). It is incremental by connection: a request names only the partitions
whose state changed since the connection's last request, a response only the partitions that have something new. A new
connection starts from nothing, so there is no session to expire or to agree on.

Since version 2 a response names the follower's log that it is for, and where that log ended when the request was sent:
by the time the response arrives, the follower may have another log for the partition, or may have truncated this one,
and then the records do not belong there.

    request    broker id, broker epoch, wait, limits; then per partition: what the follower holds and how far it has
               compacted it, or that it stops following
    response   per partition: error, or which log it is for and from which offset on, high watermark, log start,
               log end, what may be removed, the epoch history if it differs, batches
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from sexton.compaction.watermarks.replica import NO_CLAIM, NOTHING, Claim, Pair
from sexton.ports.disk import Buffer
from sexton.ports.network import Part
from sexton.protocol.errors import ErrorCode
from sexton.records.checkpoints import EpochEntry
from sexton.types import NO_EPOCH, LeaderEpoch

VERSION = 2

_REQUEST = struct.Struct(">iqiiii")
_HELD = struct.Struct(">16siBiqiI16siqqqi")
_ANSWER = struct.Struct(">i")
_PARTITION_DATA = struct.Struct(">16sihi16sqqqqiqqqqii")
_EPOCH = struct.Struct(">iq")

HISTORY_UNCHANGED = -1

NO_INCARNATION = uuid.UUID(int=0)
"""Stands for a replica that was never given an incarnation."""

_WANTED, _EMPTY = 1, 2


class FetchPartition(NamedTuple):
    """A follower's state of one partition, in the request: it holds everything below `end_offset`, on disk."""

    topic_id: uuid.UUID
    partition: int
    is_wanted: bool
    """False: the follower no longer follows this broker for this partition."""
    leader_epoch: LeaderEpoch
    end_offset: int
    last_epoch: LeaderEpoch
    """Leader epoch of the last record below `end_offset`; -1 for an empty log."""
    history_digest: int
    incarnation: uuid.UUID = NO_INCARNATION
    """Incarnation of the log that these values describe."""
    generation: int = 0
    compacted: Pair = NOTHING
    """MCCO and MXFO of the follower, durable."""
    claim: Claim = NO_CLAIM
    """What the follower's watermarks say about the partition's log. What it holds may have been compacted with all of
    that known, so it joins the ISR only when its log reaches the claimed end, and only a leader whose log satisfies the
    claim may be followed."""
    is_empty: bool = False
    """True if the log holds no records, and so nothing that could contradict the leader's log."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    broker_id: int
    broker_epoch: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    held: Sequence[FetchPartition]


class PartitionData(NamedTuple):
    """The leader's response for one partition. On the leader's side `records` may be slices of files."""

    topic_id: uuid.UUID
    partition: int
    error: ErrorCode
    leader_epoch: LeaderEpoch = NO_EPOCH
    incarnation: uuid.UUID = NO_INCARNATION
    """Incarnation of the follower's log that sent the request."""
    held_end_offset: int = -1
    """Where that log ended when it sent the request: `records` start there."""
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    history: Sequence[EpochEntry] | None = None
    """The leader's whole epoch history; None if the follower's digest matched."""
    records: Sequence[Part] = ()
    records_bytes: int = 0
    generation: int = 0
    removable: Pair = NOTHING
    """MTRO and MXRO, durable on the leader."""
    fence_below: int = 0
    planned_high_watermark: int = 0


@lru_cache(maxsize=1 << 14)
def _id(data: bytes) -> uuid.UUID:
    """Cached, because the same few ids come with every message and a lookup is cheaper than making a UUID."""
    return uuid.UUID(bytes=data)


def encode_request(request: FetchRequest) -> bytes:
    head = _REQUEST.pack(
        request.broker_id,
        request.broker_epoch,
        request.max_wait_ms,
        request.max_bytes,
        request.partition_max_bytes,
        len(request.held),
    )
    return head + b"".join(
        _HELD.pack(
            held.topic_id.bytes,
            held.partition,
            held.is_wanted * _WANTED | held.is_empty * _EMPTY,
            held.leader_epoch,
            held.end_offset,
            held.last_epoch,
            held.history_digest,
            held.incarnation.bytes,
            held.generation,
            *held.compacted,
            *held.claim,
        )
        for held in request.held
    )


def decode_request(data: Buffer) -> FetchRequest:
    """Raises ValueError if malformed, which no broker of this cluster sends."""
    position = _REQUEST.size
    if len(data) < position:
        raise ValueError(f"a ReplicaFetch of {len(data)} bytes is cut short")
    broker_id, broker_epoch, max_wait_ms, max_bytes, partition_max_bytes, count = _REQUEST.unpack_from(data, 0)
    if len(data) != position + count * _HELD.size:
        raise ValueError(f"a ReplicaFetch of {count} partitions has {len(data)} bytes")
    held = []
    for _ in range(count):
        held.append(_held(*_HELD.unpack_from(data, position)))
        position += _HELD.size
    return FetchRequest(broker_id, broker_epoch, max_wait_ms, max_bytes, partition_max_bytes, held)


def _held(
    topic_id: bytes,
    partition: int,
    flags: int,
    leader_epoch: LeaderEpoch,
    end_offset: int,
    last_epoch: LeaderEpoch,
    history_digest: int,
    incarnation: bytes,
    generation: int,
    mcco: int,
    mxfo: int,
    claimed_end_offset: int,
    claimed_epoch: LeaderEpoch,
) -> FetchPartition:
    if min(generation, mcco, mxfo, claimed_end_offset) < 0 or flags & ~(_WANTED | _EMPTY):
        raise ValueError(f"watermarks {mcco}, {mxfo}, {claimed_end_offset} of generation {generation} cannot be")
    return FetchPartition(
        _id(topic_id),
        partition,
        bool(flags & _WANTED),
        leader_epoch,
        end_offset,
        last_epoch,
        history_digest,
        _id(incarnation),
        generation,
        Pair(mcco, mxfo),
        Claim(claimed_end_offset, claimed_epoch),
        bool(flags & _EMPTY),
    )


def encode_answer(partitions: Sequence[PartitionData]) -> list[Part]:
    parts: list[Part] = [_ANSWER.pack(len(partitions))]
    for one in partitions:
        history = b"" if one.history is None else encode_history(one.history)
        parts.append(
            _PARTITION_DATA.pack(
                one.topic_id.bytes,
                one.partition,
                one.error.value,
                one.leader_epoch,
                one.incarnation.bytes,
                one.held_end_offset,
                one.high_watermark,
                one.log_start_offset,
                one.log_end_offset,
                one.generation,
                *one.removable,
                one.fence_below,
                one.planned_high_watermark,
                HISTORY_UNCHANGED if one.history is None else len(one.history),
                one.records_bytes,
            )
            + history
        )
        parts.extend(one.records)
    return parts


def decode_answer(data: memoryview) -> list[PartitionData]:
    """Raises ValueError if malformed, which no broker of this cluster sends."""
    try:
        (count,) = _ANSWER.unpack_from(data, 0)
        partitions, position = [], _ANSWER.size
        for _ in range(count):
            one, position = _partition_data(data, position)
            partitions.append(one)
    except struct.error as error:
        raise ValueError(f"an answer to ReplicaFetch is cut short: {error}") from error
    if count < 0 or position != len(data):
        raise ValueError(f"an answer to ReplicaFetch about {count} partitions has {len(data)} bytes, not {position}")
    return partitions


def _partition_data(data: memoryview, position: int) -> tuple[PartitionData, int]:
    """Returns one partition's response and the position of the next."""
    fields = _PARTITION_DATA.unpack_from(data, position)
    topic_id, partition, error, epoch, incarnation, held_end, watermark, start, end, *watermarks, epochs, size = fields
    generation, mtro, mxro, fence_below, planned = watermarks
    if min(watermarks) < 0:
        raise ValueError(f"an answer to ReplicaFetch has watermarks that cannot be: {watermarks}")
    position += _PARTITION_DATA.size
    history = None
    if epochs != HISTORY_UNCHANGED:
        if not 0 <= epochs * _EPOCH.size <= len(data) - position:
            raise ValueError(f"an answer to ReplicaFetch promises {epochs} epochs and has fewer")
        history = [EpochEntry(*_EPOCH.unpack_from(data, position + i * _EPOCH.size)) for i in range(epochs)]
        position += epochs * _EPOCH.size
    if not 0 <= size <= len(data) - position:
        raise ValueError(f"an answer to ReplicaFetch promises {size} bytes of records and has fewer")
    records = data[position : position + size]
    decoded = PartitionData(
        _id(topic_id),
        partition,
        ErrorCode(error),
        epoch,
        _id(incarnation),
        held_end,
        watermark,
        start,
        end,
        history,
        (records,) if size else (),
        size,
        generation,
        Pair(mtro, mxro),
        fence_below,
        planned,
    )
    return decoded, position + size


def encode_history(history: Sequence[EpochEntry]) -> bytes:
    return b"".join(_EPOCH.pack(entry.epoch, entry.start_offset) for entry in history)


def history_digest(history: Sequence[EpochEntry]) -> int:
    digest: int = crc32c(encode_history(history))
    return digest
