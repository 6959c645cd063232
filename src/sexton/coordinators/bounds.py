"""How much one operation of a coordinator may be: long, many, soon.

All of it is checked before anything has changed. What does not fit would otherwise fail when it is written, and then
the whole partition is loaded again: everybody on it would pay for one request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

STRING_BYTES_MAX: Final = 2**15 - 1
"""Lengths in the keys of records have 16 bits. Kafka takes no longer strings off the network either."""

BATCH_BYTES_MAX: Final = 1_000_000
"""What one operation writes is one batch up to here, several above. The log takes batches of coordinators up to
`OWN_BATCH_BYTES_MAX`, whatever `max.message.bytes` is."""

RECORD_BYTES_MAX: Final = 900_000
"""A record cannot be split. The rest is for what is added to it while it is kept, such as a producer's next id."""

RECORD_OVERHEAD_BYTES: Final = 40
"""Of a record in a batch, and of the numbers in it: more than there can be."""

BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of operations that wait for their append while the log is slow. Beyond, clients are asked to come again."""

DUE_COUNT_MAX: Final = 200
"""Timers that are looked at in one turn of the loop. After a failover all members that did not come back are due
together: what is left is due at once, after others had their turn."""

DUE_RECORDS_MAX: Final = 500
"""Written in one turn by what was due."""


def is_too_long(text: str | None) -> bool:
    if text is None or len(text) * 4 <= STRING_BYTES_MAX:  # UTF-8 has four bytes a character at most
        return False
    return len(text) > STRING_BYTES_MAX or len(text.encode()) > STRING_BYTES_MAX


def cut(text: str, bytes_max: int) -> str:
    """The beginning of it, in whole characters."""
    return text.encode()[:bytes_max].decode(errors="ignore")


def fits_record(texts: Iterable[str]) -> bool:
    return sum(len(text.encode()) + 3 for text in texts) <= RECORD_BYTES_MAX
