"""The machines of a simulated cluster, and the brokers' processes that come and go on them.

A broker that ends by itself is started again, as a supervisor would. Whether it may end by itself is another question:
only a disk that fails is a reason (rules 11 and 12), everything else is found to be a failure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.broker.broker import Broker
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.settings.broker import RACK_AWARE_SELECTOR
from sexton.settings.broker_config import BrokerConfig
from sexton.simulate.clock import RATE_PPM_MAX, SimulatedClock, WallClock
from sexton.simulate.disk import VirtualDisk
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import MS, NS, Process, SimulatedLoop
from sexton.simulate.metastore import MetastoreService
from sexton.simulate.network import Fabric, Host
from sexton.simulate.objects import ObjectService
from sexton.simulate.trace import Trace

PORT = 9092
DATA = "/data"
RESTART_AFTER_NS = NS
SKEW_MS_MAX = 2_000
PENDING_BYTES_MIN = 30_000
"""Above any batch that clients send to cloud topics."""
STOP_TIMEOUT_MS = 60_000
"""An orderly stop that takes longer is cut short, as a supervisor would."""


@dataclass(frozen=True, slots=True)
class BrokerTimes:
    """Settings of all brokers that the seed varies."""

    lease_ms: int
    lag_max_ms: int
    adopts: bool
    """Whether followers take over what their leader has compacted."""

    @staticmethod
    def draw(rng: random.Random) -> BrokerTimes:
        return BrokerTimes(
            rng.choice((2_000, 5_000, 5_000)), rng.choice((3_000, 10_000, 30_000)), rng.choice((True, True, False))
        )


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The store of cloud topics, and what brokers make of it."""

    median_ns: int
    p99_factor: float
    settings: Mapping[str, int]
    leveling: Mapping[str, int] = field(default_factory=dict)
    """What compactors are told at run time."""

    @staticmethod
    def draw(rng: random.Random) -> StorePlan:
        round_ms = rng.choice((500, 2_000))
        median_ms = rng.choice((2, 20, 80))
        # Without a draw of their own, so that plans stay what they were.
        is_slow, is_fast = median_ms == 80, median_ms == 2
        return StorePlan(
            median_ms * MS,
            rng.choice((1.5, 2.5, 6.0)),
            {
                "cloud.linger.ms": rng.choice((5, 50, 250)),
                "cloud.l0.bytes": rng.choice((1_000, 10_000, 4 << 20)),
                "cloud.l0.partitions.max": rng.choice((1, 3, 500)),
                "cloud.uploads.max": rng.choice((1, 2, 4)),
                "cloud.hedge": is_slow,
                "cloud.eager": is_fast,
                "cloud.downloads.max": rng.choice((1, 4, 16)),
                "cloud.pending.bytes.max": rng.choice((PENDING_BYTES_MIN, 60_000, 1 << 20)),
                "cloud.cache.bytes.max": rng.choice((1, 20_000, 1 << 20)),
                "cloud.gc.round.ms": round_ms,
                "cloud.delete.delay.ms": round_ms * rng.choice((0, 2, 5)),
                "cloud.scrub.interval.ms": 1_000,
                "cloud.scrub.age.ms": 0,
            },
        )


class Node:
    """One broker's machine."""

    def __init__(self, broker_id: int, host: Host, rng: random.Random) -> None:
        self.broker_id = broker_id
        self.name = host.name
        self.host = host
        self.rng = rng
        self.volume = VirtualDisk(rng)
        self.wall = WallClock(rng.randint(-SKEW_MS_MAX, SKEW_MS_MAX))
        self.rate_ppm = rng.randint(-RATE_PPM_MAX, RATE_PPM_MAX)
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.is_started = False
        """`Broker.start` has returned."""
        self.starts_count = 0
        self.is_held_down = 0
        """Faults that keep it from being started."""
        self.disk_may_fail = False
        self.needs_operator = False
        """Flushes have failed: a log that cannot trust its disk stays away until somebody restarts the broker."""
        self.is_disk_damaged = False
        """Something that was flushed may have been read, or have been written, wrong."""
        self.is_wiped = False
        """Its disk was replaced, by an empty or an old one, and it has not started since: the cluster may still count
        on what it held."""
        self.is_stopping = False
        """True while the broker shuts down and hands its leaderships over."""
        self.last_started = 0
        """The number of the last process whose start came to its end."""

    @property
    def is_up(self) -> bool:
        return self.process is not None


