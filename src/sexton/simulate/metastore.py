"""The metastore as brokers meet it: behind a network, sometimes slow, sometimes away, sometimes without an answer.

The operations are those of production, on a database in memory. What is simulated is the way there and back:

- *Down*: the connection is refused at once, and nothing was changed.
- *Hanging* (a stopped server): requests wait in its socket and are carried out, late, when it goes on; whoever sent
  them has given up by then.
- *Cut off* in one direction: the request never arrives, or it does and the answer is lost.
- *Breaking connections*: the caller is told at once that the connection broke. Its request was carried out, or was not.
- *Straggling*: a single request takes long, up to longer than its caller waits.
- *Locked*: reads go on, a change finds the database locked for longer than it waits: nothing was changed.
- *Failing over*: all connections break at once. Of the requests under way some were carried out, some were not; what
  was carried out stays (docs/operations asks for synchronous replicas).

A request that is under way when its sender dies, or gives up, is carried out all the same. Each process has a few
connections, one request at a time on each: its requests overtake each other, as they do in the threads of production.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.store import SqlMetastore
from sexton.adapters.metastore.threaded import WORKERS_MAX
from sexton.ports.cloud import (
    Claimed,
    CloudPartitionRow,
    CollectionRow,
    Copied,
    Extent,
    ExtentsPage,
    Gather,
    Level,
    LeveledPartition,
    ObjectId,
    ObjectRow,
    ObjectsSum,
    ObjectState,
    Outcome,
    Owner,
    PinRow,
    Replacement,
    Run,
    StartAdvanced,
    WrittenObject,
)
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    Changes,
    ConfigRow,
    ConfigScope,
    ControllerRow,
    Metastore,
    MetastoreUnavailableError,
    PartitionRow,
    TopicRow,
)
from sexton.ports.work_queue import CompactorRow, RunRow, WorkKey, WorkRow
from sexton.simulate.loop import MS, Process, SimulatedLoop
from sexton.simulate.network import Fabric
from sexton.simulate.service import Request, Service, complete
from sexton.types import LeaderEpoch, PartitionId, Round

T = TypeVar("T")

HOST = "metastore"
TIMEOUT_MS = 5_000
STRAGGLING_NS_MAX = 2 * TIMEOUT_MS * MS
"""Some of those who straggle are carried out long after their callers have given up."""

READS = ("read_", "find_", "collect")
"""How the names of operations begin that change nothing."""

COMMITTED_SHARE = 0.6
"""Of requests whose connection breaks: how many were carried out. The others are harmless."""


@dataclass(slots=True)
class MetastoreWeather:
    latency_ns_min: int = MS // 5
    latency_ns_max: int = 3 * MS
    straggler_probability: float = 0.0
    break_probabilities: dict[str, float] = field(default_factory=dict)
    """By host: how often the connection of a request breaks before its answer has come."""
    lock_probabilities: dict[str, float] = field(default_factory=dict)
    """How often a change finds the database locked, by host."""


class MetastoreService(Service):
    """The server. `inner` must answer without waiting for anything."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, fabric: Fabric, inner: Metastore) -> None:
        super().__init__(HOST, loop, rng, fabric)
        self.inner = inner
        self.weather = MetastoreWeather()
        self._coming: dict[Request, None] = {}
        """Sent, and neither carried out nor lost."""

    def of(self, process: Process, host_name: str) -> SimulatedMetastore:
        return SimulatedMetastore(self, process, host_name)

    def fail_over(self) -> None:
        """Another server takes over. Whoever waits for an answer learns only that its connection broke."""
        under_way = [*self._held, *self._coming]
        self._held.clear()
        self._coming.clear()
        for request in under_way:
            self._break(request)

    def peek(self, operation: str, *arguments: Any) -> Any:
        """What it would answer now to somebody beside it."""
        return run_at_once(getattr(self.inner, operation)(*arguments))

    def look(self, read: Callable[[Session], T]) -> T:
        """Reads its tables as they are now."""
        assert isinstance(self.inner, SqlMetastore)
        found: T = run_at_once(self.inner.run(read))
        return found

    def send(self, request: Request) -> None:
        delay_ns = self._delay_ns()
        if self.weather.straggler_probability and self._rng.random() < self.weather.straggler_probability:
            delay_ns += int(self._rng.random() ** 3 * STRAGGLING_NS_MAX)
        self._coming[request] = None
        self.loop.call_for(self.loop.world, delay_ns, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        if request not in self._coming:
            return
        del self._coming[request]
        if self._fabric.is_cut(request.host_name, HOST):
            return
        breaks = self.weather.break_probabilities.get(request.host_name, 0.0)
        locks = self.weather.lock_probabilities.get(request.host_name, 0.0)
        if self.is_down:
            self._reply(request, None, MetastoreUnavailableError("connection refused", HOST))
        elif self._is_hanging:
            self._held.append(request)
        elif breaks and self._rng.random() < breaks:
            self._break(request)
        elif locks and not request.operation.startswith(READS) and self._rng.random() < locks:
            self._reply(request, None, MetastoreUnavailableError("the database is locked", HOST))
        else:
            self._carry_out(request)

    def _break(self, request: Request) -> None:
        if self._rng.random() < COMMITTED_SHARE:
            self._execute(request)
        if not self._fabric.is_cut(HOST, request.host_name):
            lost = MetastoreUnavailableError("the connection broke before the answer came", HOST)
            self._reply(request, None, lost)

    def _outcome(self, request: Request) -> tuple[Any, Exception | None]:
        try:
            return run_at_once(getattr(self.inner, request.operation)(*request.arguments)), None
        except Exception as error:
            return None, error

    def _delay_ns(self) -> int:
        weather = self.weather
        return weather.latency_ns_min + int(self._rng.random() * (weather.latency_ns_max - weather.latency_ns_min))


def run_at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("the metastore waited for something in the middle of an instant")


def _give_up(answer: asyncio.Future[Any]) -> None:
    complete(answer, None, MetastoreUnavailableError(f"no answer within {TIMEOUT_MS} ms", HOST))


class SimulatedMetastore:
    """`ports.metastore.Metastore` for one process."""

    def __init__(self, service: MetastoreService, process: Process, host_name: str) -> None:
        self._service = service
        self._process = process
        self._host_name = host_name
        self._under_way: dict[Request, None] = {}
        """One a connection. Whoever gives up gives up the connection as well, and makes another."""
        self._waiting: deque[Request] = deque()

    async def _call(self, operation: str, *arguments: Any) -> Any:
        loop = self._service.loop
        request = Request(self._process, self._host_name, operation, arguments, loop.create_future())
        self._waiting.append(request)
        self._send_next()
        timer = loop.call_later(TIMEOUT_MS / 1000, _give_up, request.answer)
        try:
            return await request.answer
        finally:
            timer.cancel()
            if request in self._under_way:
                del self._under_way[request]
                self._send_next()
            else:
                self._waiting.remove(request)

    def _send_next(self) -> None:
        while self._waiting and len(self._under_way) < WORKERS_MAX and self._process.alive:
            request = self._waiting.popleft()
            self._under_way[request] = None
            self._service.send(request)

    async def open_cluster(self, proposed: uuid.UUID) -> uuid.UUID:
        answer: uuid.UUID = await self._call("open_cluster", proposed)
        return answer

    async def find_cluster(self) -> uuid.UUID:
        answer: uuid.UUID = await self._call("find_cluster")
        return answer

    async def read_changes(self, after_revision: int) -> Changes:
        answer: Changes = await self._call("read_changes", after_revision)
        return answer

    async def read_broker(self, broker_id: int) -> BrokerRow | None:
        answer: BrokerRow | None = await self._call("read_broker", broker_id)
        return answer

    async def read_leases(self) -> Mapping[int, tuple[int, int]]:
        answer: Mapping[int, tuple[int, int]] = await self._call("read_leases")
        return answer

    async def register_broker(self, row: BrokerRow, replaces: BrokerRow | None) -> BrokerRow:
        answer: BrokerRow = await self._call("register_broker", row, replaces)
        return answer

    async def renew_lease(self, broker_id: int, epoch: int) -> int:
        answer: int = await self._call("renew_lease", broker_id, epoch)
        return answer

    async def set_broker_status(self, broker_id: int, epoch: int, status: BrokerStatus) -> BrokerRow:
        answer: BrokerRow = await self._call("set_broker_status", broker_id, epoch, status)
        return answer

    async def fence_broker(self, broker_id: int, epoch: int, renewals_count: int) -> None:
        await self._call("fence_broker", broker_id, epoch, renewals_count)

    async def remove_broker(self, broker_id: int, epoch: int) -> None:
        await self._call("remove_broker", broker_id, epoch)

    async def claim_controller(self, broker_id: int, broker_epoch: int, expected_term: int) -> ControllerRow:
        answer: ControllerRow = await self._call("claim_controller", broker_id, broker_epoch, expected_term)
        return answer

    async def create_topic(
        self, topic: TopicRow, partitions: Sequence[PartitionRow], settings: Mapping[str, str]
    ) -> None:
        await self._call("create_topic", topic, partitions, settings)

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        await self._call("delete_topic", topic_id)

    async def add_partitions(
        self, topic_id: uuid.UUID, expected_count: int, partitions: Sequence[PartitionRow]
    ) -> None:
        await self._call("add_partitions", topic_id, expected_count, partitions)

    async def update_partitions(
        self, rows: Sequence[PartitionRow], live: Mapping[int, int] | None = None
    ) -> Sequence[PartitionRow | None]:
        answer: Sequence[PartitionRow | None] = await self._call("update_partitions", rows, live)
        return answer

    async def change_settings(
        self,
        scope: ConfigScope,
        name: str,
        changes: Mapping[str, str | None],
        expected: Mapping[str, str] | None = None,
    ) -> ConfigRow:
        answer: ConfigRow = await self._call("change_settings", scope, name, changes, expected)
        return answer

    async def allocate_producer_ids(self, count: int) -> int:
        answer: int = await self._call("allocate_producer_ids", count)
        return answer

    async def publish_work(self, broker_id: int, broker_epoch: int, rows: Sequence[WorkRow]) -> None:
        await self._call("publish_work", broker_id, broker_epoch, rows)

    async def publish_cloud_work(self, rows: Sequence[WorkRow]) -> None:
        await self._call("publish_cloud_work", rows)

    async def request_cloud_work(self, rows: Sequence[WorkRow]) -> None:
        await self._call("request_cloud_work", rows)

    async def read_work(self) -> Sequence[WorkRow]:
        answer: Sequence[WorkRow] = await self._call("read_work")
        return answer

    async def lease_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey]) -> Sequence[WorkKey]:
        answer: Sequence[WorkKey] = await self._call("lease_work", compactor_id, keys)
        return answer

    async def end_work(self, compactor_id: uuid.UUID, keys: Sequence[WorkKey], runs: Sequence[RunRow]) -> None:
        await self._call("end_work", compactor_id, keys, runs)

    async def register_compactor(self, row: CompactorRow) -> None:
        await self._call("register_compactor", row)

    async def renew_compactor(self, compactor_id: uuid.UUID) -> None:
        await self._call("renew_compactor", compactor_id)

    async def read_compactors(self) -> Sequence[CompactorRow]:
        answer: Sequence[CompactorRow] = await self._call("read_compactors")
        return answer

    async def remove_compactor(self, compactor_id: uuid.UUID, renewals_count: int) -> None:
        await self._call("remove_compactor", compactor_id, renewals_count)

    async def read_runs(self, limit: int, topic: str | None = None) -> Sequence[RunRow]:
        answer: Sequence[RunRow] = await self._call("read_runs", limit, topic)
        return answer

    async def begin_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow, start_offset: int
    ) -> PartitionRow | None:
        answer: PartitionRow | None = await self._call("begin_move", broker_id, broker_epoch, row, start_offset)
        return answer

    async def abandon_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow
    ) -> tuple[PartitionRow | None, bool]:
        answer: tuple[PartitionRow | None, bool] = await self._call("abandon_move", broker_id, broker_epoch, row)
        return answer

    async def finish_move(
        self, broker_id: int, broker_epoch: int, row: PartitionRow, copied: Copied
    ) -> PartitionRow | None:
        answer: PartitionRow | None = await self._call("finish_move", broker_id, broker_epoch, row, copied)
        return answer

    async def register_objects(self, owner: Owner, level: Level, ids: Sequence[ObjectId]) -> None:
        await self._call("register_objects", owner, level, ids)

    async def release_objects(self, owner: Owner, ids: Sequence[ObjectId]) -> None:
        await self._call("release_objects", owner, ids)

    async def claim_partitions(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[tuple[PartitionId, LeaderEpoch]]
    ) -> Sequence[Claimed | Outcome]:
        answer: Sequence[Claimed | Outcome] = await self._call("claim_partitions", broker_id, broker_epoch, wanted)
        return answer

    async def commit_l0(self, owner: Owner, gathers: Sequence[Gather], now_ms: int) -> Sequence[Sequence[Outcome]]:
        answer: Sequence[Sequence[Outcome]] = await self._call("commit_l0", owner, gathers, now_ms)
        return answer

    async def commit_inline(self, owner: Owner, runs: Sequence[Run], now_ms: int) -> Sequence[Outcome]:
        answer: Sequence[Outcome] = await self._call("commit_inline", owner, runs, now_ms)
        return answer

    async def read_extents(self, partition: PartitionId, from_offset: int, limit: int) -> ExtentsPage | None:
        answer: ExtentsPage | None = await self._call("read_extents", partition, from_offset, limit)
        return answer

    async def find_time(self, partition: PartitionId, timestamp_ms: int, from_offset: int = 0) -> Extent | None:
        answer: Extent | None = await self._call("find_time", partition, timestamp_ms, from_offset)
        return answer

    async def find_max_time(self, partition: PartitionId) -> Extent | None:
        answer: Extent | None = await self._call("find_max_time", partition)
        return answer

    async def advance_start(self, partition: PartitionId, writer_epoch: LeaderEpoch, offset: int) -> StartAdvanced:
        answer: StartAdvanced = await self._call("advance_start", partition, writer_epoch, offset)
        return answer

    async def commit_level(
        self, owner: Owner, objects: Sequence[WrittenObject], partitions: Sequence[LeveledPartition], now_ms: int
    ) -> Sequence[Outcome]:
        answer: Sequence[Outcome] = await self._call("commit_level", owner, objects, partitions, now_ms)
        return answer

    async def commit_compactions(
        self, owner: Owner, objects: Sequence[WrittenObject], replacements: Sequence[Replacement], now_ms: int
    ) -> Sequence[Outcome]:
        answer: Sequence[Outcome] = await self._call("commit_compactions", owner, objects, replacements, now_ms)
        return answer

    async def expire_owners(self, limit: int) -> int:
        answer: int = await self._call("expire_owners", limit)
        return answer

    async def read_collection(self) -> CollectionRow:
        answer: CollectionRow = await self._call("read_collection")
        return answer

    async def advance_round(self, seen: Round) -> Round:
        answer: Round = await self._call("advance_round", seen)
        return answer

    async def collect(self, grace_rounds: int, limit: int) -> Sequence[ObjectRow]:
        answer: Sequence[ObjectRow] = await self._call("collect", grace_rounds, limit)
        return answer

    async def forget_objects(self, ids: Sequence[ObjectId]) -> None:
        await self._call("forget_objects", ids)

    async def find_unknown(self, ids: Sequence[ObjectId]) -> Sequence[ObjectId]:
        answer: Sequence[ObjectId] = await self._call("find_unknown", ids)
        return answer

    async def note_scrub(self, round: Round, now_ms: int) -> None:
        await self._call("note_scrub", round, now_ms)

    async def pin(self, pin_id: uuid.UUID, owner: str, what: str, rounds: int) -> PinRow:
        answer: PinRow = await self._call("pin", pin_id, owner, what, rounds)
        return answer

    async def renew_pin(self, pin_id: uuid.UUID, rounds: int) -> PinRow:
        answer: PinRow = await self._call("renew_pin", pin_id, rounds)
        return answer

    async def unpin(self, pin_id: uuid.UUID) -> None:
        await self._call("unpin", pin_id)

    async def read_pins(self) -> Sequence[PinRow]:
        answer: Sequence[PinRow] = await self._call("read_pins")
        return answer

    async def find_purgeable(self, limit: int) -> Sequence[uuid.UUID]:
        answer: Sequence[uuid.UUID] = await self._call("find_purgeable", limit)
        return answer

    async def purge_topic(self, topic_id: uuid.UUID, limit: int) -> bool:
        answer: bool = await self._call("purge_topic", topic_id, limit)
        return answer

    async def read_objects(
        self, states: Sequence[ObjectState], after: ObjectId | None, limit: int
    ) -> Sequence[ObjectRow]:
        answer: Sequence[ObjectRow] = await self._call("read_objects", states, after, limit)
        return answer

    async def read_object(self, object_id: ObjectId) -> ObjectRow | None:
        answer: ObjectRow | None = await self._call("read_object", object_id)
        return answer

    async def sum_objects(self) -> Sequence[ObjectsSum]:
        answer: Sequence[ObjectsSum] = await self._call("sum_objects")
        return answer

    async def find_references(self, object_id: ObjectId, limit: int) -> Sequence[tuple[PartitionId, Extent]]:
        answer: Sequence[tuple[PartitionId, Extent]] = await self._call("find_references", object_id, limit)
        return answer

    async def read_cloud_partitions(self) -> Sequence[CloudPartitionRow]:
        answer: Sequence[CloudPartitionRow] = await self._call("read_cloud_partitions")
        return answer

    async def close(self) -> None:
        """The connection of one process; the database stays."""
