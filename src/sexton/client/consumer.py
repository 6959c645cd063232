"""Consuming: the positions of partitions, and fetching from there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sexton.client import apis, fetching
from sexton.client.client import Client, Peer
from sexton.client.errors import ConnectionLostError, CorruptRecordsError, NotConnectedError, RefusedError, check
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED, Aborted
from sexton.errors import CorruptLogError
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Record
from sexton.types import TopicPartition

EARLIEST = -2
LATEST = -1
"""Special timestamps of ListOffsets."""

FETCH_BYTES_MAX = 16 << 20
PARTITION_BYTES_MAX = 1 << 20
"""Limits of one response. A first batch that is larger is returned anyway, whole."""

MAX_WAIT_MS = 500
LOST_PAUSE_MS = 100
"""Pause before leaders that could not be reached are looked up again."""

FETCH_MARGIN_MS = 10_000
"""How much longer than `max_wait_ms` we wait for the broker's response."""

WHAT_TO_DO_WITH_CORRUPT_RECORDS = (
    "Read again. If it stays so, the leader's disk has damaged them: stop that broker, so that another replica leads, "
    "and move the partition's directory away before it starts again"
)


class Consumed(NamedTuple):
    topic: str
    partition: int
    record: Record


class PartitionFetch(NamedTuple):
    """One partition's part of a Fetch response."""

    records: list[Record]
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


_Fetch = tuple[TopicPartition, int, PartitionFetch]
"""(topic-partition, fetch offset, what was fetched)"""


class Consumer:
    """Reads the assigned partitions. `poll` moves the positions past the records that it returns."""

    def __init__(
        self, client: Client, *, isolation: int = READ_UNCOMMITTED, reset_to: int | None = None, rack: str = ""
    ) -> None:
        """`reset_to` is EARLIEST or LATEST, for a position that the log no longer has; None makes that an error.
        Leaders may name a replica in the same `rack` to fetch from instead (KIP-392)."""
        self._client = client
        self._rack = rack
        self._near: dict[TopicPartition, int] = {}
        """The broker to fetch from instead of the leader, until it returns an error."""
        self._isolation = isolation
        self._reset_to = reset_to
        self.positions: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        """Where each partition's readable part ended at the last fetch."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replaces the former assignment."""
        self.positions = dict(positions)
        self.ends = {}
        self._near = {}

    @property
    def is_at_end(self) -> bool:
        return all(self.ends.get(each, offset + 1) <= offset for each, offset in self.positions.items())

    async def poll(self, max_wait_ms: int = MAX_WAIT_MS) -> list[Consumed]:
        """Returns the available records of all partitions; an empty list after about `max_wait_ms` without any, or if
        no leader can be reached. Raises RefusedError for errors that are not retriable."""
        leaders, is_any_lost = await self._by_leader()
        if not leaders:
            await asyncio.sleep(max_wait_ms / 1000)
            return []
        wait_ms = 0 if is_any_lost else max_wait_ms
        results = await asyncio.gather(
            *(self._poll_one(peer, parts, wait_ms) for peer, parts in leaders), return_exceptions=True
        )
        fetches: list[_Fetch] = []
        for result in results:
            if isinstance(result, (NotConnectedError, ConnectionLostError)):
                self._client.forget()
                is_any_lost = True
            elif isinstance(result, BaseException):
                raise result  # before any position moves: records of the other responses are fetched again
            else:
                fetches += result
        consumed = self._move_on(fetches)
        if is_any_lost and not consumed:
            await asyncio.sleep(min(max_wait_ms, LOST_PAUSE_MS) / 1000)
        return consumed

    def _move_on(self, fetches: Sequence[_Fetch]) -> list[Consumed]:
        """Positions move only here, in the same step in which the records are returned: a poll that is cancelled has
        read nothing. Records of partitions that were assigned again meanwhile are dropped."""
        consumed: list[Consumed] = []
        for place, offset, fetch in fetches:
            if self.positions.get(place) == offset:
                self.positions[place] = fetch.next_offset
                is_committed = self._isolation == READ_COMMITTED
                self.ends[place] = fetch.last_stable_offset if is_committed else fetch.high_watermark
                consumed += [Consumed(*place, record) for record in fetch.records]
        return consumed

    async def _by_leader(self) -> tuple[list[tuple[Peer, list[TopicPartition]]], bool]:
        """Groups the partitions by the broker to ask. Also returns whether some have none."""
        grouped: dict[int, tuple[Peer, list[TopicPartition]]] = {}
        is_any_lost = False
        for topic, partition in self.positions:
            try:
                peer = await self._near_or_leader((topic, partition))
            except (RefusedError, NotConnectedError, ConnectionLostError) as error:
                if isinstance(error, RefusedError) and not error.code.retriable:
                    raise
                is_any_lost = True
                continue
            grouped.setdefault(id(peer), (peer, []))[1].append((topic, partition))
        return list(grouped.values()), is_any_lost

    async def _near_or_leader(self, place: TopicPartition) -> Peer:
        near = self._near.get(place)
        if near is not None:
            try:
                return await self._client.peer(near)
            except (NotConnectedError, ConnectionLostError):
                del self._near[place]
        return await self._client.leader(*place)

    async def _poll_one(self, peer: Peer, parts: Sequence[TopicPartition], max_wait_ms: int) -> list[_Fetch]:
        asked = {part: self.positions[part] for part in parts if part in self.positions}
        try:
            answer = await self._fetch(peer, asked, max_wait_ms)
        except (NotConnectedError, ConnectionLostError):
            self._near = {place: near for place, near in self._near.items() if place not in asked}
            raise
        check(answer.error_code, peer.rpc.peer)
        fetches: list[_Fetch] = []
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                if place in asked:
                    fetches += await self._take(place, asked[place], part)
        return fetches

    async def _fetch(self, peer: Peer, asked: Mapping[TopicPartition, int], max_wait_ms: int) -> Any:
        body = fetch_body(asked, self._isolation, max_wait_ms) | {"rack_id": self._rack}
        return await peer.call(apis.FETCH, body, max_wait_ms + FETCH_MARGIN_MS)

    async def _take(self, place: TopicPartition, offset: int, part: Any) -> list[_Fetch]:
        code = ErrorCode(part.error_code)
        if code != ErrorCode.none and self._near.pop(place, None) is not None:
            return []  # a follower may have less than its leader, which is asked next
        if getattr(part, "preferred_read_replica", -1) >= 0:
            self._near[place] = int(part.preferred_read_replica)
            return []
        if code == ErrorCode.offset_out_of_range and self._reset_to is not None:
            found = await list_offsets(self._client, {place: self._reset_to}, isolation=self._isolation)
            if self.positions.get(place) == offset:
                self.positions[place] = found[place]
            return []
        if code.retriable:
            self._client.forget()
            return []
        check(code, f"{place[0]}-{place[1]}")
        return [(place, offset, _read(place, part, offset, self._isolation))]


