"""A group that keeps its place in a topic that is deleted and made again.

It commits and asks by topic id, and notes with each offset which life it is for. Offsets only grow, so each was
committed once: what is told of a life was committed to that very life, or it has skipped records there.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from sexton.client.apis import Api
from sexton.client.client import Client
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError, check
from sexton.simulate.errors import SimulationFailure
from sexton.types import NO_OFFSET, PartitionId

CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)
OFFSET_COMMIT_BY_ID = Api(8, "OffsetCommit", 10, 10)
OFFSET_FETCH_BY_ID = Api(9, "OffsetFetch", 10, 10)
PAUSE_S = 0.5
ASKED_PROBABILITY = 0.4


@dataclass(slots=True)
class PlaceHistory:
    """Where a group has said that it is, in all lives of one topic."""

    topic: str
    committed: dict[PartitionId, set[int]] = field(default_factory=dict)
    """Also what nobody knows to be committed."""

    def told(self, key: PartitionId, offset: int, life: str) -> None:
        if offset == NO_OFFSET:
            return
        where = f"{self.topic}-{key[1]} of life {key[0]}"
        if life != str(key[0]):
            raise SimulationFailure("rule 2", f"a group is at {offset} of {where}: it was there in life {life}")
        if offset not in self.committed.get(key, ()):
            raise SimulationFailure("rule 2", f"a group is at {offset} of {where}, and never said so")


class LifeGroup:
    def __init__(self, topic: str, group: str, client: Client, rng: random.Random, is_over: Callable[[], bool]) -> None:
        self.history = PlaceHistory(topic)
        self._topic, self._group = topic, group
        self._client = client
        self._rng = rng
        self._is_over = is_over
        self._offset = 0

    async def run(self) -> None:
        while not self._is_over():
            await asyncio.sleep(PAUSE_S * self._rng.random())
            try:
                life = (await self._client.refresh([self._topic])).topics.get(self._topic)
                if life is not None and life.topic_id is not None and life.partitions:
                    partition = self._rng.choice(sorted(life.partitions))
                    await self._go_on(life.topic_id, partition)
            except CallError:
                self._client.forget(self._group)

    async def _go_on(self, topic_id: uuid.UUID, partition: int) -> None:
        if self._rng.random() < ASKED_PROBABILITY:
            await self._ask(topic_id, partition)
        else:
            await self._commit(topic_id, partition)

    async def _commit(self, topic_id: uuid.UUID, partition: int) -> None:
        self._offset += 1
        self.history.committed.setdefault((topic_id, partition), set()).add(self._offset)
        part = {
            "partition_index": partition,
            "committed_offset": self._offset,
            "committed_leader_epoch": -1,
            "committed_metadata": str(topic_id),
        }
        topics = [{"topic_id": topic_id, "partitions": [part]}]
        body = {"group_id": self._group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        peer = await self._client.coordinator(self._group)
        answer = await peer.call(OFFSET_COMMIT_BY_ID, body)
        check(answer.topics[0].partitions[0].error_code, self._group)

    async def _ask(self, topic_id: uuid.UUID, partition: int) -> None:
        topics = [{"topic_id": topic_id, "partition_indexes": [partition]}]
        named = {"group_id": self._group, "member_id": None, "member_epoch": -1, "topics": topics}
        peer = await self._client.coordinator(self._group)
        answer = await peer.call(OFFSET_FETCH_BY_ID, {"groups": [named], "require_stable": True})
        told = answer.groups[0]
        check(told.error_code, self._group)
        one = told.topics[0].partitions[0]
        check(one.error_code, self._group)
        self.history.told((topic_id, partition), one.committed_offset, one.metadata or "")
