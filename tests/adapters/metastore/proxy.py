"""A network between client and server that can be cut, without either side being told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._pumps: list[asyncio.Task[None]] = []
        self.port = 0

    def cut(self) -> None:
        """Bytes under way are lost; sockets stay open on both sides; new connections wait."""
        self._is_whole.clear()
        for pump in self._pumps:
            pump.cancel()
        self._pumps.clear()

    def heal(self) -> None:
        """New connections get through. The old ones never carry another byte."""
        self._is_whole.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_whole.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._pumps.append(asyncio.create_task(self._pump(reader, far_writer)))
        self._pumps.append(asyncio.create_task(self._pump(far_reader, writer)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    yield proxy
    proxy.cut()
    server.close()
