"""How the replicas of a cluster stand, by what each of their brokers says of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sexton.audit.live import asking
from sexton.audit.live.ranges import Answer
from sexton.audit.live.views import agreed
from sexton.audit.replica import OpenClaim, ReplicaId
from sexton.client import apis
from sexton.client.client import Client, Peer
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError
from sexton.client.metadata import Address, Metadata, PartitionInfo
from sexton.client.transaction_admin import ProducerAt
from sexton.errors import SextonError
from sexton.types import TopicPartition

ALTER: Final = 1 << 7
CLUSTER_ACTION: Final = 1 << 9
"""Bits of what somebody may do with a cluster. Who may do these two is an operator, and sees all transactions."""

FAILURES: Final = (NotConnectedError, ConnectionLostError, RefusedError, BadAnswerError)
"""Why one broker could not be asked. The others are asked all the same."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Standing:
    """What a broker says of its replica at one moment."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Claims:
    open: tuple[OpenClaim, ...]
    is_complete: bool
    """Whether the broker tells of open transactions at all: since Kafka 3.0."""


class LiveCluster:
    """Through one client, and its connections."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def partition(self, replica: ReplicaId) -> PartitionInfo | None:
        return self.client.metadata.leader(replica.topic, replica.partition)

    def address(self, broker: int) -> Address | None:
        known = self.client.metadata.brokers.get(broker)
        return None if known is None else known.address

    async def refresh(self, topics: Sequence[str]) -> None:
        """Merges the metadata of all brokers. Raises if none answers."""
        await self.client.refresh(topics)
        brokers = sorted(self.client.metadata.brokers)
        views = await asyncio.gather(*(self._view_of(broker, topics) for broker in brokers))
        self.client.metadata = agreed([self.client.metadata, *(view for view in views if view is not None)])

    async def _view_of(self, broker: int, topics: Sequence[str]) -> Metadata | None:
        try:
            peer = await self.client.peer(broker)
            return Metadata().merged(await asking.metadata(peer, topics), is_complete=True)
        except FAILURES:
            return None

    async def standings(self, replicas: Iterable[ReplicaId]) -> dict[ReplicaId, Standing | SextonError]:
        """Of each replica; of one that its broker does not tell of, why."""
        return await self._by_broker(replicas, _standings, lambda error: error)

    async def sizes_bytes(self, replicas: Iterable[ReplicaId]) -> dict[ReplicaId, int | None]:
        return await self._by_broker(replicas, asking.sizes_bytes, lambda error: None)

    async def claims(self, replicas: Iterable[ReplicaId]) -> dict[ReplicaId, Claims]:
        """What each broker takes for open, and whether transaction coordinators know of it."""
        nothing: list[ProducerAt] | None = None
        found = await self._by_broker(replicas, asking.open_producers, lambda error: nothing)
        known = await self._known({each.producer_id for some in found.values() for each in some or ()})
        return {replica: _claims(found.get(replica), known) for replica in replicas}

    async def _known(self, producer_ids: set[int]) -> Mapping[int, bool | None]:
        """Whether a coordinator has an open transaction of each producer. None: we cannot know."""
        if not producer_ids:
            return {}
        brokers = sorted(self.client.metadata.brokers)
        answers = await asyncio.gather(*(self._known_at(broker, producer_ids) for broker in brokers))
        open_ids = {producer_id for answer in answers for producer_id in answer or ()}
        sees_all = None not in answers and await self._is_operator()
        return {each: True if each in open_ids else (False if sees_all else None) for each in producer_ids}

    async def _known_at(self, broker: int, producer_ids: set[int]) -> set[int] | None:
        try:
            peer = await self.client.peer(broker)
            return await asking.known_transactions(peer, producer_ids)
        except FAILURES:
            return None

    async def _is_operator(self) -> bool:
        """Who may not describe a transactional id is not told of it, nor that something was left out."""
        try:
            peer = await self.client.any_peer()
            answer = await peer.call(apis.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True})
        except FAILURES:
            return False
        allowed = int(answer.cluster_authorized_operations)
        return allowed >= 0 and bool(allowed & ALTER) and bool(allowed & CLUSTER_ACTION)

    async def _by_broker(
        self,
        replicas: Iterable[ReplicaId],
        ask: Callable[[Peer, Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, T]]],
        instead: Callable[[SextonError], T],
    ) -> dict[ReplicaId, T]:
        """Asks all brokers at once, each for all of its replicas."""
        by_broker: dict[int, list[ReplicaId]] = defaultdict(list)
        for replica in replicas:
            by_broker[replica.broker].append(replica)

        async def one(broker: int, some: Sequence[ReplicaId]) -> dict[ReplicaId, T]:
            try:
                found = await ask(await self.client.peer(broker), [replica.topic_partition for replica in some])
            except FAILURES as error:
                return {replica: instead(error) for replica in some}
            return {replica: found[replica.topic_partition] for replica in some if replica.topic_partition in found}

        parts = await asyncio.gather(*(one(broker, some) for broker, some in sorted(by_broker.items())))
        return {replica: each for part in parts for replica, each in part.items()}


async def _standings(peer: Peer, places: Sequence[TopicPartition]) -> dict[TopicPartition, Standing | SextonError]:
    found = await asking.standings(peer, places)
    return {place: each if isinstance(each, SextonError) else _standing(*each) for place, each in found.items()}


def _standing(answer: Answer, log_end_offset: int) -> Standing:
    return Standing(answer.high_watermark, answer.last_stable_offset, answer.log_start_offset, log_end_offset)


def _claims(producers: list[ProducerAt] | None, known: Mapping[int, bool | None]) -> Claims:
    claims = [
        OpenClaim(each.producer_id, each.producer_epoch, each.start_offset, each.last_ms, known.get(each.producer_id))
        for each in producers or ()
        if each.start_offset is not None
    ]
    return Claims(tuple(claims), is_complete=producers is not None)
