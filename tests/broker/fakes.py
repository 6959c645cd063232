"""Just enough of a broker around the parts that speak to clients: replicas in memory, connections without a network."""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from sexton.broker.broker import Broker
from sexton.broker.fetch.sessions import FetchSessions
from sexton.broker.network.connection import ClientConnection
from sexton.broker.network.dispatch import Dispatch
from sexton.broker.network.request import PrivateHandler
from sexton.broker.produce.refused import RefusedBatches
from sexton.broker.produce.unpacking import Unpacking
from sexton.broker.transactions.producer_ids import ProducerIds
from sexton.broker.transactions.transactions import Transactions
from sexton.log.checks import Rules
from sexton.log.epochs import EpochHistory
from sexton.log.producers import ProducerStates
from sexton.log.types import AbortedTransaction, Appended, Read, TimedOffset
from sexton.ports.disk import FileSlice
from sexton.ports.metastore import BrokerRow, BrokerStatus, MetastoreUnavailableError, PartitionRow, TopicRow
from sexton.ports.network import Part
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.messages import decode_response, encode_request
from sexton.records.checkpoints import EpochEntry
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor

TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=7)
BROKER_ID = 1


class FakeClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


@dataclass
class FakeLog:
    """One batch is one record: offset n is the nth thing appended."""

    looks_inside = False
    rules = Rules.of(TOPIC, TopicConfig())
    records: list[bytes] = field(default_factory=list)
    start_offset: int = 0
    epochs: EpochHistory = field(default_factory=lambda: EpochHistory([EpochEntry(0, 0)]))
    aborted: list[AbortedTransaction] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=lambda: ProducerStates(TOPIC, 86_400_000))

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        return [entry for entry in self.aborted if entry.first_offset < end]

    def offset_for_time(self, timestamp_ms: int, end: int) -> TimedOffset | None:
        """Record n was made at millisecond n."""
        return TimedOffset(timestamp_ms, timestamp_ms, 0) if timestamp_ms < end else None

    def offset_of_max_timestamp(self, end: int) -> TimedOffset | None:
        return TimedOffset(end - 1, end - 1, 0) if end else None


class FakeReplica:
    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.topic_id = TOPIC_ID
        self.partition = partition
        self.log = FakeLog()
        self.row = PartitionRow(TOPIC_ID, partition, (1, 2), (1, 2), BROKER_ID, 0, 0)
        self.is_leader = True
        self.high_watermark = 0
        self.uncommitted = 0
        self.error: KafkaError | None = None
        self.commits_by_itself = True
        self.waiting: list[asyncio.Future[None]] = []
        self.watchers: dict[int, Callable[[], None]] = {}
        self.watch_count = 0
        self.reads_count = 0

    @property
    def leader_epoch(self) -> int:
        return self.row.leader_epoch

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark - self.uncommitted

    def check_serving_as_leader(self) -> None:
        if not self.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)

    def is_held_by(self, follower: int, offset: int) -> bool:
        return follower != BROKER_ID and self.log.start_offset <= offset <= self.high_watermark

    def check_epoch(self, current_leader_epoch: int) -> None:
        if 0 <= current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch)
        if current_leader_epoch > self.leader_epoch:
            raise KafkaError(ErrorCode.unknown_leader_epoch)

    def append(
        self, records: bytes, acks: int, now_ms: int, *, verification: object = None, judged_by: object = None
    ) -> tuple[Appended, asyncio.Future[None] | None]:
        if self.error is not None:
            raise self.error
        self.check_serving_as_leader()
        offset = self.log.end_offset
        self.log.records.append(bytes(records))
        appended = Appended(offset, offset, -1, self.log.start_offset)
        if self.commits_by_itself:
            self.commit()
        if acks != -1 or self.commits_by_itself:
            return appended, None
        self.waiting.append(asyncio.get_running_loop().create_future())
        return appended, self.waiting[-1]

    def commit(self, error: KafkaError | None = None) -> None:
        if error is None:
            self.high_watermark = self.log.end_offset
        for future in self.waiting:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        self.waiting.clear()
        self.wake()

    def wake(self) -> None:
        for callback in list(self.watchers.values()):
            callback()

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, min_one: bool) -> Read:
        self.reads_count += 1
        if self.error is not None:
            raise self.error
        if not self.log.start_offset <= offset <= self.log.end_offset:
            raise KafkaError(ErrorCode.offset_out_of_range)
        end = self.last_stable_offset if committed_only else self.high_watermark
        parts: list[Part] = []
        size = 0
        for record in self.log.records[offset:end]:
            if size + len(record) > max_bytes and (parts or not min_one):
                break
            parts.append(record)
            size += len(record)
        return Read(parts, size, offset, offset + len(parts))

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.watch_count += 1
        key = self.watch_count
        self.watchers[key] = callback

        def cancel() -> None:
            self.watchers.pop(key, None)

        return cancel


class FakeReplicas:
    def __init__(self) -> None:
        self.by_name = {(TOPIC, partition): FakeReplica(TOPIC, partition) for partition in range(4)}
        self.closed: list[object] = []
        """Connections that were closed."""

    def local(self, topic: str, partition: int) -> FakeReplica:
        replica = self.by_name.get((topic, partition))
        if replica is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no {topic}-{partition}")
        return replica

    def connection_closed(self, connection: object) -> None:
        self.closed.append(connection)

    def leader(self, topic: str, partition: int) -> FakeReplica:
        replica = self.local(topic, partition)
        replica.check_serving_as_leader()
        return replica


