"""A real broker in this process: its disk is the simulator's, its metastore in memory, its connections are the test's.

Only the ports are stand-ins. Behind them is what runs in production: `Broker.start`, logs, replicas and their roles. A
test brings about what it wants of a partition as a cluster would: it writes, it changes a row of the metastore, it lets
the disk wait or fail.
"""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

from sexton.adapters.metastore import InProcessMetastore
from sexton.adapters.metastore.session import Session
from sexton.broker.broker import Broker
from sexton.broker.network.connection import ClientConnection
from sexton.broker.topics import in_cloud
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.ports.disk import Disk, FileSlice
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    ConfigScope,
    MetastoreUnavailableError,
    PartitionRow,
    TopicRow,
)
from sexton.ports.network import Connection, Part, Receiver
from sexton.ports.objects import ObjectStore
from sexton.protocol.errors import KafkaError
from sexton.protocol.messages import decode_response, encode_request
from sexton.records.batch import ControlType, Record, encode, make_batch
from sexton.records.header import TRANSACTIONAL
from sexton.replication.local_replica import LocalReplica
from sexton.settings.broker_config import BrokerConfig
from sexton.simulate.disk import SimulatedDisk, Trouble, VirtualDisk
from sexton.simulate.loop import Process
from sexton.types import LeaderEpoch
from tests.log.helpers import marker

P = ParamSpec("P")
T = TypeVar("T")

TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=7)
PARTITIONS_COUNT = 4
BROKER_ID = 1
OTHER_IDS = (2, 3)
OTHER_LEADS: dict[str, Any] = {"leader": OTHER_IDS[0], "isr": (OTHER_IDS[0],), "leader_epoch": 9}
BOTH_IN_SYNC: dict[str, Any] = {"isr": (BROKER_ID, OTHER_IDS[0])}
"""What a row may be changed to (`ServingBroker.change`)."""

LEASE_MS = 3_600_000
"""Longer than any test moves the clock."""


class ManualClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class MemoryDisk(SimulatedDisk):
    """A flush takes one turn of whatever loop runs, or as long as the test holds it."""

    def __init__(self) -> None:
        super().__init__(VirtualDisk(random.Random(1)), Process("broker"), cast(Any, None))
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    async def wait_for_device(self) -> None:
        await asyncio.sleep(0)
        await self._goes_on.wait()

    def hold(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()


class LeavingMetastore(InProcessMetastore):
    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.outlives_its_broker = False

    async def close(self) -> None:
        if not self.outlives_its_broker:
            await super().close()

    async def run(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.is_away:
            raise MetastoreUnavailableError("no answer")
        return await super().run(operation, *args, **kwargs)


class Nowhere:
    """`ports.network.Network` in which nobody is reached. Who wants to reach the broker is a `Client`."""

    port = 9001

    async def listen(self, host: str, port: int, accept: Callable[[Connection], Receiver]) -> Nowhere:
        return self

    async def connect(self, host: str, port: int, receiver: Callable[[Connection], Receiver]) -> Connection:
        raise ConnectionRefusedError(f"{host}:{port} is not there")

    def close(self) -> None:
        """There is nothing to close."""


class ServingBroker(Broker):
    """Serves as it is, without replicas. Who needs these asks `serving_broker`."""

    clock_class: ClassVar[type[ManualClock]] = ManualClock
    clock: ManualClock
    metastore: LeavingMetastore

    def __init__(
        self,
        disk: Disk | None = None,
        objects: ObjectStore | None = None,
        metastore: LeavingMetastore | None = None,
        **settings: str | int,
    ) -> None:
        needed: dict[str, str | int] = {
            "node.id": BROKER_ID,
            "log.dirs": "/data",
            "metastore.url": "sqlite://",
            "broker.lease.ms": LEASE_MS,
            "broker.rack": "rack1",
            "transaction.state.log.num.partitions": 1,
        }
        super().__init__(
            BrokerConfig.of({**needed, **{name.replace("_", "."): value for name, value in settings.items()}}),
            clock=self.clock_class(),
            disk=disk or MemoryDisk(),
            network=Nowhere(),
            metastore=metastore or LeavingMetastore(),
            rng=random.Random(1),
            objects=objects,
        )

    def replica(self, partition: int = 0, topic: str = TOPIC) -> LocalReplica:
        found = self.replicas.local(topic, partition)
        assert isinstance(found, LocalReplica)
        return found

    # The cluster

    async def add_broker(self, broker_id: int) -> None:
        """Registers one that nobody reaches."""
        host, port, rack = f"host{broker_id}", 9000 + broker_id, f"rack{broker_id}"
        row = BrokerRow(
            broker_id=broker_id,
            epoch=0,
            host=host,
            port=port,
            rack=rack,
            data_id=uuid.UUID(int=broker_id),
            lease_ms=LEASE_MS,
            renewals_count=0,
            status=BrokerStatus.STARTING,
        )
        row = await self.metastore.register_broker(row, None)
        await self.metastore.set_broker_status(broker_id, row.epoch, BrokerStatus.ACTIVE)

    async def add_topic(
        self, name: str, topic_id: uuid.UUID, partitions_count: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Led and kept in sync by this broker alone; the replica of the second one is behind."""
        row = PartitionRow(topic_id, 0, (BROKER_ID, OTHER_IDS[0]), (BROKER_ID,), BROKER_ID, LeaderEpoch(0), 0)
        if settings is not None and settings.get("storage.mode") == "cloud":
            row = in_cloud(row)
        rows = [replace(row, partition=index) for index in range(partitions_count)]
        await self.metastore.create_topic(TopicRow(topic_id, name, name.startswith("__")), rows, settings or {})
        await self.catch_up()

    async def coordinate_groups(self) -> None:
        """Leads the only partition of __consumer_offsets, and has read it."""
        await self.add_topic(OFFSETS_TOPIC, uuid.UUID(int=70))
        async with asyncio.timeout(10):
            while True:
                with suppress(KafkaError):
                    await self.groups.describe_classic("nobody's")
                    return
                await asyncio.sleep(0)

    async def change(self, partition: int = 0, topic: str = TOPIC, **fields: Any) -> None:
        """Writes a partition's row as its leader or the controller would, and applies it."""
        row = self.view.partition(topic, partition)
        assert row is not None
        (written,) = await self.metastore.update_partitions([replace(row, **fields)])
        assert written is not None
        await self.catch_up()

    async def configure(self, topic: str = TOPIC, **settings: str) -> None:
        changes = {name.replace("_", "."): text for name, text in settings.items()}
        await self.metastore.change_settings(ConfigScope.TOPIC, topic, changes)
        await self.catch_up()

    # Records

    def append(self, *values: bytes, partition: int = 0, topic: str = TOPIC) -> None:
        """Each value in a batch of its own. Record n was made at millisecond n."""
        replica = self.replica(partition, topic)
        for value in values:
            replica.append(batch_of(value, replica.log.end_offset), 1, self.clock.now_ms())

    def append_in_transaction(self, producer_id: int, sequence: int = 0, topic: str = TOPIC) -> None:
        """One record of a transaction that is open, or that this opens."""
        replica = self.replica(topic=topic)
        batch = batch_of(
            b"%d" % producer_id,
            replica.log.end_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        replica.append(batch, 1, self.clock.now_ms())

    def append_marker(self, control_type: ControlType, producer_id: int, topic: str = TOPIC) -> None:
        batch = marker(control_type, pid=producer_id)
        self.replica(topic=topic).append(batch, 1, self.clock.now_ms(), from_client=False)

    async def write(self, *values: bytes, partition: int = 0, topic: str = TOPIC) -> None:
        """Appends the values, and waits until everything that was appended is committed."""
        self.append(*values, partition=partition, topic=topic)
        replica = self.replica(partition, topic)
        committed = replica.committed(replica.log.end_offset)
        if committed is not None:
            await committed

    def fetched_by_follower(self, partition: int = 0) -> None:
        """The second broker's replica has everything."""
        replica, row = self.replica(partition), self.view.broker(OTHER_IDS[0])
        assert row is not None
        replica.follower_fetched(row.broker_id, row.epoch, replica.log.end_offset)

    def trouble(self, number: int, partition: int = 0) -> None:
        """The disk fails with this error wherever the partition needs it."""
        assert isinstance(self.disk, MemoryDisk)
        self.disk.volume.troubles.append(Trouble(number, self.replica(partition).log.directory))

    @contextmanager
    def held_flushes(self) -> Iterator[None]:
        """Nothing that is appended within is committed before the end."""
        assert isinstance(self.disk, MemoryDisk)
        self.disk.hold()
        try:
            yield
        finally:
            self.disk.go_on()


async def serving_broker(
    disk: Disk | None = None, objects: ObjectStore | None = None, **settings: str | int
) -> ServingBroker:
    """Has joined a cluster of three, and leads every partition of TOPIC."""
    broker = ServingBroker(disk, objects, None, **settings)
    await broker.start()
    for broker_id in OTHER_IDS:
        await broker.add_broker(broker_id)
    await broker.add_topic(TOPIC, TOPIC_ID, PARTITIONS_COUNT)
    return broker


def batch_of(value: bytes, timestamp_ms: int = 0, **fields: int) -> bytes:
    return encode(make_batch([Record(0, timestamp_ms, b"key", value)], **{"leader_epoch": -1, **fields}))


class ClientsEnd:
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
    """Speaks Kafka to a broker through a `ClientsEnd`."""

    def __init__(self, broker: Broker, peer: str = "client:1") -> None:
        self.connection = ClientsEnd(peer)
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
