"""An HTTP server that answers every request as a test has written it, and notes what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HANG = b"hang"
DROP = b""


def answer(status: int, code: str = "", headers: str = "", body: bytes | None = None) -> bytes:
    if body is None:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>m</Message></Error>'.encode() if code else b""
    head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Scripted:
    def __init__(self) -> None:
        self.answers: list[bytes] = []
        """The last one is given again and again."""
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.endpoint = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self.heads.append(head)
                self.asked.append(" ".join(head.split(" ")[:2]))
                for line in head.lower().split("\r\n"):
                    if line.startswith("content-length:"):
                        await reader.readexactly(int(line.partition(":")[2]))
                given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if given == HANG:
                    await asyncio.sleep(3600)
                if given == DROP:
                    return
                writer.write(given)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(*answers: bytes) -> AsyncIterator[Scripted]:
    server = Scripted()
    server.answers = list(answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.endpoint = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
