"""The network port over real sockets: the behaviour that all networks share, and what only the kernel can do to us."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sexton.adapters.sockets import SocketNetwork
from sexton.ports.disk import FileSlice
from sexton.ports.network import Connection
from tests.adapters.network_behaviour import SCENARIOS, Ear, MemoryFile, Scenario, end, pair

HOST = "127.0.0.1"

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


@pytest.fixture(params=sorted(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_in_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(coroutine)

    return run_in_loop


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_sockets_behave_as_every_network(run: Run, scenario: Scenario) -> None:
    async def main() -> None:
        await scenario(SocketNetwork(), HOST)

    run(main())


class RealFile(MemoryFile):
    """One with a descriptor, so that the kernel can send from it."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        super().__init__(content, str(path))
        self._fd = os.open(path, os.O_RDONLY)

    def fileno(self) -> int:
        return self._fd

    def read(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._fd, size_bytes, position)

    def close(self) -> None:
        os.close(self._fd)


def test_large_slices_leave_by_sendfile_in_their_place(run: Run, tmp_path: Path) -> None:
    file = RealFile(tmp_path / "log", os.urandom(12 << 20))

    async def main() -> None:
        client, server, listener = await pair(SocketNetwork(), HOST)
        server.connection.send([b"a", FileSlice(file, 1, 11 << 20), b"b", FileSlice(file, 5, 9)])
        server.connection.send([FileSlice(file, 3, 100_000), b"c"])
        content = file.content
        expected = b"a" + content[1 : 1 + (11 << 20)] + b"b" + content[5:14] + content[3:100_003] + b"c"
        await client.hears(expected)
        assert server.connection.backlog_bytes == 0
        listener.close()
        await end(client, server)

    run(main())
    file.close()


def test_sendfile_that_finds_a_shorter_file_ends_the_connection(run: Run, tmp_path: Path) -> None:
    file = RealFile(tmp_path / "log", bytes(50_000))

    async def main() -> None:
        client, server, listener = await pair(SocketNetwork(), HOST)
        server.connection.send([b"a", FileSlice(file, 0, 60_000)])
        await server.until(lambda ear: bool(ear.end))
        assert isinstance(server.end[0], OSError)
        await client.until(lambda ear: bool(ear.end))
        listener.close()

    run(main())
    file.close()


def test_reset_by_the_peer_is_told_as_an_error(run: Run) -> None:
    async def main() -> None:
        servers: list[Ear] = []

        def accept(connection: Connection) -> Ear:
            servers.append(Ear(connection))
            return servers[0]

        listener = await SocketNetwork().listen(HOST, 0, accept)
        sock = socket.create_connection((HOST, listener.port))
        while not servers:
            await asyncio.sleep(0.001)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        await servers[0].until(lambda ear: bool(ear.end))
        assert isinstance(servers[0].end[0], ConnectionResetError)
        listener.close()

    run(main())


def test_peer_that_has_finished_sending_still_gets_what_is_on_its_way(run: Run) -> None:
    answer = bytes(20 << 20)

    async def main() -> None:
        def reply(ear: Ear, data: memoryview) -> None:
            ear.connection.send([answer])

        servers: list[Ear] = []

        def accept(connection: Connection) -> Ear:
            servers.append(Ear(connection, react=reply))
            return servers[0]

        listener = await SocketNetwork().listen(HOST, 0, accept)
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        writer.write(b"question")
        writer.write_eof()
        await asyncio.sleep(0.05)
        assert len(await reader.read(-1)) == len(answer)
        await servers[0].until(lambda ear: bool(ear.end))
        assert servers[0].end == [None]
        writer.close()
        listener.close()

    run(main())


def test_requests_that_arrive_together_are_handed_over_together_and_answered_in_one_call(run: Run) -> None:
    async def main() -> None:
        def reply(ear: Ear, data: memoryview) -> None:
            for _ in range(len(data)):
                ear.connection.send([b"x"])

        client, server, listener = await pair(SocketNetwork(), HOST, reply)
        client.connection.send([b"12345"] * 100)
        await client.hears(b"x" * 500)
        assert server.chunks_count == 1
        assert client.chunks_count == 1
        listener.close()
        await end(client, server)

    run(main())


def test_receiver_that_fails_loses_its_connection_and_nobody_else_does(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ear: Ear, data: memoryview) -> None:
        if bytes(data) == b"bad":
            raise RuntimeError("a bug")

    async def main() -> None:
        network = SocketNetwork()
        ears: list[Ear] = []

        def accept(connection: Connection) -> Ear:
            ears.append(Ear(connection, react=fail))
            return ears[-1]

        listener = await network.listen(HOST, 0, accept)
        good = await network.connect(HOST, listener.port, Ear)
        bad = await network.connect(HOST, listener.port, Ear)
        bad.send([b"bad"])
        while not any(ear.end for ear in ears):
            await asyncio.sleep(0.001)
        good.send([b"fine"])
        while not any(ear.heard == b"fine" for ear in ears):
            await asyncio.sleep(0.001)
        listener.close()
        good.close()

    run(main())
    assert "handling what it sent failed" in caplog.text


def test_running_out_of_file_descriptors_pauses_accepting_and_says_what_to_do(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sexton.adapters.sockets.ACCEPT_PAUSE_S", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ears: list[Ear] = []

    async def main() -> None:
        def accept(connection: Connection) -> Ear:
            ears.append(Ear(connection))
            return ears[-1]

        listener = await SocketNetwork().listen(HOST, 0, accept)
        clients = [socket.socket() for _ in range(3)]
        spare = os.open("/dev/null", os.O_RDONLY)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        try:
            for client in clients:
                client.connect((HOST, listener.port))
            async with asyncio.timeout(10):
                while "ulimit -n" not in caplog.text:
                    await asyncio.sleep(0.01)
            assert not ears
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with asyncio.timeout(10):
            while len(ears) < len(clients):
                await asyncio.sleep(0.01)
        for client in clients:
            client.close()
        listener.close()

    with caplog.at_level(logging.WARNING):
        run(main())


def test_name_with_two_addresses_is_served_on_one_port(run: Run) -> None:
    async def main() -> None:
        network = SocketNetwork()
        listener = await network.listen("localhost", 0, Ear)
        connection = await network.connect("127.0.0.1", listener.port, Ear)
        assert connection.peer == f"127.0.0.1:{listener.port}"
        connection.close()
        listener.close()

    run(main())


def test_connecting_to_nobody_raises_oserror(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as sock:
            sock.bind((HOST, 0))
            port = sock.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await SocketNetwork().connect(HOST, port, Ear)

    run(main())
