"""The broker's connections over real sockets: clients that do not read, do not finish, or are very many."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.files import FileDisk
from sexton.adapters.sockets import SocketNetwork
from sexton.ports.network import HIGH_BACKLOG_BYTES, Connection, Receiver
from sexton.protocol.messages import decode_response, encode_request
from sexton.records.batch import decode_all
from tests.broker.serving import TOPIC, ServingBroker, serving_broker

HOST = "127.0.0.1"
FETCH, API_VERSIONS = 1, 18
BATCH_BYTES = 300_000


def fetch_frame(correlation_id: int) -> bytes:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [{"topic": TOPIC, "partitions": [asked]}]}
    return encode_request(FETCH, 12, correlation_id, "slow", body)


async def broker_with_a_batch(path: Path) -> ServingBroker:
    """On a real disk: what it reads leaves by sendfile."""
    broker = await serving_broker(FileDisk(), log_dirs=str(path))
    await broker.write(b"x" * BATCH_BYTES)
    return broker


@asynccontextmanager
async def listening(broker: ServingBroker, accepted: list[Connection] | None = None) -> AsyncIterator[int]:
    def accept(connection: Connection) -> Receiver:
        if accepted is not None:
            accepted.append(connection)
        return broker.dispatch.accept(connection)

    listener = await SocketNetwork().listen(HOST, 0, accept)
    yield listener.port
    listener.close()
    await broker.dispatch.stop()


async def ask_api_versions(port: int) -> int:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(encode_request(API_VERSIONS, 0, 9, "honest", {}))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    correlation_id, body = decode_response(API_VERSIONS, 0, memoryview(await reader.readexactly(size)))
    assert correlation_id == 9
    writer.close()
    return len(body.api_keys)


async def until_connected(broker: ServingBroker, count: int) -> None:
    async with asyncio.timeout(20):
        while len(broker.dispatch.connections) != count:
            await asyncio.sleep(0.005)


async def test_client_that_never_reads_takes_bounded_memory_and_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await broker_with_a_batch(tmp_path)
    accepted: list[Connection] = []
    read, reads_count = broker.replica().read, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads_count
        reads_count += 1
        return read(*args, **kwargs)

    monkeypatch.setattr(broker.replica(), "read", counted)
    async with listening(broker, accepted) as port:
        slow = socket.create_connection((HOST, port))
        slow.setblocking(False)
        await until_connected(broker, 1)
        frames = b"".join(fetch_frame(number) for number in range(2000))
        sent = 0
        for _ in range(300):
            with suppress(BlockingIOError):
                sent += slow.send(frames[sent:])
            await asyncio.sleep(0.001)
        assert accepted[0].backlog_bytes <= HIGH_BACKLOG_BYTES + BATCH_BYTES + 1000
        assert 0 < reads_count < 2000
        assert await ask_api_versions(port) > 0
        seen = 0
        slow.setblocking(True)
        slow.settimeout(20)
        while seen < 3 * BATCH_BYTES:
            seen += len(await asyncio.to_thread(slow.recv, 1 << 20))
        assert await ask_api_versions(port) > 0
        slow.close()
        await until_connected(broker, 0)


async def test_answers_to_a_client_that_reads_again_are_whole_and_in_order(tmp_path: Path) -> None:
    broker = await broker_with_a_batch(tmp_path)
    async with listening(broker) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"".join(fetch_frame(number) for number in range(100)))
        await asyncio.sleep(0.1)
        for number in range(100):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            correlation_id, body = decode_response(FETCH, 12, memoryview(await reader.readexactly(size)))
            assert correlation_id == number
            (batch,) = decode_all(body.responses[0].partitions[0].records)
            assert batch.records[0].value == b"x" * BATCH_BYTES
        writer.close()


async def test_two_thousand_idle_connections_leave_room_for_the_next_one() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2000 if hard >= 5000 else (hard - 500) // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 5000), hard))
    broker = ServingBroker(max_connections=1 << 20, max_connections_per_ip=1 << 20)
    try:
        async with listening(broker) as port:
            idle = []
            for number in range(wanted):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex((HOST, port))
                idle.append(sock)
                if number % 100 == 0:
                    await asyncio.sleep(0.01)
            await until_connected(broker, wanted)
            assert await ask_api_versions(port) > 0
            for sock in idle:
                sock.close()
            await until_connected(broker, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_request_in_many_pieces_with_pauses_is_served() -> None:
    broker = ServingBroker()
    async with listening(broker) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        frame = encode_request(API_VERSIONS, 0, 9, "honest", {})
        for start in range(0, len(frame), 3):
            writer.write(frame[start : start + 3])
            await asyncio.sleep(0.002)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        writer.close()
