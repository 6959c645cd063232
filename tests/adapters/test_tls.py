"""TLS over real sockets, against Python's own TLS server: who is trusted, who is not, and what a person is told."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sexton.adapters.sockets import SocketNetwork
from sexton.adapters.tls import TlsNetwork, make_context
from sexton.ports.tls import TlsFailedError, TlsSettings
from tests.adapters.network_behaviour import Ear
from tests.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def server_context(authority: Authority, *, asks: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server").path)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.pem)
    return context


@asynccontextmanager
async def serving(authority: Authority, *, asks: bool = False) -> AsyncIterator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_context(authority, asks=asks))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def connected(port: int, settings: TlsSettings, host: str = "127.0.0.1") -> Ear:
    ears: list[Ear] = []

    def receiver(connection: object) -> Ear:
        ears.append(Ear(connection))  # type: ignore[arg-type]
        return ears[0]

    async with asyncio.timeout(20):
        await TlsNetwork(SocketNetwork(), make_context(settings)).connect(host, port, receiver)
    return ears[0]


async def test_megabytes_go_both_ways_unchanged(authority: Authority) -> None:
    sent = os.urandom(5 << 20)
    async with serving(authority) as port:
        ear = await connected(port, TlsSettings(trusted_pem=authority.pem))
        ear.connection.send([sent[:10], sent[10 : 3 << 20], memoryview(sent)[3 << 20 :]])
        await ear.hears(sent)
        ear.connection.close()
        await ear.until(lambda ear: bool(ear.end))


async def test_an_unknown_authority_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    async with serving(authority) as port:
        with pytest.raises(TlsFailedError, match="certificate is not accepted") as refused:
            await connected(port, TlsSettings(trusted_pem=other.pem))
        assert "ssl.truststore.location" in refused.value.remedy


async def test_a_certificate_for_another_name_is_refused_unless_names_are_not_checked(authority: Authority) -> None:
    async with serving(authority) as port:
        with pytest.raises(TlsFailedError) as refused:
            await connected(port, TlsSettings(trusted_pem=authority.pem), host="localhost")
        assert "ssl.endpoint.identification.algorithm" in refused.value.remedy
        ear = await connected(port, TlsSettings(trusted_pem=authority.pem, checks_host=False), host="localhost")
        ear.connection.close()


async def test_a_broker_that_asks_for_a_certificate_gets_ours(authority: Authority) -> None:
    mine = authority.issue("client").path.read_text()
    async with serving(authority, asks=True) as port:
        ear = await connected(port, TlsSettings(trusted_pem=authority.pem, own_pem=mine))
        ear.connection.send([b"hello"])
        await ear.hears(b"hello")
        ear.connection.close()


async def test_a_broker_that_misses_a_certificate_is_told_with_the_property_to_set(authority: Authority) -> None:
    """In TLS 1.3 the refusal comes after the handshake, as an alert. asyncio's own servers do not send it."""
    context = server_context(authority, asks=True)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        accepted, _ = listening.accept()
        with accepted, suppress(ssl.SSLError):
            context.wrap_socket(accepted, server_side=True)

    with listening:
        served = asyncio.create_task(asyncio.to_thread(serve))
        ear = await connected(listening.getsockname()[1], TlsSettings(trusted_pem=authority.pem))
        await ear.until(lambda ear: bool(ear.end))
        await served
    assert isinstance(ear.end[0], TlsFailedError)
    assert "ssl.keystore.location" in ear.end[0].remedy


async def test_a_port_that_does_not_speak_tls_is_told() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x00\x00\x00\x0ahello, this is no TLS")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    with pytest.raises(TlsFailedError, match="does not speak TLS"):
        await connected(server.sockets[0].getsockname()[1], TlsSettings())
    server.close()


async def test_a_broker_that_hangs_up_during_the_handshake_is_a_lost_connection() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    with pytest.raises(OSError, match=r"reset|closed"):
        await connected(server.sockets[0].getsockname()[1], TlsSettings())
    server.close()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (TlsSettings(trusted_pem="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"), "truststore"),
        (TlsSettings(own_pem="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"), "keystore"),
    ],
)
def test_certificates_that_are_none_are_told(settings: TlsSettings, told: str) -> None:
    with pytest.raises(TlsFailedError) as refused:
        make_context(settings)
    assert told in refused.value.remedy