class FakeView:
    def __init__(self, replicas: FakeReplicas) -> None:
        self._replicas = replicas
        self.topics = {TOPIC: TopicRow(TOPIC_ID, TOPIC, False)}
        self.brokers = {
            number: BrokerRow(
                number, 5, f"host{number}", 9000 + number, f"rack{number}", TOPIC_ID, 0, 0, BrokerStatus.ACTIVE
            )
            for number in (1, 2, 3)
        }

    def topic(self, name: str) -> TopicRow | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicRow | None:
        return next((row for row in self.topics.values() if row.topic_id == topic_id), None)

    def partition(self, name: str, index: int) -> PartitionRow | None:
        replica = self._replicas.by_name.get((name, index))
        return replica.row if replica is not None else None

    def partitions_count(self, name: str) -> int:
        return sum(topic == name for topic, _ in self._replicas.by_name)

    def broker(self, broker_id: int) -> BrokerRow | None:
        return self.brokers.get(broker_id)


class FakeMetastore:
    def __init__(self) -> None:
        self.next_id = 1000
        self.is_away = False

    async def allocate_producer_ids(self, count: int) -> int:
        await asyncio.sleep(0)
        if self.is_away:
            raise MetastoreUnavailableError("no answer")
        self.next_id += count
        return self.next_id - count


class FakeBroker:
    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "node_id": BROKER_ID,
            "queued_max_request_bytes": 1 << 27,
            "socket_request_max_bytes": 100 << 20,
            "max_incremental_fetch_session_cache_slots": 1000,
            "max_connections": 1000,
            "max_connections_per_ip": 1000,
            "connections_max_idle_ms": 600_000,
            "fetch_max_bytes": 55 << 20,
            "reads_from_near_replicas": False,
            "transaction_max_timeout_ms": 900_000,
            "transactional_id_expiration_ms": 604_800_000,
            "transaction_remove_expired_transaction_cleanup_interval_ms": 3_600_000,
        }
        self.config = SimpleNamespace(**{**defaults, **settings})
        self.clock = FakeClock()
        self.rng = random.Random(1)
        self.replicas = FakeReplicas()
        self.view = FakeView(self.replicas)
        self.metastore = FakeMetastore()
        self.supervisor = Supervisor()
        self.fetch_sessions = FetchSessions(self.config.max_incremental_fetch_session_cache_slots, self.rng, self.clock)
        self.private: dict[int, PrivateHandler] = {}
        self.producer_ids = ProducerIds(cast(Any, self.metastore))
        self.dispatch = Dispatch(cast(Broker, self), self.private)
        self.transactions = Transactions(cast(Broker, self))
        self.refused = RefusedBatches(self.clock)
        self.unpacking = Unpacking(cast(Broker, self))

    def lease_is_valid(self) -> bool:
        return True

    def is_elected(self, topic: str, partition: int) -> bool:
        """Coordinators are loaded by the tests themselves."""
        return False

    async def catch_up(self) -> None:
        """The view is what it is."""

    def replica(self, partition: int = 0) -> FakeReplica:
        return self.replicas.by_name[TOPIC, partition]


class FakeConnection:
    """`ports.network.Connection` whose other side is the test."""

    def __init__(self, peer: str = "client:1") -> None:
        self.peer = peer
        self.local = "broker:9092"
        self.backlog_bytes = 0
        self.sent = bytearray()
        self.sends_count = 0
        self.is_paused = False
        self.is_closed = False
        self.receiver: ClientConnection

    def send(self, parts: Sequence[Part]) -> None:
        self.sends_count += 1
        for part in parts:
            self.sent += part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else part

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(lambda: self.receiver.closed(None))


class Client:
    """Speaks Kafka to a broker through a FakeConnection."""

    def __init__(self, broker: FakeBroker, peer: str = "client:1") -> None:
        self.connection = FakeConnection(peer)
        receiver = broker.dispatch.accept(self.connection)
        assert isinstance(receiver, ClientConnection)
        self.receiver = self.connection.receiver = receiver
        self._asked: list[tuple[int, int]] = []
        self._correlation_id = 0
        self.client_id = "tester"

    def frame(self, api_key: int, version: int, body: Mapping[str, Any]) -> bytes:
        self._correlation_id += 1
        self._asked.append((api_key, version))
        return encode_request(api_key, version, self._correlation_id, self.client_id, body)

    def ask(self, api_key: int, version: int, body: Mapping[str, Any]) -> None:
        self.feed(self.frame(api_key, version, body))

    def feed(self, data: bytes) -> None:
        """Through a buffer that is overwritten afterwards, as the real one is."""
        buffer = bytearray(data)
        self.receiver.received(memoryview(buffer))
        buffer[:] = b"\xee" * len(buffer)

    def frames(self) -> list[bytes]:
        frames = []
        while len(self.connection.sent) >= 4:
            (size,) = struct.unpack_from(">i", self.connection.sent)
            assert len(self.connection.sent) >= 4 + size, "a frame left in pieces"
            frames.append(bytes(self.connection.sent[4 : 4 + size]))
            del self.connection.sent[: 4 + size]
        return frames

    def answers(self) -> list[Any]:
        """In order, each read as the version it was asked in."""
        answers = []
        for frame in self.frames():
            api_key, version = self._asked.pop(0)
            _, body = decode_response(api_key, version, memoryview(frame))
            answers.append(body)
        return answers

    async def answer(self) -> Any:
        """The only one, or the next one to come."""
        async with asyncio.timeout(10):
            while len(self.connection.sent) < 4:
                await asyncio.sleep(0.001)
        (body,) = self.answers()
        return body

    async def call(self, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
        self.ask(api_key, version, body)
        return await self.answer()
