"""Compactors: the real worker on the reference compactor. They die, stand still, and say things twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError
from sexton.compaction.contract import Committed, PassResult, Plan
from sexton.compactor.brokers import Brokers
from sexton.compactor.cloud.engine import Register
from sexton.compactor.cloud.plans import L1_BYTES, Compacted, Output, PartitionPlan, Writer, WrittenL1
from sexton.compactor.cloud.reference import ReferenceCloudEngine
from sexton.compactor.cloud.work import CloudWorker
from sexton.compactor.engine import PlanOutcome
from sexton.compactor.engines.reference import ReferenceEngine
from sexton.compactor.schedule import Limits
from sexton.compactor.worker import Compactor
from sexton.errors import SextonError
from sexton.ports.cloud import LeveledPartition, Outcome, Owner, Replacement, WrittenObject
from sexton.ports.disk import Disk
from sexton.ports.metastore import Metastore
from sexton.ports.network import Network
from sexton.ports.objects import ObjectStore
from sexton.protocol.private import RefusedError
from sexton.simulate.clock import SimulatedClock, WallClock
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import Process
from sexton.simulate.metastore import MetastoreService, SimulatedMetastore
from sexton.simulate.trace import Trace

if TYPE_CHECKING:
    from sexton.simulate.cluster import SimulatedCluster

LIFETIME_S = 10
PAUSE_S_MAX = 30


@dataclass(frozen=True, slots=True)
class CompactorPlan:
    name: str
    job_ms_max: int
    """How long a job takes at most."""
    repeat_probability: float
    """How often a result is handed over twice, at once or much later."""
    change_probability: float


class _SlowEngine(ReferenceEngine):
    """Time passes between a plan, the reading and the writing: what was planned may be stale by then."""

    def __init__(self, disk_of: Callable[[int], Disk], job_ms_max: int, rng: random.Random) -> None:
        super().__init__(disk_of)
        self._job_ms_max = job_ms_max
        self._rng = rng

    async def run(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        await asyncio.sleep(self._job_ms_max * self._rng.random() / 2000)
        outcomes = await super().run(plans)
        await asyncio.sleep(self._job_ms_max * self._rng.random() / 2000)
        return outcomes


class _SlowCloudEngine(ReferenceCloudEngine):
    """An engine for cloud partitions that takes its time."""

    def __init__(self, store: ObjectStore, job_ms_max: int, rng: random.Random) -> None:
        super().__init__(store)
        self._job_ms_max = job_ms_max
        self._rng = rng

    async def level(
        self, plans: Sequence[PartitionPlan], outputs: Sequence[Output], register: Register, writer: Writer
    ) -> list[WrittenL1 | SextonError]:
        await asyncio.sleep(self._job_ms_max * self._rng.random() / 2000)
        made = await super().level(plans, outputs, register, writer)
        await asyncio.sleep(self._job_ms_max * self._rng.random() / 2000)
        return made

    async def compact(
        self, plans: Sequence[PartitionPlan], register: Register, writer: Writer, l1_bytes: int = L1_BYTES
    ) -> list[Compacted]:
        await asyncio.sleep(self._job_ms_max * self._rng.random() / 2000)
        made = await super().compact(plans, register, writer, l1_bytes)
        await asyncio.sleep(self._job_ms_max * self._rng.random() / 2000)
        return made


class _RepeatingMetastore(SimulatedMetastore):
    """Rule 10 of cloud partitions: what was committed is committed again, at once or much later. The judge looks at the
    tables after each."""

    def __init__(
        self,
        service: MetastoreService,
        process: Process,
        host_name: str,
        repeat_probability: float,
        rng: random.Random,
    ) -> None:
        super().__init__(service, process, host_name)
        self._repeat_probability = repeat_probability
        self._rng = rng
        self._repeats: list[Callable[[], Awaitable[object]]] = []

    async def commit_level(
        self, owner: Owner, objects: Sequence[WrittenObject], partitions: Sequence[LeveledPartition], now_ms: int
    ) -> Sequence[Outcome]:
        await self._repeat()
        commit = super().commit_level
        self._repeats.append(lambda: commit(owner, objects, partitions, now_ms))
        return await commit(owner, objects, partitions, now_ms)

    async def commit_compactions(
        self, owner: Owner, objects: Sequence[WrittenObject], replacements: Sequence[Replacement], now_ms: int
    ) -> Sequence[Outcome]:
        await self._repeat()
        commit = super().commit_compactions
        self._repeats.append(lambda: commit(owner, objects, replacements, now_ms))
        return await commit(owner, objects, replacements, now_ms)

    async def _repeat(self) -> None:
        if self._repeats and self._rng.random() < self._repeat_probability:
            await self._rng.choice(self._repeats)()


class _RepeatingBrokers(Brokers):
    """Rule 10: a result that comes again is refused, whatever has happened since."""

    def __init__(
        self, network: Network, metastore: Metastore, name: str, repeat_probability: float, rng: random.Random
    ) -> None:
        super().__init__(network, metastore, name)
        self._repeat_probability = repeat_probability
        self._rng = rng
        self._done: list[tuple[int, PassResult]] = []

    async def commit(self, broker_id: int, result: PassResult) -> Committed:
        if self._done and self._rng.random() < self._repeat_probability:
            await self._again(*self._rng.choice(self._done))
        committed = await super().commit(broker_id, result)
        self._done.append((broker_id, result))
        if self._rng.random() < self._repeat_probability:
            await self._again(broker_id, result)
        return committed

    async def _again(self, broker_id: int, result: PassResult) -> None:
        try:
            await super().commit(broker_id, result)
        except (RefusedError, NotConnectedError, ConnectionLostError, BadAnswerError):
            return
        raise SimulationFailure("rule 10", f"broker {broker_id} took the result of plan {result.plan_id} twice")


class CompactorHost:
    """The machine on which one compactor after the other runs."""

    def __init__(self, plan: CompactorPlan, cluster: SimulatedCluster, trace: Trace, seed: int) -> None:
        self.plan = plan
        self._cluster = cluster
        self._loop = cluster.loop
        self._trace = trace
        self._rng = random.Random(f"{seed}:{plan.name}:life")
        self._host = cluster.fabric.hosts[plan.name]
        self._processes_count = 0

    async def run(
        self, watch: Callable[[asyncio.Task[None]], asyncio.Task[None]], is_quiet: Callable[[], bool]
    ) -> None:
        """Runs as the simulator's own process. Once `is_quiet`, the running compactor is not disturbed again."""
        process = self._begin(watch)
        while True:
            await asyncio.sleep(LIFETIME_S * 2 * self._rng.random())
            if is_quiet():
                self._loop.resume(process)
            elif self._rng.random() < self.plan.change_probability:
                process = self._disturb(process, watch)

    def _disturb(self, process: Process, watch: Callable[[asyncio.Task[None]], asyncio.Task[None]]) -> Process:
        if self._rng.random() < 0.5:
            self._trace.note(process.name, "is paused")
            self._loop.pause(process)
            delay_ns = int(self._rng.random() * PAUSE_S_MAX * 1e9)
            self._loop.call_for(self._loop.world, delay_ns, self._loop.resume, process)
            return process
        self._trace.note(process.name, "is killed")
        self._loop.kill(process)
        self._cluster.fabric.process_killed(process, self._host, power_lost=self._rng.random() < 0.5)
        return self._begin(watch)

    def _begin(self, watch: Callable[[asyncio.Task[None]], asyncio.Task[None]]) -> Process:
        self._processes_count += 1
        name = f"{self.plan.name}.{self._processes_count}"
        process = Process(name, self._loop.now_ns, self._rng.randint(-20_000, 20_000))
        watch(self._loop.spawn(process, self._live(process, random.Random(self._rng.getrandbits(64)))))
        return process

    async def _live(self, process: Process, rng: random.Random) -> None:
        cluster, plan = self._cluster, self.plan
        metastore = cluster.metastore.of(process, plan.name)
        network = cluster.fabric.of(process, plan.name)
        clock = SimulatedClock(WallClock(rng.randint(-1000, 1000)), process, self._loop)
        cloud: CloudWorker | None = None
        if cluster.objects is not None:
            repeating = _RepeatingMetastore(cluster.metastore, process, plan.name, plan.repeat_probability, rng)
            store = cluster.objects.of(process, plan.name)
            cloud = CloudWorker(repeating, store, _SlowCloudEngine(store, plan.job_ms_max, rng), clock, rng)
        compactor = Compactor(
            metastore=metastore,
            brokers=_RepeatingBrokers(network, metastore, process.name, plan.repeat_probability, rng),
            engine=_SlowEngine(
                lambda broker_id: cluster.node_of(broker_id).volume.of(process, self._loop), plan.job_ms_max, rng
            ),
            clock=clock,
            rng=rng,
            limits=Limits(),
            name=process.name,
            cloud=cloud,
        )
        await compactor.run()
