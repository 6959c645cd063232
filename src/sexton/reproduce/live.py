"""A real cluster as a script's world: requests through Sexton's client, processes through `sexton.harness`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sexton.client import apis, fetching
from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, fetch_body, list_offsets
from sexton.client.errors import RefusedError, check
from sexton.client.fetching import READ_COMMITTED, Aborted
from sexton.client.producer import Message, Producer
from sexton.client.raw import raw_batches
from sexton.client.transaction_admin import PREPARE, describe_producers, describe_transaction
from sexton.client.transactions import TransactionalProducer, coordinator_id
from sexton.errors import SextonError
from sexton.records.batch import Batch
from sexton.reproduce import second_reader
from sexton.reproduce.steps import Place
from sexton.reproduce.world import AWAY, BROKERS, FILLER_KEY, FIRST_LEADER, Sight

FILLER_INTERVAL_S: Final = 1.0
POLL_S: Final = 0.2
LEAD_TIMEOUT_S: Final = 60.0
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""As long as brokers allow by default: whoever goes step by step may take a look first."""

WARM_UP_TOPIC: Final = "warm-up"
WARM_UP_TIMEOUT_S: Final = 300.0
"""Spark starts in ten seconds on two quiet cores, and in minutes where many want them."""

NAMES_COUNT: Final = 50
"""Transactional ids to try until one is coordinated by a broker that stays: two of three are."""


class Cluster(Protocol):
    """What `KafkaCluster` and `SextonCluster` have in common. These calls block."""

    @property
    def bootstrap(self) -> str: ...

    def kill_node(self, node_id: int) -> None: ...

    def start_node(self, node_id: int) -> None: ...

    def partition_dir(self, node_id: int, topic: str, partition: int) -> Path: ...


@dataclass(slots=True)
class _Topic:
    filler: asyncio.Task[None]
    producer: TransactionalProducer | None = None


