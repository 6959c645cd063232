"""Stories on a simulated cluster: real brokers under virtual time, and a client whose steps a test writes down.

    def test_something(story: Story) -> None: ...

A story runs as the world, so it may look into brokers and cut links at any instant; what a client does runs as the
client's own process (`Story.admin`, `Story.write`). Whatever a broker did not expect fails the story.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, cast

from sexton.broker.broker import Broker
from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.client.errors import ProduceFailedError, ProduceUnknownError
from sexton.client.producer import Message, Producer
from sexton.compactor.engines.reference import carry_out
from sexton.ports.metastore import PartitionRow
from sexton.ports.network import Network
from sexton.protocol.errors import KafkaError
from sexton.replication.local_replica import LocalReplica
from sexton.simulate.clock import SimulatedClock, WallClock
from sexton.simulate.cluster import BrokerTimes, Node, SimulatedCluster
from sexton.simulate.loop import Process, SimulatedLoop, new_loop
from sexton.simulate.network import Fabric, Weather
from sexton.simulate.observe import Agreement
from sexton.simulate.trace import Trace

CLIENT = "client"
TOPIC = "t"
T = TypeVar("T")


class Story:
    """One topic of one partition is enough for most; whoever needs more asks `admin`."""

    def __init__(self, brokers_count: int, seed: int = 1, *, adopts: bool = True) -> None:
        self.loop: SimulatedLoop = new_loop(random.Random(seed))
        self.trace = Trace(self.loop)
        self.fabric = Fabric(self.loop, random.Random(seed + 1), Weather(straggler_probability=0))
        times = BrokerTimes(5_000, 10_000, adopts)
        self.cluster = SimulatedCluster(
            loop=self.loop, seed=seed, brokers_count=brokers_count, fabric=self.fabric, trace=self.trace, times=times
        )
        self.agreement = Agreement(self.trace)
        self.cluster.metastore.observer = self.agreement.carried_out
        self.fabric.add_host(CLIENT)
        self._process = Process(CLIENT)
        self._clients_rng = random.Random(seed + 2)
        self._client = self.new_client()
        self.admin = Admin(self._client)
        self._producer: Producer | None = None
        self.has_bugs = False
        """Put there by the test: brokers are to survive them."""

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """To its end; raises what it raises, and SimulationFailure if a broker met what it did not expect."""
        try:
            self.loop.run_until_complete(story)
            for broker in (node.broker for node in self.cluster.nodes.values()):
                assert self.has_bugs or broker is None or not broker.supervisor.bugs, broker.supervisor.bugs
        finally:
            self.loop.close()

    async def until(self, is_true: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not is_true():
                await asyncio.sleep(0.001)

    # The cluster

    async def start(self, *broker_ids: int) -> None:
        nodes = [self.node(broker_id) for broker_id in broker_ids] or list(self.cluster.nodes.values())
        for node in nodes:
            self.cluster.start(node)
        await self.until(lambda: all(node.is_started for node in nodes))
        await asyncio.sleep(1)  # longer than metadata.poll.ms: whoever was up before knows them as active

    def node(self, broker_id: int) -> Node:
        return self.cluster.node_of(broker_id)

    def broker(self, broker_id: int) -> Broker:
        found = self.node(broker_id).broker
        assert found is not None, f"broker {broker_id} is down"
        return found

    def replica(self, broker_id: int, topic: str = TOPIC) -> LocalReplica:
        found = self.broker(broker_id).replicas.local(topic, 0)
        assert isinstance(found, LocalReplica)
        return found

    def row(self, topic: str = TOPIC) -> PartitionRow:
        """As the metastore has it."""
        (topic_id,) = (id_ for id_, name in self.agreement.topics.items() if name == topic)
        return (self.agreement.rows | self.agreement.cloud_rows)[topic_id, 0]

    async def in_sync(self, *broker_ids: int, topic: str = TOPIC, seconds: float = 60) -> None:
        await self.until(lambda: sorted(self.row(topic).isr) == sorted(broker_ids), seconds)

    async def led_by(self, broker_id: int, topic: str = TOPIC) -> None:
        def is_led() -> bool:
            with suppress(KafkaError):  # its log is being made
                return self.node(broker_id).is_started and self.replica(broker_id, topic).is_leader
            return False

        await self.until(is_led)

    def isolate(self, broker_id: int, *, but_for: int | None = None) -> None:
        """From the other brokers, but for one, and the client. It still reaches the metastore."""
        for own, other in self._ways(broker_id, but_for):
            self.fabric.cut(own, other)
            self.fabric.cut(other, own)

    def reconnect(self, broker_id: int, *, but_for: int | None = None) -> None:
        for own, other in self._ways(broker_id, but_for):
            self.fabric.heal(own, other)
            self.fabric.heal(other, own)

    def _ways(self, broker_id: int, but_for: int | None) -> list[tuple[str, str]]:
        own = self.node(broker_id).name
        spared = own if but_for is None else self.node(but_for).name
        return [(own, other) for other in (*self.cluster.nodes, CLIENT) if other not in (own, spared)]

    # The client

    @property
    def network(self) -> Network:
        """The client's."""
        return self.fabric.of(self._process, CLIENT)

    def new_client(self) -> Client:
        """One more, in the client's process."""
        clock = SimulatedClock(WallClock(), self._process, self.loop)
        return Client(self.network, self.cluster.addresses, clock=clock, rng=self._clients_rng)

    async def client_does(self, step: Coroutine[Any, Any, T]) -> T:
        return await self.loop.spawn(self._process, step)

    async def create_topic(
        self, brokers: Sequence[int], settings: dict[str, str] | None = None, *, topic: str = TOPIC
    ) -> None:
        """The first of the brokers leads."""

        async def create() -> None:
            await self.admin.create_topic(topic, settings=settings, assignment=[brokers])

        await self.client_does(create())
        await self.led_by(brokers[0], topic)

    async def write(self, *records: tuple[bytes, bytes | None], topic: str = TOPIC) -> None:
        """Each record a batch of its own, acknowledged by all in-sync replicas."""

        async def send() -> None:
            if self._producer is None:
                self._producer = Producer(self._client, idempotent=False)
            for key, value in records:
                await self._producer.send(topic, 0, [Message(key, value)])

        await self.client_does(send())

    async def compact(self, broker_id: int, topic: str = TOPIC) -> int:
        """All there is, the active segment too, by the broker's own plan and commit. Returns the bound."""
        node, broker, replica = self.node(broker_id), self.broker(broker_id), self.replica(broker_id, topic)
        assert node.process is not None
        process = node.process

        async def passes() -> int:
            await broker.compaction.request(topic, 0)
            plan = await broker.compaction.plans.plan(replica.topic_id, 0)
            await broker.compaction.plans.commit(carry_out(node.volume.of(process, self.loop), plan))
            return plan.bound

        return await self.loop.spawn(process, passes())


