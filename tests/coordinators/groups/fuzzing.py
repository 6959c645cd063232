"""One group coordinator, many strangers, a few citizens, under virtual time.

The strangers send anything in any order (`strangers.py`). The citizens' groups (`citizens.py`) are kept on the same
partitions, and whatever the strangers do, they are told nothing but what Kafka's protocol has for clients like them.
No partition is loaded again, nothing is a bug, and whoever reads the log stands where the one who wrote it stands.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field

from sexton.coordinators.bounds import RECORD_OVERHEAD_BYTES
from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.consumer import NO_REVISION
from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.hashing import partition_for
from sexton.coordinators.log import EndMarker
from sexton.log.checks import OWN_BATCH_BYTES_MAX
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings
from sexton.simulate.loop import Process, SimulatedLoop
from sexton.types import ProducerIdAndEpoch
from tests.coordinators.groups.citizens import (
    NUMBERS,
    TOPIC,
    Citizen,
    ClassicCitizen,
    ConsumerCitizen,
    TransactionalCitizen,
)
from tests.coordinators.groups.harness import FakeTopics
from tests.coordinators.groups.strangers import Stranger
from tests.coordinators.hosts import FakeHost, LoopClock

PARTITIONS = 4
STRANGERS_COUNT = 40
GROUPS_COUNT = 16
PAUSE_S_MAX = 0.2
"""Between two requests of a stranger."""

SETTINGS = GroupSettings(
    group_max_session_timeout_ms=60_000, offsets_retention_minutes=1, offsets_retention_check_interval_ms=20_000
)
START_MS = 1_700_000_000_000


class TimedLoop(SimulatedLoop):
    """Knows how much of the processor its longest turn took: time on a busy machine says little."""

    longest_turn_s = 0.0
    looked_s = 0.0
    """In this turn, by the tests themselves."""

    def _run_turn(self, process: Process) -> int:
        begun_s = time.thread_time()
        self.looked_s = 0.0
        count = super()._run_turn(process)
        self.longest_turn_s = max(self.longest_turn_s, time.thread_time() - begun_s - self.looked_s)
        return count


@dataclass
class CompactedLog:
    """Keeps the newest record of each key, and everything of transactions. Takes what a real log takes."""

    rng: random.Random
    appends_count: int = 0
    newest: dict[bytes, tuple[int, bytes | None]] = field(default_factory=dict)
    transactional: list[tuple[int, ProducerIdAndEpoch, list[tuple[bytes, bytes | None]] | bool]] = field(
        default_factory=list
    )
    """With its place in the log; True and False are COMMIT and ABORT."""

    async def append(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        await self._take(records)
        for key, value in records:
            is_about_nothing = value is None and key not in self.newest and not self.transactional
            if not is_about_nothing:
                self.appends_count += 1
                self.newest[key] = self.appends_count, value

    async def append_in_transaction(
        self, owner: ProducerIdAndEpoch, records: Sequence[tuple[bytes, bytes | None]], now_ms: int
    ) -> None:
        await self._take(records)
        self.transactional.append((self.appends_count, owner, list(records)))

    async def append_marker(self, marker: EndMarker, now_ms: int) -> None:
        await self._take([])
        self.transactional.append((self.appends_count, marker.owner, marker.is_commit))

    async def _take(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        size_bytes = sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES // 2 for key, value in records)
        if size_bytes > OWN_BATCH_BYTES_MAX:
            raise KafkaError(ErrorCode.message_too_large, f"{size_bytes} bytes")
        self.appends_count += 1
        await asyncio.sleep(self.rng.random() / 200)

    def check_writable(self) -> None:
        """It always is."""

    def check_owner(self, owner: ProducerIdAndEpoch) -> None:
        """Everybody is who they say."""

    def check_marker(self, marker: EndMarker) -> bool:
        return True

    def read(self) -> AsyncIterator[bytes]:
        return self._read()

    async def _read(self) -> AsyncIterator[bytes]:
        assert not self.appends_count, "it is loaded again"
        nothing: list[bytes] = []
        for data in nothing:
            yield data

    def replay_into(self, coordinator: GroupCoordinator) -> None:
        steps: list[tuple[int, int, bytes, bytes | None, ProducerIdAndEpoch | None, bool | None]] = []
        for number, (key, (place, value)) in enumerate(self.newest.items()):
            steps.append((place, number, key, value, None, None))
        for place, writer, what in self.transactional:
            if isinstance(what, bool):
                steps.append((place, 0, b"", None, writer, what))
            else:
                steps += [(place, number, key, value, writer, None) for number, (key, value) in enumerate(what)]
        for _, _, key, value, owner, is_commit in sorted(steps, key=lambda step: step[:2]):
            if is_commit is not None and owner is not None:
                coordinator.replay_end(owner.producer_id, is_commit)
            else:
                coordinator.replay(key, value, owner)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop = TimedLoop(random.Random(seed))  # type: ignore[abstract]
        self.topics = FakeTopics({TOPIC: len(NUMBERS), "t1": 2, "t2": 3})
        self.logs = {partition: CompactedLog(random.Random(seed)) for partition in range(PARTITIONS)}
        host = FakeHost(clock=LoopClock(START_MS), topic_size=PARTITIONS, rng=random.Random(seed))
        self.service = GroupService(host, SETTINGS, self.topics)
        self.strangers = [
            Stranger(self.service, random.Random(self.rng.random()), groups(), ["t1", "t2", "t3", TOPIC])
            for _ in range(STRANGERS_COUNT)
        ]
        self.citizens = list(self._new_citizens())
        self.requests_count = 0

    def _new_citizens(self) -> Sequence[Citizen]:
        made: list[Citizen] = []
        for partition in range(PARTITIONS):
            rngs = [random.Random(self.rng.random()) for _ in range(4)]
            made.append(ClassicCitizen(self.service, rngs[0], named("dynamic", partition), is_static=False))
            made.append(ClassicCitizen(self.service, rngs[1], named("static", partition), is_static=True))
            made.append(ConsumerCitizen(self.service, rngs[2], named("consumer", partition)))
            made.append(TransactionalCitizen(self.service, rngs[3], named("producer", partition), 1_000 + partition))
        return made

    def run(self, requests_count: int) -> None:
        self.loop.run_until_complete(self._live(requests_count))
        self.loop.close()
        self._check_replayed()

    async def _live(self, requests_count: int) -> None:
        for partition, log in self.logs.items():
            await self.service.load(partition, log)
        led = dict(self.service.led)
        lives: list[Awaitable[None]] = [citizen.live() for citizen in self.citizens]
        lives += [self._bother(stranger) for stranger in self.strangers]
        lives.append(self._change_topics())
        tasks = [asyncio.ensure_future(life) for life in lives]
        checked_count = 0
        while self.requests_count < requests_count:
            await asyncio.sleep(0.1)
            for task in tasks:
                if task.done():
                    task.result()
            assert self.service.led == led, "a partition was loaded again"
            assert not self.service.supervisor.bugs
            if self.requests_count - checked_count > requests_count // 20:
                checked_count = self.requests_count
                begun_s = time.thread_time()
                self.service.check_invariants()
                self.loop.looked_s += time.thread_time() - begun_s
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(led.committed() for led in led.values()))
        assert self.service.led == led, "a partition was loaded again"

    async def _bother(self, stranger: Stranger) -> None:
        """Several requests at a time: a join may be parked for long."""
        acts: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(stranger.rng.random() * PAUSE_S_MAX)
            acts.add(asyncio.ensure_future(stranger.act()))
            self.requests_count += 1
            for act in [act for act in acts if act.done()]:
                acts.discard(act)
                act.result()

    async def _change_topics(self) -> None:
        rng = random.Random(self.rng.random())
        while True:
            await asyncio.sleep(rng.random() * 20)
            name = rng.choice(["t1", "t2", "t3"])
            if name in self.topics.counts and rng.random() < 0.4:
                self.topics.delete(name)
            else:
                self.topics.set(name, self.topics.counts.get(name, 0) % 8 + 1)

    def _check_replayed(self) -> None:
        for partition, log in self.logs.items():
            live = self.service.led[partition].coordinator
            fresh = GroupCoordinator(SETTINGS, self.topics, random.Random(1))
            log.replay_into(fresh)
            read, kept = facts(fresh), facts(live)
            differing = [name for name in read.keys() | kept.keys() if read.get(name) != kept.get(name)]
            assert not differing, [(name[:100], short(read.get(name)), short(kept.get(name))) for name in differing[:1]]


def facts(coordinator: GroupCoordinator) -> dict[str, object]:
    """What the log must tell of. A classic group's rebalance that is under way is not written down."""
    core = coordinator.core
    told: dict[str, object] = {}
    for name, group in core.groups.items():
        if isinstance(group, ClassicGroup):
            continue
        group.seen_revision = NO_REVISION
        told[name] = group
    for topic in core.offsets.topics():
        for name in core.offsets.groups_of(topic):
            for number, value in core.offsets.partitions_of(name, topic):
                told[f"{name} {topic} {number}"] = value
    told["pending"] = {key: sorted(map(repr, values)) for key, values in core.pending.all()}
    return told


def short(value: object) -> str:
    """Without what is long in it, for people."""
    return re.sub(r"(.)\1{30,}", r"\1...", repr(value))[:3_000]


def named(what: str, partition: int) -> str:
    """A group that is kept on that partition."""
    return next(name for name in (f"{what}-{n}" for n in range(999)) if partition_for(name, PARTITIONS) == partition)


def groups() -> list[str]:
    return [named(f"stranger-{number}", number % PARTITIONS) for number in range(GROUPS_COUNT)]
