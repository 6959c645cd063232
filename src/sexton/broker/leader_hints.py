"""The current leader, sent with an error that says that this broker does not lead, so that a client need not ask
(KIP-951)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from sexton.protocol.encoder import write_varint
from sexton.protocol.errors import ErrorCode
from sexton.types import NO_LEADER, LeaderEpoch

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

TOLD_WITH = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})

_LEADER = struct.Struct(">iiB")


class LeaderHint(NamedTuple):
    leader: int
    leader_epoch: LeaderEpoch


def leader_hint(broker: Broker, topic: str, partition: int, error: ErrorCode) -> LeaderHint | None:
    if error not in TOLD_WITH:
        return None
    row = broker.view.partition(topic, partition)
    if row is None or row.leader == NO_LEADER:
        return None
    return LeaderHint(row.leader, row.leader_epoch)


def encode_hint(hint: LeaderHint) -> bytes:
    """Encodes the content of the tagged field."""
    return _LEADER.pack(hint.leader, hint.leader_epoch, 0)


def write_endpoints(out: bytearray, broker: Broker, hints: list[LeaderHint]) -> None:
    """Writes the tagged fields at the end of the response: none, or the addresses of the leaders named in it."""
    rows = {hint.leader: broker.view.broker(hint.leader) for hint in hints}
    known = [row for row in rows.values() if row is not None]
    if not known:
        out.append(0)
        return
    content = bytearray()
    write_varint(content, len(known) + 1)
    for row in known:
        content += struct.pack(">i", row.broker_id)
        _write_string(content, row.host)
        content += struct.pack(">i", row.port)
        if row.rack is None:
            content.append(0)
        else:
            _write_string(content, row.rack)
        content.append(0)
    out += b"\x01\x00"
    write_varint(out, len(content))
    out += content


def _write_string(out: bytearray, text: str) -> None:
    encoded = text.encode()
    write_varint(out, len(encoded) + 1)
    out += encoded