class Ledger:
    """What was acknowledged, and what is left of it."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._sent = 0
        self.acknowledged: list[tuple[int, bytes]] = []

    async def write(self, count: int, timeout_ms: int = 30_000) -> None:
        async def send() -> None:
            producer = Producer(self._story.admin.client, idempotent=False, delivery_timeout_ms=timeout_ms)
            for _ in range(count):
                self._sent += 1
                value = b"value-%d" % self._sent
                with suppress(ProduceFailedError, ProduceUnknownError):
                    offset = await producer.send(TOPIC, 0, [Message(b"k", value)])
                    self.acknowledged.append((offset, value))

        await self._story.client_does(send())

    def lost(self, broker_id: int) -> list[int]:
        log = self._story.replica(broker_id).log
        held = log.read(log.start_offset, 1 << 30, log.end_offset, min_one=True)
        content = b"".join(bytes(cast(Any, part)) for part in held.parts)
        return [offset for offset, value in self.acknowledged if value not in content]


@contextmanager
def crashing_at(story: Story, broker_id: int, step: int, *, power_lost: bool) -> Iterator[asyncio.Event]:
    """The process that is started within loses its life, or its machine the power, before its disk's names change for
    the next time after so many changes. The event says that it did."""
    node, crashed, changes = story.node(broker_id), asyncio.Event(), 0
    volume = node.volume
    carry_out = volume.set_names

    def set_names(*names: Any) -> None:
        nonlocal changes
        changes += 1
        if changes <= step or crashed.is_set():
            carry_out(*names)
            return
        assert node.process is not None
        node.process.alive = False
        crashed.set()
        story.loop.call_for(story.loop.world, 0, partial(story.cluster.kill, node, power_lost=power_lost))
        raise OSError(errno.EIO, "the process is dead")

    volume.set_names = set_names  # type: ignore[method-assign]
    try:
        yield crashed
    finally:
        volume.set_names = carry_out  # type: ignore[method-assign]
