"""Reads and writes a plan's files through its broker's port, for tasks that cannot see the broker's disk.

Uses blocking sockets: a task does one thing at a time and waits for it. A worker process keeps its connections from
task to task. Every message may be repeated, so a request whose connection broke is retried once, on a new connection.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from sexton.compaction.chunking import Extent, Output
from sexton.compaction.contract import READ_BYTES_MAX, WRITE_BYTES_MAX
from sexton.errors import EnvironmentFailure
from sexton.protocol import private
from sexton.protocol.private import PrivateApi
from sexton.records import names
from sexton.records.kernels.primitives import Bytes
from sexton.spark.storage import PartFile, part_path

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 60.0
"""Longest time without a byte from the broker. A broker that assembles a segment (ASSEMBLE_TIMEOUT_S) is silent for
longer."""

ASSEMBLE_TIMEOUT_S: Final = 1800.0
CLIENT_ID: Final = b"compaction task"
ERROR_BYTES_MAX: Final = 1 << 20
_SIZE: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class BrokerFiles:
    """Implements `sexton.spark.storage.Storage`."""

    host: str
    port: int
    plan_id: str
    staging: str
    """Path of the staging directory on the broker, not on this machine."""

    @property
    def reads_anew(self) -> bool:
        return True

    @contextmanager
    def reading(self, path: str, start: int, end: int) -> Iterator[Bytes]:
        """Maps an unnamed temporary file of which only that range takes space: memory use follows what is read."""
        if start >= end:
            yield np.zeros(0, dtype=np.uint8)
            return
        base_offset = names.parse_base_offset(Path(path).name)
        with tempfile.TemporaryFile(dir=_scratch_dir()) as file:
            try:
                file.truncate(end)
                # Now, not when a page is touched: that would kill the process without a reason (SIGBUS).
                os.posix_fallocate(file.fileno(), start, end - start)
                view = mmap.mmap(file.fileno(), end)
            except OSError as error:
                raise EnvironmentFailure(
                    f"no room for {end - start} bytes of a segment ({error.strerror})",
                    _scratch_dir() or tempfile.gettempdir(),
                    "Give Spark's executors more room (spark.local.dir)",
                ) from error
            self.fill(base_offset, memoryview(view), start, end)
            # The map is closed when the last array over it is gone.
            yield np.frombuffer(view, dtype=np.uint8)

    def fill(self, base_offset: int, view: memoryview, start: int, end: int) -> None:
        while start < end:
            asked = {
                "plan_id": self.plan_id,
                "base_offset": base_offset,
                "position": start,
                "size_bytes": min(end - start, READ_BYTES_MAX),
            }
            count = self._ask(PrivateApi.COMPACTION_READ, [private.encode(asked)], ANSWER_TIMEOUT_S, view[start:end])
            if count == 0:
                raise self._failure(f"segment {base_offset} ends at {start}, and {end} was planned on")
            start += count

    def new_part(self, base_offset: int, source: Extent | None) -> PartFile:
        return _RemotePart(self, part_path(self.staging, base_offset))

    def append(self, name: str, position: int, data: memoryview) -> None:
        for done in range(0, len(data), WRITE_BYTES_MAX):
            head = private.encode({"plan_id": self.plan_id, "part": name, "position": position + done})
            self._ask(PrivateApi.COMPACTION_WRITE, [head, b"\0", data[done : done + WRITE_BYTES_MAX]], ANSWER_TIMEOUT_S)

    def write_segment(self, output: Output) -> str:
        extents = [[Path(one.path).name, one.start, one.end] for one in output.extents]
        asked = {"plan_id": self.plan_id, "base_offset": output.new.base_offset, "extents": extents}
        self._ask(PrivateApi.COMPACTION_ASSEMBLE, [private.encode(asked)], ASSEMBLE_TIMEOUT_S)
        return f"{self.staging}/{names.log_file_name(output.new.base_offset, names.CLEANED_SUFFIX)}"

    def remove_parts(self) -> None:
        """Does nothing: the broker removes all staged files when the plan has ended."""

    def _ask(
        self, api_key: int, parts: Sequence[bytes | memoryview], timeout_s: float, into: memoryview | None = None
    ) -> int:
        """Returns the number of bytes received into `into`."""
        for attempt in (1, 2):
            try:
                link = _connected(self.host, self.port)
                count, answer = link.ask(api_key, parts, timeout_s, into)
                break
            except OSError as error:
                _forget(self.host, self.port)
                if attempt == 2:
                    what = f"the broker does not answer ({error.strerror or error})"
                    raise self._failure(what, "It must be reachable from Spark's executors") from error
        if answer:
            try:
                private.decode_answer(answer, "")
            except private.RefusedError as error:
                raise self._failure(f"the broker refused: {error}") from error
        return count

    def _failure(self, what: str, remedy: str = "The partition is planned anew") -> EnvironmentFailure:
        return EnvironmentFailure(what, f"{self.host}:{self.port}", remedy)


class _RemotePart:
    def __init__(self, files: BrokerFiles, path: str) -> None:
        self.path = path
        self._files = files

    def append(self, position: int, data: memoryview) -> None:
        self._files.append(Path(self.path).name, position, data)

    def close(self) -> None:
        """Does nothing: the broker has the bytes already."""

    def discard(self) -> None:
        """Does nothing: the broker removes the part with the plan's other files."""


class _Link:
    """One connection to a broker: sends a request, then waits for its response."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def ask(
        self, api_key: int, parts: Sequence[bytes | memoryview], timeout_s: float, into: memoryview | None
    ) -> tuple[int, bytes]:
        """Returns the number of bytes received into `into`, and the response if it is not data. Raises OSError."""
        self._correlation_id += 1
        header = _HEADER.pack(api_key, 0, self._correlation_id, len(CLIENT_ID)) + CLIENT_ID
        size = len(header) + sum(len(part) for part in parts)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(_SIZE.pack(size) + header + bytes(parts[0]))
        for part in parts[1:]:
            self._socket.sendall(part)
        left = _SIZE.unpack(self._receive(_SIZE.size))[0] - _SIZE.size
        if _SIZE.unpack(self._receive(_SIZE.size))[0] != self._correlation_id or left < 0:
            raise ConnectionError("what came is no answer to what was asked")
        if into is None:
            return 0, self._receive(_bounded(left, ERROR_BYTES_MAX))
        is_data = self._receive(1) == b"\0"
        if not is_data:
            return 0, self._receive(_bounded(left - 1, ERROR_BYTES_MAX))
        self._receive_into(into[: _bounded(left - 1, len(into))])
        return left - 1, b""

    def _receive(self, size_bytes: int) -> bytes:
        buffer = bytearray(size_bytes)
        self._receive_into(memoryview(buffer))
        return bytes(buffer)

    def _receive_into(self, view: memoryview) -> None:
        while len(view):
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionError("the connection ended")
            view = view[count:]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


_links: dict[tuple[str, int], _Link] = {}
"""A worker process runs one task at a time, so each connection has one user."""


def _connected(host: str, port: int) -> _Link:
    link = _links.get((host, port))
    if link is None:
        link = _links[host, port] = _Link(host, port)
    return link


def _forget(host: str, port: int) -> None:
    link = _links.pop((host, port), None)
    if link is not None:
        link.close()


def _bounded(size_bytes: int, limit: int) -> int:
    if not 0 <= size_bytes <= limit:
        raise ConnectionError(f"an answer of {size_bytes} bytes, where {limit} are allowed")
    return size_bytes


def _scratch_dir() -> str | None:
    """Directory in which Spark's executors keep what does not fit into memory."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
