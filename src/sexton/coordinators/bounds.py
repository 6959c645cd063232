"""Limits of what one operation of a coordinator may write, and of how much is done at a time.

All limits are checked before anything has changed. Without them the append would fail, and then the whole partition is
loaded again: every group or transaction on it would pay for one request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

STRING_BYTES_MAX: Final = 2**15 - 1
"""Longest string in bytes: lengths in the keys of records have 16 bits. Kafka accepts no longer strings over the
network either."""

BATCH_BYTES_MAX: Final = 1_000_000
"""The records of one operation go into one batch up to this size, into several above it. The log accepts coordinators'
batches up to `OWN_BATCH_BYTES_MAX`, whatever `max.message.bytes` is."""

RECORD_BYTES_MAX: Final = 900_000
"""A record cannot be split. It stays below BATCH_BYTES_MAX to leave room for fields that are added later, such as a
producer's next id."""

RECORD_OVERHEAD_BYTES: Final = 40
"""Upper bound of a record's overhead in a batch, including the numbers in it."""

BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of operations that wait for their append while the log is slow. Beyond this, requests get a retriable error."""

DUE_COUNT_MAX: Final = 200
"""Maximum number of timers handled in one turn of the event loop. After a failover all members that did not come back
expire together: the rest is due at once, after other work had its turn."""

DUE_RECORDS_MAX: Final = 500
"""Maximum number of records that expired timers write in one turn."""


def is_too_long(text: str | None) -> bool:
    if text is None or len(text) * 4 <= STRING_BYTES_MAX:  # UTF-8 has at most four bytes per character
        return False
    return len(text) > STRING_BYTES_MAX or len(text.encode()) > STRING_BYTES_MAX


def cut(text: str, bytes_max: int) -> str:
    """Cuts the text to at most `bytes_max` bytes, at a character boundary."""
    return text.encode()[:bytes_max].decode(errors="ignore")


def fits_record(texts: Iterable[str]) -> bool:
    return sum(len(text.encode()) + 3 for text in texts) <= RECORD_BYTES_MAX
