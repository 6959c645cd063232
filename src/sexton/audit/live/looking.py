"""Looks single batches up again, by their offsets: what is told of a difference is what is there now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from sexton.audit.live import asking
from sexton.audit.live.errors import ReplicaUnreadableError
from sexton.audit.live.ranges import PATIENCE_MS, PAUSE_MS, Answer, Asked
from sexton.client.client import Client
from sexton.client.consumer import WHAT_TO_DO_WITH_CORRUPT_RECORDS
from sexton.client.errors import ConnectionLostError, CorruptRecordsError, NotConnectedError, RefusedError
from sexton.client.fetching import READ_UNCOMMITTED, whole_batches
from sexton.client.metadata import Address
from sexton.errors import CorruptLogError
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Batch, decode
from sexton.types import TopicPartition

ANSWER_BYTES: Final = 64 << 10
"""More than one batch at a time: differences often lie side by side."""


async def batches_at(
    client: Client, address: Address, place: TopicPartition, offsets: Sequence[int]
) -> dict[int, Batch]:
    """The batches that span these offsets now. One in a gap, or gone, is left out."""
    found: dict[int, Batch] = {}
    wanted = sorted(set(offsets))
    while wanted:
        answer = await _fetch(client, address, place, wanted[0])
        batches = _decoded(answer, f"{place[0]}-{place[1]} at {address[0]}:{address[1]}")
        known_below = max((batch.next_offset for batch in batches), default=0)
        for batch in batches:
            found |= {offset: batch for offset in wanted if batch.base_offset <= offset < batch.next_offset}
        wanted = [offset for offset in wanted[1:] if offset >= known_below]
    return found


def _decoded(answer: Answer | None, place: str) -> list[Batch]:
    if answer is None:
        return []
    try:
        return [decode(answer.data, position, place) for position in whole_batches(answer.data)]
    except CorruptLogError as error:
        raise CorruptRecordsError(error.what, place, WHAT_TO_DO_WITH_CORRUPT_RECORDS) from error


async def _fetch(client: Client, address: Address, place: TopicPartition, offset: int) -> Answer | None:
    """None if the log does not reach there, or begins later."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_MS / 1000
    while True:
        try:
            peer = await client.peer_at(address)
            return await asking.fetch(peer, place, Asked(offset, READ_UNCOMMITTED, ANSWER_BYTES))
        except (RefusedError, NotConnectedError, ConnectionLostError) as error:
            if isinstance(error, RefusedError) and error.code == ErrorCode.offset_out_of_range:
                return None
            if isinstance(error, RefusedError) and not error.code.retriable:
                raise
            if loop.time() > deadline_s:
                what = f"offset {offset:,} could not be read again: {error.what}"
                raise ReplicaUnreadableError(what, error.place, "Is the broker still there?") from error
        await asyncio.sleep(PAUSE_MS / 1000)
