"""One topic of a running cluster: its partitions, how far consumers see them, and how tasks read them.

Only leaders are asked, as consumers ask them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from sexton.audit.live import asking
from sexton.audit.live.connecting import Connecting
from sexton.audit.live.errors import no_permission
from sexton.audit.live.ranges import ANSWER_BYTES, cut
from sexton.audit.live.shared_pace import Limit, Limits
from sexton.audit.live.stretch import LiveStretch
from sexton.audit.live.worker import LoopThread
from sexton.client.admin import Admin, Resource, Setting
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST, list_offsets
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.client.metadata import TopicInfo
from sexton.client.raw import EMPTY_MAX, LOADING_MS
from sexton.protocol.errors import ErrorCode
from sexton.settings.layers import ConfigSource
from sexton.types import TopicPartition

CLIENT_ID: Final = "sexton-topic"

OFFSET_BYTES: Final = 200
"""What an offset is taken for where a broker does not tell how large its log is."""

DELETE_RETENTION_MS: Final = 86_400_000
"""Kafka's default, where we may not see the topic's settings."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """How a partition's leader stands at one moment."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    """Where consumers with read_committed stop: nothing below it is undecided any more."""
    high_watermark: int
    """Asked for after the last stable offset: all transactions that begin below that have their markers below this."""
    size_bytes: int | None = None
    """On the leader's disk. None: we may not know."""

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def bytes_between(self, from_offset: int, to_offset: int) -> int:
        """About. In a compacted log the beginning has fewer."""
        if self.size_bytes is None:
            return (to_offset - from_offset) * OFFSET_BYTES
        return self.size_bytes * (to_offset - from_offset) // max(1, self.high_watermark - self.log_start_offset)


@dataclass(frozen=True, slots=True)
class TopicLog:
    name: str
    partition_count: int
    replica_count: int
    partitions: tuple[PartitionLog, ...]
    settings: Mapping[str, Setting] | None
    """By name. None: we may not see them."""

    @property
    def delete_retention_ms(self) -> int:
        known = (self.settings or {}).get("delete.retention.ms")
        return DELETE_RETENTION_MS if known is None or known.value is None else int(known.value)

    @property
    def is_compacted(self) -> bool | None:
        known = (self.settings or {}).get("cleanup.policy")
        return None if known is None else "compact" in (known.value or "")

    @property
    def own_settings(self) -> dict[str, str]:
        """What was set for this topic, and is not a default of its brokers."""
        found = (self.settings or {}).values()
        return {each.name: each.value for each in found if each.source is ConfigSource.TOPIC and each.value is not None}


@dataclass(frozen=True, slots=True)
class Reading:
    """How tasks read."""

    connecting: Connecting
    limits: Limits = field(default_factory=lambda: Limits(Limit()))

    def stretch(
        self, log: PartitionLog, number: int, part: tuple[int, int], *, is_first: bool, is_small: bool = False
    ) -> LiveStretch:
        """From whoever leads, so that a change of leaders is no error. `is_small`: nothing is asked for beyond it."""
        from_offset, to_offset = part
        size_bytes = log.bytes_between(from_offset, to_offset)
        return LiveStretch(
            replica=number,
            connecting=self.connecting,
            address=None,
            topic=log.topic,
            partition=log.partition,
            from_offset=from_offset,
            to_offset=to_offset,
            size_bytes=size_bytes,
            is_first=is_first,
            limit=self.limits.limit,
            wait_ms=LOADING_MS,
            empty_max=EMPTY_MAX,
            answer_bytes=min(ANSWER_BYTES, max(SMALL_ANSWER_BYTES, size_bytes)) if is_small else ANSWER_BYTES,
        )

    def stretches(self, log: PartitionLog, number: int, from_offset: int, to_offset: int) -> tuple[LiveStretch, ...]:
        if to_offset <= from_offset:
            return ()
        parts = cut(from_offset, to_offset, log.bytes_between(from_offset, to_offset))
        return tuple(self.stretch(log, number, part, is_first=part[0] == from_offset) for part in parts)


