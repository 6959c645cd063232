"""Byte streams between processes, as TCP gives them: in order, each byte once, until the connection ends.

The interface is push-based on purpose. A receiver gets everything that has arrived at once, so that requests that
arrive together are handled together; what it sends while it handles them goes out in one system call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sexton.ports.disk import Buffer, FileSlice

Part = Buffer | FileSlice

SENDFILE_BYTES_MIN: Final = 32 * 1024
"""For smaller slices a copy through Python is cheaper than a system call of its own."""


class Receiver(Protocol):
    def received(self, data: memoryview) -> None:
        """Called with new bytes. The view is valid only during the call."""
        ...

    def writable(self) -> None:
        """Called when the backlog has fallen below the low mark after having been above the high one."""
        ...

    def closed(self, error: Exception | None) -> None:
        """The last call a receiver gets; None means an orderly end by either side."""
        ...


class Connection(Protocol):
    @property
    def peer(self) -> str:
        """host:port of the other side, for logs and for client metadata."""
        ...

    @property
    def local(self) -> str: ...

    @property
    def backlog_bytes(self) -> int:
        """Bytes that were passed to `send` but have not been sent yet. The receiver must bound them (see
        HIGH_BACKLOG_BYTES)."""
        ...

    def send(self, parts: Sequence[Part]) -> None:
        """Never blocks, never raises: on a connection that has ended it does nothing. Buffers must not change
        afterwards."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Drops the backlog. `Receiver.closed` follows, never from inside this call."""
        ...


HIGH_BACKLOG_BYTES = 1 << 20
LOW_BACKLOG_BYTES = 1 << 18


class Listener(Protocol):
    @property
    def port(self) -> int:
        """The actual port, also when port 0 was asked for."""
        ...

    def close(self) -> None:
        """Stops accepting; existing connections go on."""
        ...


class Network(Protocol):
    async def listen(self, host: str, port: int, accept: Callable[[Connection], Receiver]) -> Listener: ...

    async def connect(self, host: str, port: int, receiver: Callable[[Connection], Receiver]) -> Connection:
        """Raises OSError if the connection cannot be established. Callers bound it with `asyncio.timeout`."""
        ...
