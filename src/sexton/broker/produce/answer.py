"""The Produce response, encoded by hand: this is the hot path."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sexton.broker.leader_hints import LeaderHint, encode_hint, write_endpoints
from sexton.protocol.encoder import write_varint
from sexton.protocol.errors import ErrorCode, RecordFault
from sexton.types import NO_OFFSET, NO_TIMESTAMP

if TYPE_CHECKING:
    import asyncio

    from sexton.broker.broker import Broker
    from sexton.log.types import Appended


_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_PARTITION_GOOD = struct.Struct(">ihqqqBBB")
_INT32 = struct.Struct(">i")
_HEADER = struct.Struct(">ii")
_HEADER_TAGGED = struct.Struct(">iiB")


class PartitionAnswer:
    """What is answered for one partition. It carries offset -1 until the append has succeeded."""

    __slots__ = (
        "append_time_ms",
        "base_offset",
        "code",
        "committed",
        "faults",
        "hint",
        "index",
        "log_start_offset",
        "message",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.code: int = 0
        self.base_offset = NO_OFFSET
        self.append_time_ms = NO_TIMESTAMP
        self.log_start_offset = NO_OFFSET
        self.message = ""
        self.faults: Sequence[RecordFault] = ()
        self.hint: LeaderHint | None = None
        self.committed: asyncio.Future[None] | None = None

    def take(self, appended: Appended, committed: asyncio.Future[None] | None) -> None:
        self.base_offset = appended.first_offset
        self.append_time_ms = appended.log_append_time_ms
        self.log_start_offset = appended.log_start_offset
        self.committed = committed

    def fail(self, code: ErrorCode, message: str) -> None:
        self.code = code
        self.message = message
        self.base_offset = self.log_start_offset = NO_OFFSET
        self.append_time_ms = NO_TIMESTAMP


Topics = Sequence[tuple[Any, str, Sequence[PartitionAnswer]]]
"""(name or id as in the response, name, outcomes)"""


def encode(broker: Broker, version: int, correlation_id: int, topics: Topics) -> bytes:
    if version < 9:
        return _encode_old(version, correlation_id, topics)
    out = bytearray(9)
    hints: list[LeaderHint] = []
    write_varint(out, len(topics) + 1)
    for key, _, outcomes in topics:
        if version >= 13:
            out += key.bytes if key is not None else bytes(16)
        else:
            name = key.encode()
            write_varint(out, len(name) + 1)
            out += name
        write_varint(out, len(outcomes) + 1)
        for outcome in outcomes:
            if outcome.code:
                _write_failure(out, outcome, hints)
            else:
                out += _PARTITION_GOOD.pack(
                    outcome.index,
                    0,
                    outcome.base_offset,
                    outcome.append_time_ms,
                    outcome.log_start_offset,
                    1,
                    0,
                    0,
                )
        out.append(0)
    out += b"\x00\x00\x00\x00"
    if hints:
        write_endpoints(out, broker, hints)
    else:
        out.append(0)
    _HEADER_TAGGED.pack_into(out, 0, len(out) - 4, correlation_id, 0)
    return bytes(out)


def _encode_old(version: int, correlation_id: int, topics: Topics) -> bytes:
    out = bytearray(8)
    out += struct.pack(">i", len(topics))
    for key, _, outcomes in topics:
        name = key.encode()
        out += struct.pack(">h", len(name))
        out += name
        out += struct.pack(">i", len(outcomes))
        for outcome in outcomes:
            where = outcome.index, outcome.code, outcome.base_offset, outcome.append_time_ms
            if version < 5:
                out += _PARTITION_V3.pack(*where)
            else:
                out += _PARTITION_V5.pack(*where, outcome.log_start_offset)
            if version >= 8:
                _write_old_messages(out, outcome)
    out += b"\x00\x00\x00\x00"
    _HEADER.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def _write_failure(out: bytearray, outcome: PartitionAnswer, hints: list[LeaderHint]) -> None:
    out += _PARTITION_V5.pack(outcome.index, outcome.code, NO_OFFSET, NO_TIMESTAMP, NO_OFFSET)
    write_varint(out, len(outcome.faults) + 1)
    for fault in outcome.faults:
        out += _INT32.pack(fault.record)
        _write_text(out, fault.message)
        out.append(0)
    _write_text(out, outcome.message)
    if outcome.hint is None:
        out.append(0)
    else:
        content = encode_hint(outcome.hint)
        out += bytes((1, 0, len(content)))
        out += content
        hints.append(outcome.hint)


def _write_text(out: bytearray, text: str) -> None:
    encoded = text.encode()
    write_varint(out, len(encoded) + 1 if encoded else 0)
    out += encoded


def _write_old_messages(out: bytearray, outcome: PartitionAnswer) -> None:
    out += _INT32.pack(len(outcome.faults))
    for fault in outcome.faults:
        out += _INT32.pack(fault.record)
        _write_old_text(out, fault.message)
    _write_old_text(out, outcome.message)


def _write_old_text(out: bytearray, text: str) -> None:
    encoded = text.encode()[:0x7FFF]
    out += struct.pack(">h", len(encoded) or -1)
    out += encoded
