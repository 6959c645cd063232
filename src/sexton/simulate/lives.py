"""Topics that are deleted and made again under the same name, while somebody writes to them and somebody reads.

A topic's *life* is its id. What was written to one life is never seen in another, and what was acknowledged in a life
that still exists at the end is there, at its offset. Everybody here names the life that is meant (Produce and Fetch by
topic id), but for some writes by name, which may end up in whichever life is there: in one of them, at most.

Every record says which life it is for, so the judge needs no ledger of names.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from sexton.client import apis, fetching
from sexton.client.admin import Admin
from sexton.client.apis import Api
from sexton.client.client import Client
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError, check
from sexton.client.metadata import TopicInfo
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.records.batch import Record
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.trace import Trace
from sexton.types import PartitionId

CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)
PRODUCE_BY_ID = Api(0, "Produce", 13, 13)
FETCH_BY_ID = Api(1, "Fetch", 13, 13)
TIMEOUT_MS = 5_000
BACKOFF_S = 0.2
FETCH_BYTES_MAX = 1 << 20
KEYS_COUNT = 10
ANY_LIFE = "any"
"""Of a record that was written by name."""


@dataclass(frozen=True, slots=True)
class LifePlan:
    name: str
    """Of the host of those who write and read it, and make it."""
    topic: str
    settings: Mapping[str, str]
    replicas_counts: tuple[int, ...]
    lasts_ms: int
    """How long a life lasts, more or less."""
    apart_ms: int
    """Between the end of one and the beginning of the next, at most."""
    interval_ms: int

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings.get("cleanup.policy", "delete")


@dataclass(slots=True)
class LifeHistory:
    """What was written to one topic in all its lives, and what was read of it."""

    topic: str
    acknowledged: dict[PartitionId, dict[int, bytes]] = field(default_factory=dict)
    failed: set[bytes] = field(default_factory=set)
    seen: dict[PartitionId, dict[int, bytes]] = field(default_factory=dict)
    by_name: dict[bytes, PartitionId] = field(default_factory=dict)
    """In which life and partition a record was seen that was written by name."""

    def saw(self, key: PartitionId, offset: int, identity: bytes) -> None:
        """Rule 2, of lives: a record belongs to one, and an offset of one has one value."""
        where = f"{self.topic}-{key[1]}@{offset} of life {key[0]}"
        life = identity.split(b":")[0].decode()
        if life not in (str(key[0]), ANY_LIFE):
            raise SimulationFailure("rule 2", f"{identity!r} was read at {where}: it was written to another life")
        if life == ANY_LIFE and self.by_name.setdefault(identity, key) != key:
            raise SimulationFailure("rule 2", f"{identity!r} was read at {where}, and in another life as well")
        if identity in self.failed:
            raise SimulationFailure("rule 9", f"{identity!r} was read at {where}: its producer was told that it failed")
        before = self.seen.setdefault(key, {}).setdefault(offset, identity)
        if before != identity:
            raise SimulationFailure("rule 2", f"{identity!r} was read at {where}, where {before!r} was read before")

    def check(self, key: PartitionId, found: Mapping[int, bytes]) -> None:
        """Rule 1, of a partition of a life that exists: all that was acknowledged, and all that was read, is there."""
        for promised, how in ((self.acknowledged, "acknowledged"), (self.seen, "read")):
            for offset, identity in promised.get(key, {}).items():
                if found.get(offset) != identity:
                    where = f"{self.topic}-{key[1]}@{offset} of life {key[0]}"
                    raise SimulationFailure("rule 1", f"{identity!r} was {how} at {where}, and is gone")


class Lives:
    """One topic: who makes it, again and again, and who uses it."""

    def __init__(
        self,
        plan: LifePlan,
        clients: tuple[Client, Client],
        rng: random.Random,
        trace: Trace,
        is_over: Callable[[], bool],
    ) -> None:
        self.plan = plan
        self.history = LifeHistory(plan.topic)
        self._maker, self._user = clients
        self._rng = rng
        self._trace = trace
        self._is_over = is_over
        self._count = 0

    async def run(self) -> None:
        await asyncio.gather(self._remake(), self._write(), self._read())

    # Making and deleting

    async def _remake(self) -> None:
        """Through one client or the other: brokers that have not heard of the end hear of the beginning."""
        rng, plan = self._rng, self.plan
        admins = [Admin(self._maker), Admin(self._user)]
        while not self._is_over():
            partitions_count, replicas_count = rng.randint(1, 2), rng.choice(plan.replicas_counts)
            making = rng.choice(admins).create_topic(plan.topic, partitions_count, replicas_count, plan.settings)
            await self._try("made", making)
            await asyncio.sleep(plan.lasts_ms * (0.2 + 1.6 * rng.random()) / 1000)
            if self._is_over():
                return
            await self._try("deleted", rng.choice(admins).delete_topic(plan.topic))
            await asyncio.sleep(plan.apart_ms * rng.random() / 1000)

    async def _try(self, what: str, request: Coroutine[Any, Any, Any]) -> None:
        try:
            await request
            self._trace.note(self.plan.name, f"{self.plan.topic} is {what}")
        except CallError as error:
            self._trace.note(self.plan.name, f"{self.plan.topic} was not {what}, or nobody knows: {error.what}")

    # Using

    async def _life(self) -> TopicInfo | None:
        """As the broker that is asked knows it: maybe the one before, or a moment later none."""
        try:
            return (await self._user.refresh([self.plan.topic])).topics.get(self.plan.topic)
        except CallError:
            return None

    async def _write(self) -> None:
        rng = self._rng
        while not self._is_over():
            await asyncio.sleep(self.plan.interval_ms * (0.5 + rng.random()) / 1000)
            life = await self._life()
            if life is None or life.topic_id is None or not life.partitions:
                continue
            for _ in range(rng.randint(1, 5)):
                partition = rng.choice(sorted(life.partitions))
                if not await self._produce(life.topic_id, partition, is_by_name=rng.random() < 0.2):
                    break

    async def _produce(self, topic_id: uuid.UUID, partition: int, *, is_by_name: bool) -> bool:
        """Whether the same life can be written to again. Each batch is sent once."""
        rng, topic = self._rng, self.plan.topic
        named = {"name": topic} if is_by_name else {"topic_id": topic_id}
        now_ms = self._user.clock.now_ms()
        identities = [self._identity(ANY_LIFE if is_by_name else str(topic_id)) for _ in range(rng.randint(1, 4))]
        keys = [f"key-{rng.randrange(KEYS_COUNT)}".encode() for _ in identities]
        records = [Record(index, now_ms, *each) for index, each in enumerate(zip(keys, identities, strict=True))]
        data = batches.encode(batches.make_batch(records, leader_epoch=-1))
        parts = [{"index": partition, "records": data}]
        body = {"acks": -1, "timeout": TIMEOUT_MS, "topic_data": [named | {"partition_data": parts}]}
        try:
            peer = await self._user.leader(topic, partition)
            answer = await peer.call(apis.PRODUCE if is_by_name else PRODUCE_BY_ID, body, 2 * TIMEOUT_MS)
        except CallError:
            self._user.forget()
            return False
        told = answer.responses[0].partition_responses[0]
        code = ErrorCode(told.error_code)
        if code is not ErrorCode.none:
            if told.base_offset != -1:
                raise SimulationFailure("rule 9", f"{code.name} for {topic}-{partition} came with an offset")
            if code in (ErrorCode.unknown_topic_id, ErrorCode.not_enough_replicas):
                self.history.failed.update(identities)
            self._user.forget()
            return False
        if not is_by_name:
            known = self.history.acknowledged.setdefault((topic_id, partition), {})
            known.update((told.base_offset + index, identity) for index, identity in enumerate(identities))
        return True

    def _identity(self, life: str) -> bytes:
        self._count += 1
        return f"{life}:{self._count}:".encode() + bytes(self._rng.choice((10, 100, 2_000)))

    async def _read(self) -> None:
        """Each partition of the present life from its beginning on; the next one from its own."""
        positions: dict[PartitionId, int] = {}
        while not self._is_over():
            life = await self._life()
            if life is None or life.topic_id is None:
                await asyncio.sleep(BACKOFF_S)
                continue
            for partition in sorted(life.partitions):
                key = (life.topic_id, partition)
                try:
                    positions[key] = await self._read_on(key, positions.get(key, 0))
                except CallError:
                    self._user.forget()
            await asyncio.sleep(BACKOFF_S * self._rng.random())

    async def _read_on(self, key: PartitionId, offset: int) -> int:
        records, next_offset, _ = await self._fetch(key, offset)
        for record in records:
            self.history.saw(key, record.offset, record.value or b"")
        return next_offset

    async def _fetch(self, key: PartitionId, offset: int) -> tuple[list[Record], int, int]:
        topic_id, partition = key
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES_MAX}
        body = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES_MAX,
            "isolation_level": fetching.READ_UNCOMMITTED,
            "topics": [{"topic_id": topic_id, "partitions": [part]}],
        }
        peer = await self._user.leader(self.plan.topic, partition)
        answer = await peer.call(FETCH_BY_ID, body)
        check(answer.error_code, peer.rpc.peer)
        told = answer.responses[0].partitions[0]
        where = f"{self.plan.topic}-{partition}"
        check(told.error_code, where)
        records, next_offset = fetching.visible(told.records or b"", offset, where)
        return records, next_offset, told.high_watermark

    # At the end

    async def check(self, key: PartitionId) -> None:
        """Of a life that exists: everything that was promised of it."""
        found: dict[int, bytes] = {}
        offset, end_offset = 0, 1
        while offset < end_offset:

            async def attempt(at: int = offset) -> tuple[list[Record], int, int]:
                return await self._fetch(key, at)

            records, offset, end_offset = await self._user.retry(attempt, timeout_ms=30_000)
            found.update((record.offset, record.value or b"") for record in records)
            for record in records:
                self.history.saw(key, record.offset, record.value or b"")
        if not self.plan.is_compacted:
            self.history.check(key, found)