def fetch_body(asked: Mapping[TopicPartition, int], isolation: int, max_wait_ms: int) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in asked.items():
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": PARTITION_BYTES_MAX}
        topics.setdefault(topic, []).append(part)
    return {
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": FETCH_BYTES_MAX,
        "isolation_level": isolation,
        "topics": [{"topic": topic, "partitions": parts} for topic, parts in topics.items()],
    }


def _read(place: TopicPartition, part: Any, offset: int, isolation: int) -> PartitionFetch:
    aborted = None
    if isolation == READ_COMMITTED:
        aborted = [Aborted(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
    name = f"{place[0]}-{place[1]}"
    try:
        records, next_offset = fetching.visible(part.records or b"", offset, name, aborted)
    except CorruptLogError as error:
        raise CorruptRecordsError(
            f"what was fetched from offset {offset} on is damaged: {error.what}", name, WHAT_TO_DO_WITH_CORRUPT_RECORDS
        ) from error
    return PartitionFetch(
        records, next_offset, part.high_watermark, part.last_stable_offset, getattr(part, "log_start_offset", -1)
    )


async def fetch(
    client: Client, topic: str, partition: int, offset: int, *, isolation: int = READ_UNCOMMITTED, max_wait_ms: int = 0
) -> PartitionFetch:
    """Fetches once from one partition, with retries."""

    async def attempt() -> PartitionFetch:
        peer = await client.leader(topic, partition)
        place = (topic, partition)
        answer = await peer.call(
            apis.FETCH, fetch_body({place: offset}, isolation, max_wait_ms), max_wait_ms + FETCH_MARGIN_MS
        )
        check(answer.error_code, peer.rpc.peer)
        part = answer.responses[0].partitions[0]
        check(part.error_code, f"{topic}-{partition}")
        return _read(place, part, offset, isolation)

    return await client.retry(attempt)


async def fetch_from_replica(
    client: Client, broker_id: int, asked: Mapping[TopicPartition, int], *, isolation: int, max_wait_ms: int = 0
) -> dict[TopicPartition, PartitionFetch]:
    """Fetches once from this broker, whether it leads the partitions or follows, without retries. Raises RefusedError
    if one of them cannot be read there."""
    peer = await client.peer(broker_id)
    body = fetch_body(asked, isolation, max_wait_ms)
    answer = await peer.call(apis.FETCH_FROM_ANY_REPLICA, body, max_wait_ms + FETCH_MARGIN_MS)
    check(answer.error_code, peer.rpc.peer)
    found: dict[TopicPartition, PartitionFetch] = {}
    for topic in answer.responses:
        for part in topic.partitions:
            place = (topic.topic, part.partition_index)
            check(part.error_code, f"{place[0]}-{place[1]}")
            found[place] = _read(place, part, asked[place], isolation)
    return found


async def list_offsets(
    client: Client, asked: Mapping[TopicPartition, int], *, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Returns for each partition the offset at EARLIEST, at LATEST, or of the first record that is not older than a
    timestamp; -1 if there is no such record."""

    async def one(place: TopicPartition, timestamp_ms: int) -> int:
        async def attempt() -> int:
            peer = await client.leader(*place)
            part = {"partition_index": place[1], "timestamp": timestamp_ms}
            topics = [{"name": place[0], "partitions": [part]}]
            body = {"replica_id": -1, "isolation_level": isolation, "topics": topics}
            answer = await peer.call(apis.LIST_OFFSETS, body)
            found = answer.topics[0].partitions[0]
            check(found.error_code, f"{place[0]}-{place[1]}")
            return int(found.offset)

        return await client.retry(attempt)

    offsets = await asyncio.gather(*(one(place, timestamp_ms) for place, timestamp_ms in asked.items()))
    return dict(zip(asked, offsets, strict=True))


async def start_positions(
    client: Client, places: Iterable[TopicPartition], at: int, *, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Returns the offsets to begin reading at: EARLIEST, LATEST, or at a timestamp (the end, if no record is that
    new)."""
    wanted = dict.fromkeys(places, at)
    found = await list_offsets(client, wanted, isolation=isolation)
    missing = {place: LATEST for place, offset in found.items() if offset < 0}
    if missing:
        found |= await list_offsets(client, missing, isolation=isolation)
    return found
