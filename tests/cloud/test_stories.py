"""Cloud topics on simulated brokers: an idempotent producer writes through deaths of leaders, lost answers, late PUTs
and a store that is away. What was acknowledged is there, once, in order, and the metastore's tables obey their rules
after every change."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import suppress
from typing import Any

import pytest

from sexton.adapters.metastore.cloud.checks import CloudTables, read_tables, step_violations, violations
from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.client.errors import ProduceFailedError, ProduceUnknownError
from sexton.client.producer import Message, Producer
from sexton.cloud.replica import CloudReplica
from sexton.protocol.errors import KafkaError
from sexton.records.batch import decode_all
from sexton.simulate.cluster import Node
from sexton.simulate.loop import NS
from sexton.simulate.objects import ObjectService, StoreWeather
from sexton.types import NO_LEADER
from tests.log.helpers import content
from tests.simulated import TOPIC, Story

CLOUD = {"storage.mode": "cloud"}
CHANGES = frozenset({"register_objects", "release_objects", "claim_partitions", "commit_l0", "create_topic"})


class CloudStory(Story):
    def __init__(self, seed: int) -> None:
        super().__init__(3, seed)
        self.rng = random.Random(f"{seed}:story")
        self.store = self.cluster.objects = ObjectService(self.loop, random.Random(f"{seed}:objects"), self.fabric)
        self.acknowledged: list[bytes] = []
        self._tables: CloudTables | None = None
        told = self.cluster.metastore.observer

        def observe(who: str, operation: str, arguments: tuple[Any, ...], result: Any) -> None:
            assert told is not None
            told(who, operation, arguments, result)
            if operation in CHANGES:
                self._check()
            self._may_kill(operation)

        self.cluster.metastore.observer = observe
        self.store.observer = lambda who, operation, arguments, result: self._may_kill(operation)
        self.deaths_left = 0
        """Leaders that die the moment a commit or a PUT of theirs was carried out, before they know."""
        self.is_over = asyncio.Event()

    def _check(self) -> None:
        inner = self.cluster.metastore.inner
        assert isinstance(inner, InProcessMetastore)
        tables = inner.call(read_tables)
        assert list(violations(tables)) == []
        if self._tables is not None:
            assert list(step_violations(self._tables, tables)) == []
        self._tables = tables

    def leader(self) -> CloudReplica | None:
        row = self.row()
        if row.leader == NO_LEADER or not self.node(row.leader).is_started:
            return None
        with suppress(KafkaError):
            replica = self.broker(row.leader).replicas.leader(TOPIC, 0)
            assert isinstance(replica, CloudReplica)
            return replica
        return None

    async def begin(self) -> None:
        await self.start(1, 2, 3)

        async def create() -> None:
            await self.admin.create_topic(TOPIC, settings=CLOUD, assignment=[[1, 2]])

        await self.client_does(create())
        await self.until(lambda: self.leader() is not None)

    async def write(self, count: int) -> None:  # type: ignore[override]
        """So many at least, and until it is over."""

        async def send() -> None:
            producer = Producer(self.new_client(), delivery_timeout_ms=300_000)
            for number in itertools.count():
                if number >= count and self.is_over.is_set():
                    return
                value = b"value-%d" % number
                with suppress(ProduceFailedError, ProduceUnknownError):
                    await producer.send(TOPIC, 0, [Message(b"k", value)])
                    self.acknowledged.append(value)

        await self.client_does(send())

    def _may_kill(self, operation: str) -> None:
        if not self.deaths_left or operation not in ("commit_l0", "put") or self.rng.random() < 0.7:
            return
        node = self.node(self.row().leader) if self.row().leader != NO_LEADER else None
        if node is not None and node.is_started:
            self.deaths_left -= 1
            self.loop.call_for(self.loop.world, 0, self._kill, node)

    def _kill(self, node: Node) -> None:
        if node.is_up:
            self.cluster.kill(node, power_lost=False)
            self.loop.call_for(self.loop.world, self.rng.randrange(1, 9) * NS, self.cluster.start, node)

    async def kill_leaders(self, count: int) -> None:
        self.deaths_left = count
        await self.until(lambda: self.deaths_left == 0, 600)
        await asyncio.sleep(10)
        self.is_over.set()

    async def read(self) -> list[bytes]:
        """As a consumer, at the leader of the end, whose memory is that of a new process."""
        values: list[bytes] = []
        offset = 0
        async with asyncio.timeout(600):
            while True:
                replica = self.leader()
                if replica is None:
                    await asyncio.sleep(0.1)
                    continue
                if offset == replica.high_watermark == replica.log.end_offset:
                    return values
                try:
                    found = replica.read(offset, 1 << 20, committed_only=True, min_one=True)
                except KafkaError:
                    await asyncio.sleep(1)
                    continue
                for batch in decode_all(content(found.parts)):
                    values += [record.value or b"" for record in batch.records]
                offset = found.next_offset
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_acknowledged_is_there_once_and_in_order_whoever_dies(seed: int) -> None:
    story = CloudStory(seed)

    async def go() -> None:
        await story.begin()
        hosts = list(story.cluster.nodes)
        story.store.weather = StoreWeather(
            lost_probabilities=dict.fromkeys(hosts, 0.05), late_probability=0.02, busy_probability=0.02
        )
        story.cluster.metastore.weather.break_probabilities = dict.fromkeys(hosts, 0.02)
        await asyncio.gather(story.write(60), story.kill_leaders(4))
        story.store.weather = StoreWeather()
        story.cluster.metastore.weather.break_probabilities = {}
        (last,) = [node for node in story.cluster.nodes.values() if node.broker_id == 3]
        if not last.is_up:
            story.cluster.start(last)
        values = await story.read()
        assert len(values) == len(set(values)), "a record is there twice"
        there = [value for value in values if value in set(story.acknowledged)]
        assert there == story.acknowledged
        assert len(story.acknowledged) >= 50

    story.run(go())


@pytest.mark.parametrize("how", ["down", "hanging", "refusing"])
def test_a_store_that_is_away_for_two_minutes_costs_time_and_nothing_else(how: str) -> None:
    story = CloudStory(7)

    async def go() -> None:
        await story.begin()

        async def go_away() -> None:
            story.is_over.set()
            await asyncio.sleep(2)
            if how == "hanging":
                story.store.hang()
            story.store.is_down, story.store.is_refusing = how == "down", how == "refusing"
            await asyncio.sleep(120)
            story.store.is_down = story.store.is_refusing = False
            story.store.go_on()

        await asyncio.gather(story.write(60), go_away())
        assert await story.read() == story.acknowledged == [b"value-%d" % number for number in range(60)]

    story.run(go())
