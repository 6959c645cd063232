"""Single records of a live topic, looked up by their offsets."""

from __future__ import annotations

from collections.abc import Iterable

from sexton.client.client import Client
from sexton.client.consumer import fetch
from sexton.client.errors import RefusedError
from sexton.client.raw import LOADING_MS
from sexton.protocol.errors import ErrorCode

PlaceOfRecord = tuple[str, int, int]
"""Topic, partition, offset."""


async def records_at(client: Client, places: Iterable[PlaceOfRecord]) -> dict[PlaceOfRecord, bytes]:
    """The keys of those that are still there."""
    found: dict[PlaceOfRecord, bytes] = {}
    by_partition: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in sorted(set(places)):
        by_partition.setdefault((topic, partition), []).append(offset)
    for (topic, partition), wanted in by_partition.items():
        while wanted:
            keys, next_offset = await _keys_from(client, topic, partition, wanted[0])
            found |= {(topic, partition, offset): keys[offset] for offset in wanted if offset in keys}
            wanted = [offset for offset in wanted[1:] if offset >= next_offset]
    return found


async def _keys_from(client: Client, topic: str, partition: int, offset: int) -> tuple[dict[int, bytes], int]:
    """By offset, and where to go on."""
    try:
        answer = await fetch(client, topic, partition, offset, max_wait_ms=LOADING_MS)
    except RefusedError as error:
        if error.code != ErrorCode.offset_out_of_range:
            raise
        return {}, offset
    return {each.offset: each.key for each in answer.records if each.key is not None}, answer.next_offset
