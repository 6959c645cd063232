"""Single records of a live topic, looked up by their offsets."""

from __future__ import annotations

from collections.abc import Iterable

from sexton.audit.live.looking import batches_at
from sexton.client.client import Client

PlaceOfRecord = tuple[str, int, int]
"""Topic, partition, offset."""


async def records_at(client: Client, places: Iterable[PlaceOfRecord]) -> dict[PlaceOfRecord, bytes]:
    """The keys of those that are still there."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for topic, partition, offset in places:
        offsets.setdefault((topic, partition), []).append(offset)
    found: dict[PlaceOfRecord, bytes] = {}
    for (topic, partition), wanted in offsets.items():
        await client.leader(topic, partition)
        info = client.metadata.leader(topic, partition)
        assert info is not None, "it was asked for before"
        address = client.metadata.brokers[info.leader].address
        for offset, batch in (await batches_at(client, address, (topic, partition), sorted(set(wanted)))).items():
            for record in batch.records:
                if record.offset == offset and record.key is not None:
                    found[topic, partition, offset] = record.key
    return found
