"""What the APIs of transactions have in common. No API of its own."""

from __future__ import annotations

from typing import Any

from sexton.coordinators.shard import EPOCH_BUMP_VERSION
from sexton.protocol.errors import ErrorCode

Answer = dict[str, Any]

OLD_CLIENT_VERSION = 0
"""Transaction versions 0 and 1 look the same to clients."""
NEW_CLIENT_VERSION = EPOCH_BUMP_VERSION


def for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED was INVALID_PRODUCER_EPOCH before clients could tell one from the other (KIP-588)."""
    if code is ErrorCode.producer_fenced and version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code
