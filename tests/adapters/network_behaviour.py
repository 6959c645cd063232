"""What every Network does, whatever is behind it. A scenario is given a network and the name of a host to listen on."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from sexton.ports.disk import FileSlice
from sexton.ports.network import HIGH_BACKLOG_BYTES, LOW_BACKLOG_BYTES, Connection, Listener, Network, Part

Scenario = Callable[[Network, str], Awaitable[None]]
SCENARIOS: list[Scenario] = []


def scenario(run: Scenario) -> Scenario:
    SCENARIOS.append(run)
    return run


@dataclass
class Ear:
    """A receiver that remembers."""

    connection: Connection
    heard: bytearray = field(default_factory=bytearray)
    chunks_count: int = 0
    writable_count: int = 0
    end: list[Exception | None] = field(default_factory=list)
    react: Callable[[Ear, memoryview], None] = lambda ear, data: None

    def received(self, data: memoryview) -> None:
        assert not self.end
        self.heard += data
        self.chunks_count += 1
        self.react(self, data)

    def writable(self) -> None:
        assert not self.end
        self.writable_count += 1

    def closed(self, error: Exception | None) -> None:
        self.end.append(error)

    async def until(self, is_so: Callable[[Ear], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so(self):
                await asyncio.sleep(0.001)

    async def hears(self, content: bytes) -> None:
        await self.until(lambda ear: len(ear.heard) >= len(content) or bool(ear.end))
        assert self.heard == content


@dataclass
class MemoryFile:
    """A file of the disk port, as far as a FileSlice needs one."""

    content: bytes
    path: str = "memory"
    unreadable: OSError | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def read(self, position: int, size_bytes: int) -> bytes:
        return self.content[position : position + size_bytes]

    def append(self, parts: object) -> None:
        raise NotImplementedError

    def truncate(self, size_bytes: int) -> None:
        self.content = self.content[:size_bytes]

    async def flush(self) -> None:
        raise NotImplementedError

    async def read_back(self) -> None:
        pass

    def close(self) -> None:
        raise NotImplementedError


class UnreadableFile(MemoryFile):
    def read(self, position: int, size_bytes: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


React = Callable[[Ear, memoryview], None]


async def pair(network: Network, host: str, react: React | None = None) -> tuple[Ear, Ear, Listener]:
    """(client, server, listener): two ends of one connection."""
    servers: list[Ear] = []
    clients: list[Ear] = []

    def accept(connection: Connection) -> Ear:
        servers.append(Ear(connection) if react is None else Ear(connection, react=react))
        return servers[0]

    def connected(connection: Connection) -> Ear:
        clients.append(Ear(connection))
        return clients[0]

    listener = await network.listen(host, 0, accept)
    connection = await network.connect(host, listener.port, connected)
    assert clients[0].connection is connection
    await clients[0].until(lambda _: bool(servers))
    return clients[0], servers[0], listener


async def end(*ears: Ear) -> None:
    for ear in ears:
        ear.connection.close()
    for ear in ears:
        await ear.until(lambda ear: bool(ear.end))
        assert len(ear.end) == 1


@scenario
async def bytes_arrive_in_order_each_once(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    sent = bytearray()
    for number in range(500):
        part = bytes([number % 251]) * (number * 7 % 3000)
        client.connection.send([part[:10], b"", bytearray(part[10:])])
        sent += part
        if number % 50 == 0:
            await asyncio.sleep(0)
    await server.hears(bytes(sent))
    server.connection.send([b"back"])
    await client.hears(b"back")
    listener.close()
    await end(client, server)


@scenario
async def many_parts_sent_at_once_arrive(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    client.connection.send([b"%d," % number for number in range(5_000)])
    await server.hears(b"".join(b"%d," % number for number in range(5_000)))
    listener.close()
    await end(client, server)


@scenario
async def what_is_sent_while_receiving_arrives(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host, lambda ear, data: ear.connection.send([bytes(data)]))
    client.connection.send([b"echo" * 1000])
    await client.hears(b"echo" * 1000)
    listener.close()
    await end(client, server)


@scenario
async def slices_of_files_leave_between_buffers(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    file = MemoryFile(bytes(range(256)) * 1024)
    parts: list[Part] = [b"head", FileSlice(file, 10, 100_000), b"middle", FileSlice(file, 7, 20), b"tail"]
    server.connection.send(parts)
    content = file.content
    await client.hears(b"head" + content[10:100_010] + b"middle" + content[7:27] + b"tail")
    listener.close()
    await end(client, server)


@scenario
async def file_that_got_shorter_ends_the_connection(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    file = MemoryFile(b"short")
    server.connection.send([b"head", FileSlice(file, 0, 1000)])
    await client.until(lambda ear: bool(ear.end))
    assert len(client.heard) < 1004
    assert file.unreadable is None, "it was truncated: what is left can be read"
    listener.close()
    await end(client, server)


@scenario
async def file_that_cannot_be_read_ends_the_connection(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    file = UnreadableFile(b"content")
    server.connection.send([b"head", FileSlice(file, 0, 7)])
    await client.until(lambda ear: bool(ear.end))
    assert bytes(client.heard) in (b"", b"head")
    assert file.unreadable is not None
    listener.close()
    await end(client, server)


@scenario
async def backlog_grows_while_nobody_reads_and_its_fall_is_told_once(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    client.connection.pause_reading()
    block = bytes(HIGH_BACKLOG_BYTES)
    sent = 0
    while server.connection.backlog_bytes <= HIGH_BACKLOG_BYTES:
        server.connection.send([block])
        sent += len(block)
        for _ in range(5):
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert server.connection.backlog_bytes > HIGH_BACKLOG_BYTES
    assert not client.heard
    assert server.writable_count == 0
    client.connection.resume_reading()
    await client.until(lambda ear: len(ear.heard) == sent)
    await server.until(lambda ear: ear.writable_count == 1)
    assert server.connection.backlog_bytes <= LOW_BACKLOG_BYTES
    listener.close()
    await end(client, server)


@scenario
async def paused_reader_gets_nothing_until_it_resumes(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    server.connection.pause_reading()
    server.connection.pause_reading()
    client.connection.send([b"later"])
    await asyncio.sleep(0.05)
    assert not server.heard
    server.connection.resume_reading()
    server.connection.resume_reading()
    await server.hears(b"later")
    listener.close()
    await end(client, server)


@scenario
async def reader_that_pauses_while_it_receives_is_left_alone(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host, lambda ear, data: ear.connection.pause_reading())
    client.connection.send([b"one"])
    await server.hears(b"one")
    client.connection.send([b"two"])
    await asyncio.sleep(0.05)
    assert server.heard == b"one"
    server.connection.resume_reading()
    await server.hears(b"onetwo")
    listener.close()
    await end(client, server)


@scenario
async def closing_is_told_to_both_sides_and_never_from_inside_the_call(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    client.connection.close()
    assert not client.end
    client.connection.close()
    client.connection.send([b"nobody"])
    await client.until(lambda ear: bool(ear.end))
    await server.until(lambda ear: bool(ear.end))
    assert client.end == [None]
    assert not server.heard
    server.connection.send([b"nobody"])
    server.connection.pause_reading()
    server.connection.resume_reading()
    await asyncio.sleep(0.02)
    assert len(client.end) == len(server.end) == 1
    listener.close()


@scenario
async def receiver_may_close_while_it_receives(network: Network, host: str) -> None:
    def close(ear: Ear, data: memoryview) -> None:
        ear.connection.send([b"may be dropped"])
        ear.connection.close()

    client, server, listener = await pair(network, host, close)
    client.connection.send([b"hello"])
    await server.until(lambda ear: bool(ear.end))
    await client.until(lambda ear: bool(ear.end))
    assert server.heard == b"hello"
    listener.close()


@scenario
async def connections_outlive_their_listener(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    port = listener.port
    listener.close()
    client.connection.send([b"still here"])
    await server.hears(b"still here")
    with pytest.raises(ConnectionRefusedError):
        await network.connect(host, port, Ear)
    await end(client, server)


@scenario
async def port_that_is_taken_is_refused(network: Network, host: str) -> None:
    listener = await network.listen(host, 0, Ear)
    with pytest.raises(OSError, match="in use"):
        await network.listen(host, listener.port, Ear)
    listener.close()


@scenario
async def both_ends_know_who_the_other_is(network: Network, host: str) -> None:
    client, server, listener = await pair(network, host)
    assert client.connection.peer == server.connection.local
    assert client.connection.local == server.connection.peer
    assert server.connection.local.endswith(f":{listener.port}")
    listener.close()
    await end(client, server)