class LiveWorld:
    def __init__(self, cluster: Cluster, client: Client, topic_settings: Mapping[str, str]) -> None:
        self.cluster = cluster
        self._client = client
        self._admin = Admin(client)
        self._settings = topic_settings
        self._producer = Producer(client)
        self._topics: dict[str, _Topic] = {}

    async def close(self) -> None:
        for topic in self._topics.values():
            topic.filler.cancel()
        await asyncio.gather(*(topic.filler for topic in self._topics.values()), return_exceptions=True)
        await self._producer.close()

    # ---- Topics and their leaders.

    async def make_topic(self, topic: str) -> None:
        order = [FIRST_LEADER, *(each for each in BROKERS if each != FIRST_LEADER)]
        await self._admin.create_topic(topic, assignment=[order], settings=self._settings)
        await self._until(self._is_whole, topic)
        self._topics[topic] = _Topic(asyncio.ensure_future(self._fill(topic)))

    async def warm_up(self) -> None:
        """Until a first compaction was seen: whatever has to start for it (Spark) has started, and runs."""
        if WARM_UP_TOPIC in (await self._client.refresh(None)).topics:
            return  # another world of the same brokers has seen it
        await self.make_topic(WARM_UP_TOPIC)
        deadline_s = asyncio.get_running_loop().time() + WARM_UP_TIMEOUT_S
        while not await self._has_lost_its_first(WARM_UP_TOPIC):
            if asyncio.get_running_loop().time() > deadline_s:
                raise SextonError(f"nothing was compacted in {WARM_UP_TIMEOUT_S:g} s", "", "Is the machine very busy?")
            await asyncio.sleep(POLL_S)
        self._topics.pop(WARM_UP_TOPIC).filler.cancel()

    async def _has_lost_its_first(self, topic: str) -> bool:
        offsets = [record.offset for batch in await self.log(topic) for record in batch.records]
        return bool(offsets) and offsets[0] > 0

    async def _is_whole(self, topic: str) -> bool:
        return await self.in_sync(topic) == frozenset(BROKERS) and await self.leader(topic) == FIRST_LEADER

    async def in_sync(self, topic: str) -> frozenset[int]:
        return frozenset((await self._client.topic(topic)).partitions[0].isr)

    async def leader(self, topic: str) -> int:
        return (await self._client.topic(topic)).partitions[0].leader

    async def move_leadership(self, topic: str, broker_id: int) -> None:
        """Makes the broker the preferred replica (the same replicas in another order), and waits until it leads."""
        await self._admin.reassign({(topic, 0): [broker_id, *(each for each in BROKERS if each != broker_id)]})
        deadline_s = asyncio.get_running_loop().time() + LEAD_TIMEOUT_S
        while await self.leader(topic) != broker_id:
            if asyncio.get_running_loop().time() > deadline_s:
                raise SextonError(f"broker {broker_id} did not become leader in {LEAD_TIMEOUT_S:g} s", topic)
            await self._admin.elect_leaders([(topic, 0)])
            await asyncio.sleep(POLL_S)

    async def _until(self, reached: Callable[[str], Awaitable[bool]], topic: str) -> None:
        async with asyncio.timeout(LEAD_TIMEOUT_S):
            while not await reached(topic):
                await asyncio.sleep(POLL_S)

    # ---- Writing.

    async def write(self, topic: str, key: str, value: str | None) -> int:
        return await self._producer.send(topic, 0, [_message(key, value)])

    async def write_in_transaction(self, topic: str, key: str, value: str | None) -> int:
        known = self._topics[topic]
        if known.producer is None:
            name = await self._transactional_id(topic)
            known.producer = TransactionalProducer(self._client, name, timeout_ms=TRANSACTION_TIMEOUT_MS)
            await known.producer.init()
        if not known.producer.is_open:
            known.producer.begin()
        return await known.producer.send(topic, 0, [_message(key, value)])

    async def _transactional_id(self, topic: str) -> str:
        """One whose coordinator stays, so that no failover of it comes between a script's steps."""
        for number in range(NAMES_COUNT):
            name = f"{topic}-{number}"
            if await coordinator_id(self._client, name) != AWAY:
                return name
        raise SextonError(f"broker {AWAY} coordinates all of {NAMES_COUNT} transactional ids", topic)

    async def end_transaction(self, topic: str, *, is_committed: bool) -> None:
        producer = self._topics[topic].producer
        assert producer is not None
        await (producer.commit() if is_committed else producer.abort())
        async with asyncio.timeout(LEAD_TIMEOUT_S):
            while (await describe_transaction(self._client, producer.transactional_id)).state.startswith(PREPARE):
                await asyncio.sleep(POLL_S)

    async def _fill(self, topic: str) -> None:
        number = 0
        while True:
            with suppress(SextonError):  # between two leaders; the next one is written a second later
                await self.write(topic, FILLER_KEY, str(number))
                number += 1
            await asyncio.sleep(FILLER_INTERVAL_S)

    # ---- Brokers.

    async def kill(self, broker_id: int) -> None:
        await asyncio.to_thread(self.cluster.kill_node, broker_id)

    async def bring_back(self, broker_id: int) -> None:
        await asyncio.to_thread(self.cluster.start_node, broker_id)

    # ---- Looking.

    async def log(self, topic: str) -> Sequence[Batch]:
        async def attempt() -> list[Batch]:
            start = (await list_offsets(self._client, {(topic, 0): EARLIEST}))[(topic, 0)]
            return [batch async for batch in raw_batches(self._client, topic, 0, start)]

        return await self._client.retry(attempt)

    async def producer_id(self, topic: str) -> int:
        producer = self._topics[topic].producer
        return -1 if producer is None else producer.producer_id

    async def read(self, topic: str, until_key: str, until_value: str, patience_s: float) -> Sight:
        loop = asyncio.get_running_loop()
        producer_id = await self.producer_id(topic)
        offset = (await list_offsets(self._client, {(topic, 0): EARLIEST}))[(topic, 0)]
        deadline_s = loop.time() + patience_s
        fold: dict[str, str | None] = {}
        aborted: dict[int, None] = {}
        while True:
            part, read = await self._fetch(topic, offset)
            aborted |= {
                each.first_offset: None for each in part.aborted_transactions or () if each.producer_id == producer_id
            }
            for record in read.records:
                key = (record.key or b"").decode()
                fold[key] = None if record.value is None else record.value.decode()
            is_at_end = read.next_offset == offset
            offset = read.next_offset
            if is_at_end and (fold.get(until_key) == until_value or loop.time() > deadline_s):
                break
            await asyncio.sleep(0 if not is_at_end else POLL_S)
        return Sight(
            leader=await self.leader(topic),
            fold={key: value for key, value in fold.items() if value is not None and key != FILLER_KEY},
            high_watermark=part.high_watermark,
            last_stable_offset=part.last_stable_offset,
            aborted_offsets=tuple(sorted(aborted)),
            open_offset=await self._open_offset(topic, producer_id),
            second_fold=await self._read_by_librdkafka(topic),
        )

    async def _read_by_librdkafka(self, topic: str) -> Mapping[str, str] | None:
        if not second_reader.is_installed():
            return None
        fold = await asyncio.to_thread(second_reader.read_committed, self.cluster.bootstrap, topic)
        if fold is None:
            raise SextonError("librdkafka did not read to the end in time", topic, "Is the machine very busy?")
        return {key: value for key, value in fold.items() if key != FILLER_KEY}

    def place(self, topic: str) -> Place:
        """Where a person finds the cluster and its logs, to look at them by hand."""
        folders = {broker: str(self.cluster.partition_dir(broker, topic, 0)) for broker in BROKERS}
        return Place(self.cluster.bootstrap, folders)

    async def _fetch(self, topic: str, offset: int) -> tuple[Any, fetching.Fetched]:
        async def attempt() -> tuple[Any, fetching.Fetched]:
            peer = await self._client.leader(topic, 0)
            answer = await peer.call(apis.FETCH, fetch_body({(topic, 0): offset}, READ_COMMITTED, 0))
            check(answer.error_code, peer.rpc.peer)
            part = answer.responses[0].partitions[0]
            check(part.error_code, topic)
            aborted = [Aborted(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
            return part, fetching.visible(part.records or b"", offset, topic, aborted)

        return await self._client.retry(attempt)

    async def _open_offset(self, topic: str, producer_id: int) -> int | None:
        with suppress(RefusedError):
            for each in await describe_producers(self._client, [(topic, 0)]):
                if each.producer_id == producer_id:
                    return each.start_offset
        return None


def _message(key: str, value: str | None) -> Message:
    return Message(key.encode(), None if value is None else value.encode())
