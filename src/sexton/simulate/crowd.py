"""All clients of a run: writers, transactional producers, readers, groups, compactors, the administrator."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Coroutine
from typing import Any

from sexton.client.client import Client
from sexton.client.fetching import READ_COMMITTED
from sexton.simulate.administrator import NAME as ADMIN
from sexton.simulate.clock import SimulatedClock, WallClock
from sexton.simulate.cluster import SimulatedCluster
from sexton.simulate.compactors import CompactorHost
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History
from sexton.simulate.life_groups import LifeGroup
from sexton.simulate.lives import Lives
from sexton.simulate.loop import Process
from sexton.simulate.movers import NAMES as MOVERS
from sexton.simulate.operators import NAME as OPERATOR
from sexton.simulate.plan import Plan, ReaderPlan
from sexton.simulate.readers import GroupReader, Reader
from sexton.simulate.trace import Trace
from sexton.simulate.transactors import Transactor, TransactorPlan
from sexton.simulate.values import Values
from sexton.simulate.writers import Writer
from sexton.types import TopicPartition

CLIENT_TIMEOUT_MS = 5_000

LIFE_GROUP_PROBABILITY = 1 / 3
"""Of a topic that is made again: the other runs are as they were before there were such groups, and find what they
found."""


class Crowd:
    def __init__(self, cluster: SimulatedCluster, plan: Plan, history: History, trace: Trace) -> None:
        self._plan = plan
        self._cluster = cluster
        self._loop = cluster.loop
        self._fabric = cluster.fabric
        self._history = history
        self._trace = trace
        names = [ADMIN, OPERATOR, *MOVERS, *(each.name for each in plan.writers), *(each.name for each in plan.readers)]
        self.clients: dict[str, tuple[Process, Client]] = {name: self._client(name, name) for name in names}
        self._writers: list[tuple[Writer | Transactor, asyncio.Task[None]]] = []
        self.delivered: dict[str, dict[TopicPartition, set[int]]] = {}
        """Offsets that each group as a whole was given."""
        self.read_places = [place for topic in self._plan.topics for place in topic.places]
        self.committed_readers: list[Reader] = []
        self.lives: list[Lives] = []
        """Topics that are deleted and made again."""
        self.living: list[asyncio.Task[None]] = []
        """The tasks that delete, make, write and read them."""
        self.is_healed = False
        """This and the next two are set by the simulation: clients go by them."""
        self.writing_is_over = False
        self.reading_is_over = False

    def _client(self, host: str, name: str) -> tuple[Process, Client]:
        rng = random.Random(f"{self._plan.seed}:{name}")
        process = Process(name, self._loop.now_ns, rate_ppm=rng.randint(-20_000, 20_000))
        client = Client(
            self._fabric.of(process, host),
            self._cluster.addresses,
            clock=SimulatedClock(WallClock(rng.randint(-1000, 1000)), process, self._loop),
            rng=rng,
            client_id=name,
            timeout_ms=CLIENT_TIMEOUT_MS,
            connect_timeout_ms=CLIENT_TIMEOUT_MS,
        )
        return process, client

    def start(self) -> None:
        for plan in self._plan.writers:
            process, client = self.clients[plan.name]
            rng = random.Random(f"{self._plan.seed}:{plan.name}:values")
            values = Values(plan.name, rng, plan.value_bytes_max, self._plan.compacted_topics)
            writer = Writer(
                plan=plan,
                client=client,
                history=self._history,
                trace=self._trace,
                loop=self._loop,
                rng=rng,
                values=values,
                is_over=lambda: self.writing_is_over,
                limits=self._plan.batch_limits,
                waiting=[topic.name for topic in self._plan.topics if topic.is_cloud],
            )
            self._writers.append((writer, self.spawn(process, writer.run())))
        for each in self._plan.transactors:
            transactor = self._transactor(each)
            self._writers.append((transactor, self.spawn(self._loop.world, transactor.run())))
        for one in self._plan.compactors:
            host = CompactorHost(one, self._cluster, self._trace, self._plan.seed)
            self.spawn(self._loop.world, host.run(self.watch, lambda: self.is_healed))
        for reader in self._plan.readers:
            self._start_reader(reader)
        for life in self._plan.lives:
            process, user = self._client(life.name, life.name)
            rng = random.Random(f"{self._plan.seed}:{life.name}:life")
            lives = Lives(life, (self.clients[MOVERS[0]][1], user), rng, self._trace, lambda: self.writing_is_over)
            self.lives.append(lives)
            self.living.append(self.spawn(process, lives.run()))
            rng = random.Random(f"{self._plan.seed}:{life.name}:place")
            if rng.random() < LIFE_GROUP_PROBABILITY:
                group = LifeGroup(life.topic, f"{life.name}-group", user, rng, lambda: self.writing_is_over)
                self.living.append(self.spawn(process, group.run()))

    def _transactor(self, plan: TransactorPlan) -> Transactor:
        rng = random.Random(f"{self._plan.seed}:{plan.name}:values")
        host = self._fabric.hosts[plan.name]

        def kill(process: Process) -> None:
            self._loop.kill(process)
            self._fabric.process_killed(process, host, power_lost=False)

        return Transactor(
            plan=plan,
            history=self._history,
            trace=self._trace,
            loop=self._loop,
            seed=self._plan.seed,
            values=Values(plan.name, rng, plan.value_bytes_max, self._plan.compacted_topics),
            start=lambda name: self._client(plan.name, name),
            kill=kill,
            watch=self.watch,
            is_over=lambda: self.writing_is_over,
        )

    def _start_reader(self, plan: ReaderPlan) -> None:
        process, client = self.clients[plan.name]
        if plan.group is None:
            reader = Reader(
                name=plan.name,
                places=self.read_places,
                client=client,
                history=self._history,
                is_over=lambda: self.reading_is_over,
                isolation=plan.isolation,
                pause_ms=plan.pause_ms,
                rack=plan.rack,
                keeps_sessions=zlib.crc32(f"{self._plan.seed} {plan.name}".encode()) % 2 == 0,
            )
            if plan.isolation == READ_COMMITTED:
                self.committed_readers.append(reader)
            self.spawn(process, reader.run())
            return
        topics = [topic.name for topic in self._plan.topics if not topic.is_compacted]
        if not topics:
            return
        member = GroupReader(
            name=plan.name,
            group=plan.group,
            topics=topics,
            client=client,
            history=self._history,
            delivered=self.delivered.setdefault(plan.group, {}),
            trace=self._trace,
            is_over=lambda: self.reading_is_over,
            pause_ms=plan.pause_ms,
            is_healed=lambda: self.is_healed,
            is_consumer_protocol=plan.is_consumer_protocol,
            rack=plan.rack,
        )
        self.spawn(process, member.run())

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.watch(self._loop.spawn(process, coroutine))

    def watch(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A client that fails is a failure of the simulation, at once."""
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = task.exception() if not task.cancelled() else None
        if error is not None:
            if not isinstance(error, SimulationFailure):
                failure = SimulationFailure("crash", f"in a client: {type(error).__name__}: {error}")
                failure.__cause__ = error
                error = failure
            self._loop.failures.append(error)
            self._loop.stop()

    def pending(self, *admin_tasks: asyncio.Task[None]) -> list[str]:
        pending = [line for writer, task in self._writers if not task.done() for line in writer.stuck() or ["a writer"]]
        return pending + ["an administrator is not done" for task in admin_tasks if not task.done()]
