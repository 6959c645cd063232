"""Decodes the bytes of a Fetch response into the records that a consumer may see. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sexton.records import batch as batches
from sexton.records.batch import ControlType, Record
from sexton.records.header import LOG_OVERHEAD_BYTES, size_at

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class Aborted(NamedTuple):
    """An aborted transaction in the fetched range: where the producer's data begins."""

    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    records: list[Record]
    next_offset: int
    """The next fetch offset: past control batches and past records that compaction removed."""


def visible(
    data: bytes | memoryview, from_offset: int, place: str, aborted: Sequence[Aborted] | None = None
) -> Fetched:
    """Returns the records from an offset on; without those of aborted transactions, if `aborted` lists them.

    The first batch may begin before the offset, and the last one may be cut off by the size limit.
    """
    starts = sorted(aborted or (), key=lambda each: each.first_offset)
    open_producers: set[int] = set()
    next_offset = from_offset
    records: list[Record] = []
    for position in whole_batches(data):
        header = batches.decode_header(data, position, place)
        next_offset = max(next_offset, header.next_offset)
        while starts and starts[0].first_offset <= header.last_offset:
            open_producers.add(starts.pop(0).producer_id)
        if header.is_control:
            marker = batches.decode(data, position, place)
            if marker.control_type is ControlType.ABORT:
                open_producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in open_producers):
            whole = batches.decode(data, position, place)
            records += [record for record in whole.records if record.offset >= from_offset]
    return Fetched(records, next_offset)


def whole_batches(data: bytes | memoryview) -> Iterator[int]:
    position = 0
    while position + LOG_OVERHEAD_BYTES <= len(data):
        size_bytes = size_at(data, position)
        if size_bytes <= LOG_OVERHEAD_BYTES or position + size_bytes > len(data):
            return
        yield position
        position += size_bytes
