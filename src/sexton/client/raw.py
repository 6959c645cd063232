"""A partition's batches as they are in its leader's log: with headers, markers and all, for diagnosis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from sexton.client import apis, consumer
from sexton.client.errors import check
from sexton.client.fetching import READ_UNCOMMITTED, whole_batches
from sexton.records import batch as batches
from sexton.records.batch import Batch

if TYPE_CHECKING:
    from sexton.client.client import Client


EMPTY_MAX: Final = 20
LOADING_MS: Final = 500
"""So many responses may be empty, one after the other, each after so long: the leader of a cloud topic has to load what
it is asked for."""


async def raw_batches(client: Client, topic: str, partition: int, offset: int) -> AsyncIterator[Batch]:
    """Yields the batches from an offset up to the high watermark of the first response."""
    place, end_offset, empty_count = (topic, partition), -1, 0
    while end_offset < 0 or offset < end_offset:
        peer = await client.leader(topic, partition)
        wait_ms = LOADING_MS if empty_count else 0
        body = consumer.fetch_body({place: offset}, READ_UNCOMMITTED, wait_ms)
        answer = await peer.call(apis.FETCH, body, (wait_ms + consumer.FETCH_MARGIN_MS) if wait_ms else None)
        check(answer.error_code, peer.rpc.peer)
        part = answer.responses[0].partitions[0]
        check(part.error_code, f"{topic}-{partition}")
        if end_offset < 0:
            end_offset = part.high_watermark
        before, data = offset, part.records or b""
        for position in whole_batches(data):
            batch = batches.decode(data, position, f"{topic}-{partition}")
            offset = max(offset, batch.next_offset)
            yield batch
        empty_count = 0 if offset > before else empty_count + 1
        if empty_count > EMPTY_MAX:
            return
