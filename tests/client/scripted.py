"""A broker that answers as a test tells it to, on the simulated network: time-outs take no time, and every run is the
same."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from sexton.client import apis
from sexton.client.client import Client
from sexton.client.connection import Rpc
from sexton.ports.network import Connection
from sexton.protocol import messages
from sexton.protocol.errors import ErrorCode
from sexton.protocol.private import FIRST_PRIVATE_API_KEY
from sexton.simulate.clock import SimulatedClock, WallClock
from sexton.simulate.loop import Process, new_loop
from sexton.simulate.network import Fabric, Weather

HOST, PORT = "broker", 9092
TOPIC = "t"

Answer = Mapping[str, Any] | bytes | None
"""A mapping is encoded; bytes are sent as they are; None is silence."""

Handler = Callable[[int, int, Any], Answer]


@dataclass(frozen=True, slots=True)
class HangUp:
    """Instead of an answer."""


class _Served:
    """One connection's receiver."""

    def __init__(self, broker: ScriptedBroker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._data = bytearray()

    def received(self, data: memoryview) -> None:
        self._data += data
        while len(self._data) >= 4:
            (size_bytes,) = struct.unpack_from(">i", self._data)
            if len(self._data) < 4 + size_bytes:
                return
            frame = memoryview(bytes(self._data[4 : 4 + size_bytes]))
            del self._data[: 4 + size_bytes]
            self._handle(frame)

    def _handle(self, frame: memoryview) -> None:
        header = messages.decode_request_header(frame)
        is_private = header.api_key >= FIRST_PRIVATE_API_KEY
        body = (
            bytes(frame[header.position :])
            if is_private
            else messages.decode_request(header.api_key, header.version, frame, header.position)
        )
        self._broker.asked.append((header.api_key, body))
        answer = self._broker.answer(header.api_key, header.version, body)
        if isinstance(answer, HangUp):
            self._connection.close()
        elif is_private and isinstance(answer, bytes):
            self._connection.send([struct.pack(">ii", 4 + len(answer), header.correlation_id), answer])
        elif isinstance(answer, bytes):
            self._connection.send([answer])
        elif answer is not None:
            self._connection.send(
                [messages.encode_response(header.api_key, header.version, header.correlation_id, answer)]
            )

    def writable(self) -> None: ...

    def closed(self, error: Exception | None) -> None: ...


class ScriptedBroker:
    """Knows one topic with one partition, which it leads. `handlers` (by API key) replace what it would answer."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[int, Any], Any]] = {}
        self.asked: list[tuple[int, Any]] = []
        self.producer_ids_count = 0
        self._connections: list[Connection] = []

    def accept(self, connection: Connection) -> _Served:
        self._connections.append(connection)
        return _Served(self, connection)

    def hang_up(self) -> None:
        """On everybody."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def answer(self, api_key: int, version: int, body: Any) -> Any:
        handler = self.handlers.get(api_key)
        if handler is not None:
            return handler(version, body)
        match api_key:
            case apis.API_VERSIONS.key:
                spoken = [api for api in vars(apis).values() if isinstance(api, apis.Api)]
                return {
                    "api_keys": [
                        {"api_key": api.key, "min_version": api.lowest, "max_version": api.highest} for api in spoken
                    ]
                }
            case apis.METADATA.key:
                return self.metadata(body)
            case apis.INIT_PRODUCER_ID.key:
                self.producer_ids_count += 1
                return {"producer_id": self.producer_ids_count, "producer_epoch": 0}
        raise AssertionError(f"nobody said how to answer {api_key}")

    def metadata(self, body: Any) -> Mapping[str, Any]:
        part = {"partition_index": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": [1], "isr_nodes": [1]}
        known = {"name": TOPIC, "partitions": [part]}
        names = [TOPIC] if body.topics is None else [each.name for each in body.topics]
        unknown = ErrorCode.unknown_topic_or_partition
        return {
            "brokers": [{"node_id": 1, "host": HOST, "port": PORT}],
            "cluster_id": "c",
            "controller_id": 1,
            "topics": [known if name == TOPIC else {"name": name, "error_code": unknown} for name in names],
        }


def produce_answer(code: ErrorCode = ErrorCode.none, base_offset: int = -1) -> Mapping[str, Any]:
    part = {"index": 0, "error_code": code, "base_offset": base_offset}
    return {"responses": [{"name": TOPIC, "partition_responses": [part]}]}


class World:
    """A scripted broker on one host, a client on another."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        self.rng = random.Random(seed)
        self.loop = new_loop(self.rng)
        self.fabric = Fabric(self.loop, self.rng, weather)
        for name in (HOST, "client"):
            self.fabric.add_host(name)
        self.server, self.process = Process(HOST), Process("client")
        self.broker = ScriptedBroker()
        self.network = self.fabric.of(self.process, "client")

    async def listen(self) -> None:
        network = self.fabric.of(self.server, HOST)
        await self.loop.spawn(self.server, network.listen(HOST, PORT, self.broker.accept))

    async def rpc(self, timeout_ms: int = 1000) -> Rpc:
        return await Rpc.connect(self.network, HOST, PORT, timeout_ms=timeout_ms, connect_timeout_ms=1000)

    def client(self, timeout_ms: int = 1000) -> Client:
        return Client(
            self.network,
            [(HOST, PORT)],
            clock=SimulatedClock(WallClock(), self.process, self.loop),
            rng=self.rng,
            timeout_ms=timeout_ms,
            connect_timeout_ms=1000,
            unknown_topic_patience_ms=2000,
        )


def simulate(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    seed: int = 1,
    weather: Weather | None = None,
    *,
    listening: bool = True,
) -> None:
    world = World(seed, weather)

    async def main() -> None:
        if listening:
            await world.listen()
        await world.loop.spawn(world.process, scenario(world))

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
