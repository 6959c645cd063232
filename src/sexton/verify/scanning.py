"""A pass over logs through one replica of them, chosen by whoever asks: what a reader would see whose broker that is.

No client can be told which replica to read from (KIP-392 leaves it to the leader), so Sexton's own does it. A follower
serves what it knows to be committed, as a leader does; where it is behind, it is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sexton.client import consumer
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST
from sexton.client.errors import ConnectionLostError, NotConnectedError, RefusedError
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.client.security.properties import OPEN, Security
from sexton.harness import asking
from sexton.harness.asking import Door
from sexton.history.op import UNKNOWN, Record, Span
from sexton.records.batch import Record as KafkaRecord
from sexton.verify.clients.base import Message, Place
from sexton.verify.reading import record_of

MAX_WAIT_MS: Final = 100
PAUSE_S: Final = 0.1
"""Before a broker that cannot serve now is asked again."""


@dataclass(slots=True)
class Scanned:
    """The result of a scan, as far as it came."""

    replica: int = UNKNOWN
    """The broker that was read."""
    records: dict[int, list[Record]] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    """By log: from where the log began to where this stands."""
    error: str = "not at the end in time"
    """Why it is not at the end; nothing if it is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    places: Mapping[int, Place]
    replica: int = UNKNOWN
    """A broker; if it is unknown, the `nth` replica of the first log, counted round and round."""
    nth: int = 0
    ends: Mapping[int, int] = field(default_factory=dict)
    """By log, what must be passed at the least; beside that, where the leader says at first that the log ends."""


def scan(bootstrap: str, wanted: Wanted, isolation: str, timeout_s: float, security: Security | None = None) -> Scanned:
    """Raises SextonError if nothing could be read at all."""
    level = READ_COMMITTED if isolation == "read_committed" else READ_UNCOMMITTED
    deadline_s = time.monotonic() + timeout_s

    async def question(client: Client) -> Scanned:
        return await _scan(client, wanted, level, deadline_s)

    return asking.ask(Door(bootstrap, security or OPEN), question)


async def _scan(client: Client, wanted: Wanted, isolation: int, deadline_s: float) -> Scanned:
    places = wanted.places
    log_of = {place: log for log, place in places.items()}
    found = Scanned(wanted.replica if wanted.replica != UNKNOWN else await _nth_replica(client, wanted))
    starts = await consumer.list_offsets(client, dict.fromkeys(places.values(), EARLIEST), isolation=isolation)
    ends = await consumer.list_offsets(client, dict.fromkeys(places.values(), LATEST), isolation=isolation)
    for log, place in places.items():
        ends[place] = max(ends[place], wanted.ends.get(log, 0))
        found.spans[log] = Span(starts[place], starts[place])
    while behind := {place: at for log, place in places.items() if (at := found.spans[log].end_offset) < ends[place]}:
        if time.monotonic() > deadline_s:
            return found
        try:
            fetched = await consumer.fetch_from_replica(
                client, found.replica, behind, isolation=isolation, max_wait_ms=MAX_WAIT_MS
            )
        except (RefusedError, NotConnectedError, ConnectionLostError) as error:
            if isinstance(error, RefusedError) and not error.code.retriable:
                found.error = str(error)
                return found
            await asyncio.sleep(PAUSE_S)
            await _look_around(client)
            continue
        for place, part in fetched.items():
            log = log_of[place]
            found.records.setdefault(log, []).extend(record_of(_message(place, each)) for each in part.records)
            found.spans[log] = Span(starts[place], max(part.next_offset, behind[place]))
    found.error = ""
    return found


async def _nth_replica(client: Client, wanted: Wanted) -> int:
    topic, partition = next(iter(wanted.places.values()))
    replicas = sorted((await client.topic(topic)).partitions[partition].replicas)
    return replicas[wanted.nth % len(replicas)]


async def _look_around(client: Client) -> None:
    """The broker may be back at another address, or not be back: then it is asked for again."""
    try:
        await client.refresh(())
    except (RefusedError, NotConnectedError, ConnectionLostError):
        return


def _message(place: Place, record: KafkaRecord) -> Message:
    headers = [(each.name, each.value) for each in record.headers]
    return Message(
        topic=place[0],
        partition=place[1],
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=headers,
        timestamp_ms=record.timestamp_ms,
        timestamp_type="",
    )
