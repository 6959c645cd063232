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
    """The keys of those that are still there. For a few: each is a request."""
    found: dict[PlaceOfRecord, bytes] = {}
    for topic, partition, offset in sorted(set(places)):
        try:
            records = (await fetch(client, topic, partition, offset, max_wait_ms=LOADING_MS)).records
        except RefusedError as error:
            if error.code != ErrorCode.offset_out_of_range:
                raise
            continue
        if records and records[0].offset == offset and records[0].key is not None:
            found[topic, partition, offset] = records[0].key
    return found