SMALL_ANSWER_BYTES: Final = 64 << 10


class TopicClient:
    """Asks a cluster of topics, in a thread of its own: Spark works meanwhile."""

    def __init__(self, connecting: Connecting) -> None:
        self.connecting = connecting
        self._thread = LoopThread()

    def close(self) -> None:
        self._thread.close()

    def __enter__(self) -> TopicClient:
        """Connects once, so that a wrong address shows at once."""
        try:
            self.run(lambda client: client.open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        async def inside() -> T:
            return await work(await self._thread.client(self.connecting))

        return self._thread.run(inside())

    def topic(self, name: str, partitions: Sequence[int] | None = None) -> TopicLog:
        """Some of its partitions, or all."""
        return self.run(lambda client: _topic(client, name, partitions))

    def stand(self, name: str, partitions: Iterable[int]) -> tuple[PartitionLog, ...]:
        """How these partitions stand now. Sizes are not asked for."""
        return self.run(lambda client: _stand(client, name, list(partitions)))


async def _topic(client: Client, name: str, partitions: Sequence[int] | None) -> TopicLog:
    try:
        info = await client.topic(name)
        numbers = _chosen(info, partitions)
        logs = await _stand(client, name, numbers)
    except RefusedError as error:
        if error.code == ErrorCode.topic_authorization_failed:
            raise no_permission("Describe", name) from None
        raise
    sizes = await _sizes_bytes(client, info, numbers)
    return TopicLog(
        name=name,
        partition_count=len(info.partitions),
        replica_count=max(len(each.replicas) for each in info.partitions.values()),
        partitions=tuple(_with_size(log, sizes.get(log.place)) for log in logs),
        settings=await _settings(client, name),
    )


def _chosen(info: TopicInfo, partitions: Sequence[int] | None) -> list[int]:
    if partitions is None:
        return list(info.partitions)
    for number in partitions:
        if number not in info.partitions:
            what = f"the topic has {len(info.partitions):,} partitions, and no partition {number}"
            raise RefusedError(what, info.name, "", ErrorCode.unknown_topic_or_partition)
    return list(dict.fromkeys(partitions))


async def _stand(client: Client, name: str, partitions: Sequence[int]) -> tuple[PartitionLog, ...]:
    """The last stable offset first, and the high watermark after it."""
    places = [(name, number) for number in partitions]
    starts = await list_offsets(client, dict.fromkeys(places, EARLIEST))
    stable = await list_offsets(client, dict.fromkeys(places, LATEST), isolation=READ_COMMITTED)
    ends = await list_offsets(client, dict.fromkeys(places, LATEST), isolation=READ_UNCOMMITTED)
    return tuple(
        PartitionLog(
            topic=place[0],
            partition=place[1],
            log_start_offset=starts[place],
            last_stable_offset=stable[place],
            high_watermark=ends[place],
        )
        for place in places
    )


def _with_size(log: PartitionLog, size_bytes: int | None) -> PartitionLog:
    return replace(log, size_bytes=size_bytes)


async def _sizes_bytes(client: Client, info: TopicInfo, partitions: Sequence[int]) -> dict[TopicPartition, int]:
    """By the leaders. Without the permission (Describe on the cluster) they do not tell."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for number in partitions:
        by_leader.setdefault(info.partitions[number].leader, []).append((info.name, number))

    async def of(leader: int, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            return await asking.sizes_bytes(await client.peer(leader), places)
        except (NotConnectedError, ConnectionLostError, RefusedError, BadAnswerError):
            return {}

    found: dict[TopicPartition, int] = {}
    for some in await asyncio.gather(*(of(leader, places) for leader, places in by_leader.items())):
        found |= some
    return found


async def _settings(client: Client, name: str) -> dict[str, Setting] | None:
    try:
        return {each.name: each for each in await Admin(client).settings(Resource.TOPIC, name)}
    except RefusedError as error:
        if error.code == ErrorCode.topic_authorization_failed:
            return None
        raise
