"""The messages between Sexton's own processes: their API keys, and the JSON that most of them carry.

They are never advertised. Brokers send them to each other, compactors and the command line to brokers. Each message is
documented at its handler; two carry bytes of segments and two have a format of their own.

A JSON response that refuses is `{"error": {"kind", "what"}}`, and nothing was changed.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from enum import IntEnum, unique
from typing import Any, Final

from sexton.errors import SextonError
from sexton.ports.disk import Buffer


@unique
class PrivateApi(IntEnum):
    REPLICA_FETCH = 30_000
    COMPACTION_STATUS = 30_001
    COMPACTION_PLAN = 30_002
    COMPACTION_COMMIT = 30_003
    COMPACTION_ABANDON = 30_004
    COMPACTION_REQUEST = 30_005
    COMPACTION_READ = 30_006
    COMPACTION_WRITE = 30_007
    COMPACTION_HISTORY = 30_008
    NEWS = 30_009
    COMPACTION_ANNOUNCED = 30_010
    COMPACTION_OFFER = 30_011
    COMPACTION_PIECE = 30_012
    COMPACTION_ASSEMBLE = 30_020


FIRST_PRIVATE_API_KEY: Final = int(min(PrivateApi))
"""Kafka's own keys are far below. A private message has the header version without tagged fields."""


class RefusedError(SextonError):
    """The other process answered with a refusal."""


def encode(message: Any) -> bytes:
    return json.dumps(message, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a message")


def decode(data: Buffer) -> dict[str, Any]:
    """Raises ValueError on anything but a JSON object."""
    found = json.loads(bytes(data))
    if not isinstance(found, dict):
        raise ValueError("a message is a JSON object")
    return found


def refusal(error: Exception) -> bytes:
    return encode({"error": {"kind": type(error).__name__, "what": str(error)}})


def decode_answer(data: Buffer, peer: str) -> dict[str, Any]:
    """Raises RefusedError if the response is a refusal; ValueError as `decode` does."""
    answer = decode(data)
    if "error" in answer:
        raise RefusedError(str(answer["error"]["what"]), peer)
    return answer