class SimulatedCluster:
    def __init__(
        self,
        *,
        loop: SimulatedLoop,
        seed: int,
        brokers_count: int,
        fabric: Fabric,
        trace: Trace,
        times: BrokerTimes,
        store: StorePlan | None = None,
    ) -> None:
        self.loop = loop
        self.fabric = fabric
        self.trace = trace
        self._times = times
        self.metastore = MetastoreService(loop, random.Random(f"{seed}:metastore"), fabric, InProcessMetastore())
        self.store = store
        self.objects: ObjectService | None = None
        """The store of cloud topics, if there is one."""
        if store is not None:
            self.objects = ObjectService(loop, random.Random(f"{seed}:objects"), fabric)
            self.objects.weather.median_ns, self.objects.weather.p99_factor = store.median_ns, store.p99_factor
        self.nodes: dict[str, Node] = {}
        for broker_id in range(1, brokers_count + 1):
            host = fabric.add_host(f"broker-{broker_id}")
            self.nodes[host.name] = Node(broker_id, host, random.Random(f"{seed}:{host.name}"))
        self.on_start: Callable[[Node, Broker], None] | None = None
        self.on_end: Callable[[Node], None] | None = None
        self.on_power_lost: Callable[[Node], None] | None = None
        """Also when a disk had failed: what was not flushed may be gone."""
        self.on_disk_replaced: Callable[[Node], None] | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(name, PORT) for name in self.nodes]

    def node_of(self, broker_id: int) -> Node:
        return self.nodes[f"broker-{broker_id}"]

    # Starting

    def start(self, node: Node) -> None:
        if node.is_up or node.is_held_down:
            return
        node.starts_count += 1
        node.host.is_up = True
        process = Process(
            f"{node.name}.{node.starts_count}", self.loop.now_ns, node.rate_ppm, node.rng.randrange(1_000 * NS)
        )
        node.process = process
        self.trace.note(node.name, f"starts (process {node.starts_count})")
        self.loop.spawn(process, self._life(node, process), name=f"life of {process.name}")

    async def _life(self, node: Node, process: Process) -> None:
        try:
            broker = Broker(
                self._config(node),
                clock=SimulatedClock(node.wall, process, self.loop),
                disk=node.volume.of(process, self.loop),
                network=self.fabric.of(process, node.name),
                metastore=self.metastore.of(process, node.name),
                rng=random.Random(node.rng.getrandbits(64)),
                objects=None if self.objects is None else self.objects.of(process, node.name),
            )
            node.broker = broker
            if self.on_start is not None:
                self.on_start(node, broker)
            await broker.start()
            node.is_started = True
            node.is_wiped = False
            node.last_started = node.starts_count
            self.trace.note(node.name, "has started")
            await broker.failed
        except Exception as error:
            self.loop.call_for(self.loop.world, 0, self._ended_by_itself, node, process, error)

    def _config(self, node: Node) -> BrokerConfig:
        return BrokerConfig.of(
            {
                "node.id": node.broker_id,
                "listeners": f"PLAINTEXT://{node.name}:{PORT}",
                "log.dirs": DATA,
                "metastore.url": "sqlite://",
                "broker.rack": f"rack-{node.broker_id % 2}",
                "replica.selector.class": RACK_AWARE_SELECTOR,
                "broker.lease.ms": self._times.lease_ms,
                "broker.lease.renew.ms": self._times.lease_ms // 5,
                "replica.lag.time.max.ms": self._times.lag_max_ms,
                "leader.imbalance.check.interval.seconds": 15,
                "log.retention.check.interval.ms": 3_000,
                "offsets.topic.num.partitions": 2,
                "offsets.topic.replication.factor": min(3, len(self.nodes)),
                "offsets.topic.segment.bytes": 20_000,
                "transaction.state.log.num.partitions": 2,
                "transaction.state.log.replication.factor": min(3, len(self.nodes)),
                "transaction.state.log.min.isr": min(2, len(self.nodes)),
                "transaction.state.log.segment.bytes": 20_000,
                "log.cleaner.backoff.ms": 500,
                "compaction.share": self._times.adopts,
                "group.initial.rebalance.delay.ms": 200,
                **({} if self.store is None else self.store.settings),
            }
        )

    # Ending

    def _ended_by_itself(self, node: Node, process: Process, error: Exception) -> None:
        if node.process is not process:
            return
        self.trace.note(node.name, f"ends by itself: {type(error).__name__}: {error}")
        if not (node.disk_may_fail and isinstance(_root(error), OSError)):
            rule = "rule 12" if isinstance(error, MetastoreUnavailableError) else "rule 11"
            failure = SimulationFailure(rule, f"{node.name} ended by itself: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.loop.failures.append(failure)
            self.loop.stop()
            return
        self.kill(node, power_lost=False)
        self.start_later(node, RESTART_AFTER_NS)

    def kill(self, node: Node, *, power_lost: bool) -> None:
        process = node.process
        if process is None:
            return
        if self.on_end is not None:
            self.on_end(node)
        node.process, node.broker, node.is_started, node.is_stopping = None, None, False, False
        self.loop.kill(process)
        node.host.is_up = not power_lost
        self.fabric.process_killed(process, node.host, power_lost)
        node.volume.process_killed(power_lost)
        if self.on_power_lost is not None and (power_lost or node.disk_may_fail):
            self.on_power_lost(node)

    def start_later(self, node: Node, delay_ns: int) -> None:
        self.loop.call_for(self.loop.world, delay_ns, self.start, node)

    def stop_orderly(self, node: Node, then: Callable[[], None]) -> None:
        """As on SIGTERM. `then` is called when the process has ended, one way or the other."""
        process, broker = node.process, node.broker
        if process is None or broker is None or not node.is_started:
            self.kill(node, power_lost=False)
            then()
            return
        node.is_stopping = True
        self.loop.spawn(process, self._stop(node, process, broker, then), name=f"stop of {process.name}")

    async def _stop(self, node: Node, process: Process, broker: Broker, then: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_MS / 1000):
                await broker.stop()
        except TimeoutError:
            self.trace.note(node.name, "did not stop in time")
        self.loop.call_for(self.loop.world, 0, self._stopped, node, process, then)

    def _stopped(self, node: Node, process: Process, then: Callable[[], None]) -> None:
        if node.process is process:
            self.trace.note(node.name, "has stopped")
            self.kill(node, power_lost=False)
        then()

    # Disks

    def replace_disk(self, node: Node, by: VirtualDisk | None = None) -> None:
        """Replaces the disk by an image, or by an empty one."""
        assert not node.is_up
        node.volume = by or VirtualDisk(node.rng)
        node.is_wiped = True
        if self.on_disk_replaced is not None:
            self.on_disk_replaced(node)

    def describe(self) -> str:
        states = []
        for node in self.nodes.values():
            state = "down" if not node.is_up else "up" if node.is_started else "starting"
            states.append(f"{node.name} {state}{', paused' if node.process and node.process.paused else ''}")
        return ", ".join(states)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
