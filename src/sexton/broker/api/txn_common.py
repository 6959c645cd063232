"""Shared by the transaction APIs."""

from __future__ import annotations

from sexton.protocol.errors import ErrorCode

OLD_CLIENT_VERSION = 0
"""Stands for transaction versions 0 and 1, which look the same to clients."""


def for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Replaces PRODUCER_FENCED by INVALID_PRODUCER_EPOCH for versions from before KIP-588, whose clients do not know
    it."""
    if code is ErrorCode.producer_fenced and version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code
