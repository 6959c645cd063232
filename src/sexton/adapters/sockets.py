"""The network port on the operating system's TCP sockets, under uvloop or asyncio's own loop.

Sockets are non-blocking and watched with `add_reader` and `add_writer`, not wrapped in transports: only so can a file
be sent by `os.sendfile` between two responses, and can one receive buffer serve all connections (its content is handed
over before another connection reads). What a receiver sends while it handles received bytes, and all that is sent
otherwise in one turn of the loop, goes out in one system call.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from sexton.ports.disk import FileSlice
from sexton.ports.network import HIGH_BACKLOG_BYTES, LOW_BACKLOG_BYTES, SENDFILE_BYTES_MIN, Connection, Part, Receiver

log = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 1 << 18
"""Maximum bytes read from one connection before the next one has its turn."""

FLUSH_BYTES_MAX = 4 << 20
"""Maximum bytes sent through one connection before the next one has its turn."""

PARTS_MAX = 512
"""Maximum number of buffers in one sendmsg. Linux accepts 1,024."""

RESERVED_DESCRIPTORS = 32
"""Number of descriptors that clients cannot have: logs need some, and so does the metastore's connection."""

LISTEN_BACKLOG = 1024
ACCEPTS_PER_TURN_MAX = 128
ACCEPT_PAUSE_S = 1.0

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_MSG_MORE = getattr(socket, "MSG_MORE", 0)


class SocketConnection:
    """Implements `ports.network.Connection` over one connected socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, buffer: memoryview) -> None:
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._buffer = buffer
        self._receiver: Receiver
        self._queue: deque[Part] = deque()
        self._sent_of_first_bytes = 0
        self._backlog_bytes = 0
        self._is_above_high = False
        self._is_handing_over = False
        self._is_flush_due = False
        self._is_waiting_to_write = False
        self._is_reading = False
        self._wants_to_read = True
        self._peer_is_done = False
        self._has_ended = False
        self._peer = _name(sock.getpeername)
        self._local = _name(sock.getsockname)

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._watch_reads()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def local(self) -> str:
        return self._local

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    # Receiving

    def pause_reading(self) -> None:
        self._wants_to_read = False
        self._watch_reads()

    def resume_reading(self) -> None:
        self._wants_to_read = True
        self._watch_reads()

    def _watch_reads(self) -> None:
        should_read = self._wants_to_read and not self._peer_is_done and not self._has_ended
        if should_read and not self._is_reading:
            self._loop.add_reader(self._fd, self._readable)
        elif self._is_reading and not should_read:
            self._loop.remove_reader(self._fd)
        self._is_reading = should_read

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if size == 0:
            self._peer_finished()
            return
        self._is_handing_over = True
        try:
            self._receiver.received(self._buffer[:size])
        except Exception as error:
            log.exception("%s: closed, because handling what it sent failed", self._peer)
            self._end(error)
        self._is_handing_over = False
        if self._queue and not self._is_waiting_to_write:
            self._flush()

    def _peer_finished(self) -> None:
        """The peer will send no more, but may still want the responses in the backlog. Requests in progress are not
        waited for: this is also how a broker learns that a client is gone, and a JoinGroup may be in progress for
        minutes. Kafka does the same, and no Kafka client closes one direction alone."""
        self._peer_is_done = True
        self._watch_reads()
        if not self._queue:
            self._end(None)

    # Sending

    def send(self, parts: Sequence[Part]) -> None:
        if self._has_ended:
            return
        for part in parts:
            size = part.size_bytes if isinstance(part, FileSlice) else len(part)
            if size:
                self._queue.append(part)
                self._backlog_bytes += size
        if self._backlog_bytes > HIGH_BACKLOG_BYTES:
            self._is_above_high = True
        if not (self._is_handing_over or self._is_flush_due or self._is_waiting_to_write):
            self._is_flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flush_due = False
        if self._queue and not self._is_waiting_to_write and not self._has_ended:
            self._flush()

    def _flush(self) -> None:
        """Sends until the backlog is empty, the kernel accepts no more, or the next connection should have its turn."""
        left_bytes = FLUSH_BYTES_MAX
        try:
            while self._queue and left_bytes > 0:
                offered, taken = self._send_some()
                left_bytes -= taken
                self._took(taken)
                if taken < offered:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error)
            return
        self._watch_writes(bool(self._queue))
        if self._is_above_high and self._backlog_bytes <= LOW_BACKLOG_BYTES:
            self._is_above_high = False
            # Not from here: the receiver may be in the middle of sending.
            self._loop.call_soon(self._tell_writable)
        if self._peer_is_done and not self._queue:
            self._end(None)

    def _send_some(self) -> tuple[int, int]:
        """Returns (offered, sent) bytes of one system call."""
        first = self._queue[0]
        if isinstance(first, FileSlice) and first.size_bytes >= SENDFILE_BYTES_MIN:
            file_fd = _descriptor(first)
            if file_fd is not None:
                return self._send_file(first, file_fd)
        buffers, more_follows = self._gather()
        offered = sum(map(len, buffers))
        if len(buffers) == 1:
            return offered, self._socket.send(buffers[0], _MSG_MORE if more_follows else 0)
        return offered, self._socket.sendmsg(buffers, (), _MSG_MORE if more_follows else 0)

    def _gather(self) -> tuple[list[bytes | bytearray | memoryview], bool]:
        """Returns the buffers up to the first file slice that is better sent by sendfile; shorter slices are read. Also
        returns whether more follows."""
        buffers: list[bytes | bytearray | memoryview] = []
        skip_bytes = self._sent_of_first_bytes
        size = 0
        for index, part in enumerate(self._queue):
            if isinstance(part, FileSlice):
                if index > 0 and part.size_bytes >= SENDFILE_BYTES_MIN and _descriptor(part) is not None:
                    return buffers, True
                wanted = min(part.size_bytes - skip_bytes, FLUSH_BYTES_MAX)
                buffers.append(part.read(skip_bytes, wanted))
                if skip_bytes + wanted < part.size_bytes:
                    return buffers, True
            else:
                buffers.append(memoryview(part)[skip_bytes:] if skip_bytes else part)
            skip_bytes = 0
            size += len(buffers[-1])
            if len(buffers) == PARTS_MAX or size >= FLUSH_BYTES_MAX:
                break
        return buffers, False

    def _send_file(self, part: FileSlice, file_fd: int) -> tuple[int, int]:
        start = self._sent_of_first_bytes
        offered = min(part.size_bytes - start, FLUSH_BYTES_MAX)
        try:
            taken = os.sendfile(self._fd, file_fd, part.position + start, offered)
        except (BlockingIOError, InterruptedError, ConnectionError, TimeoutError):
            raise
        except OSError:
            part.read(start, offered)  # raises if it was the file that failed
            raise
        if taken == 0:
            part.read(start, offered)
            raise OSError(errno.EIO, f"{part.file.path}: nothing could be sent of byte {part.position + start} on")
        return offered, taken

    def _took(self, taken: int) -> None:
        self._backlog_bytes -= taken
        taken += self._sent_of_first_bytes
        queue = self._queue
        while queue:
            first = queue[0]
            size = first.size_bytes if isinstance(first, FileSlice) else len(first)
            if taken < size:
                break
            taken -= size
            queue.popleft()
        self._sent_of_first_bytes = taken

    def _watch_writes(self, should_wait: bool) -> None:
        if should_wait and not self._is_waiting_to_write:
            self._loop.add_writer(self._fd, self._flush)
        elif self._is_waiting_to_write and not should_wait:
            self._loop.remove_writer(self._fd)
        self._is_waiting_to_write = should_wait

    def _tell_writable(self) -> None:
        if not self._has_ended:
            self._receiver.writable()

    # Ending

    def close(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._watch_reads()
        self._watch_writes(False)
        self._queue.clear()
        self._backlog_bytes = 0
        self._socket.close()
        self._loop.call_soon(self._tell_closed, error)

    def _tell_closed(self, error: Exception | None) -> None:
        self._receiver.closed(error)


def _descriptor(part: FileSlice) -> int | None:
    """Only files of the real disk adapter have a descriptor."""
    fileno = getattr(part.file, "fileno", None)
    return None if fileno is None else int(fileno())


def _name(address_of: Callable[[], tuple[str, int] | tuple[str, int, int, int]]) -> str:
    try:
        host, port, *_ = address_of()
    except OSError:  # the peer is gone already
        return "?"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class SocketListener:
    """Implements `ports.network.Listener` over the listening sockets of one host name, all on the same port."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        accept: Callable[[Connection], Receiver],
        buffer: memoryview,
    ) -> None:
        self._loop = loop
        self._sockets = list(sockets)
        self._accept = accept
        self._buffer = buffer
        self._resume: asyncio.TimerHandle | None = None
        self._port = int(self._sockets[0].getsockname()[1])
        self._watch()

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def _watch(self) -> None:
        self._resume = None
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._acceptable, sock)

    def _acceptable(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._could_not_accept(error)
                return
            if _is_among_the_last(sock.fileno()):
                sock.close()
                self._could_not_accept(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
                return
            self._accepted(sock)

    def _accepted(self, sock: socket.socket) -> None:
        try:
            _prepare(sock)
            connection = SocketConnection(self._loop, sock, self._buffer)
            receiver = self._accept(connection)
        except Exception:
            # A connection that cannot be served must not keep others from being accepted.
            log.exception("port %d: a connection was closed, because accepting it failed", self._port)
            sock.close()
            return
        connection.start(receiver)

    def _could_not_accept(self, error: OSError) -> None:
        """Stops accepting for a while: the connection stays in the kernel's queue, so the socket would be readable all
        the time."""
        if self._resume is not None:
            return
        if error.errno in (errno.EMFILE, errno.ENFILE):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.error(
                "port %d: cannot accept connections: the limit of %d file descriptors is reached. Raise it (ulimit -n) "
                "or lower max.connections. Trying again in %g s",
                self._port,
                limit,
                ACCEPT_PAUSE_S,
            )
        elif error.errno in _OUT_OF_RESOURCES:
            log.error("port %d: cannot accept connections: %s. Trying again in %g s", self._port, error, ACCEPT_PAUSE_S)
        else:
            log.warning("port %d: a connection could not be accepted: %s", self._port, error)
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())
        self._resume = self._loop.call_later(ACCEPT_PAUSE_S, self._watch)


def _is_among_the_last(descriptor: int) -> bool:
    """The system returns the lowest free descriptor, so a high one means that most are in use."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(RESERVED_DESCRIPTORS, limit // 4)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class SocketNetwork:
    """Implements `ports.network.Network`. Create one per event loop."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))

    async def listen(self, host: str, port: int, accept: Callable[[Connection], Receiver]) -> SocketListener:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # IPv4 first: its address determines the port if any free one was asked for.
        infos.sort(key=lambda info: info[0] != socket.AF_INET)
        return SocketListener(loop, _bind_all(infos), accept, self._buffer)

    async def connect(self, host: str, port: int, receiver: Callable[[Connection], Receiver]) -> SocketConnection:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for family, kind, protocol, _, address in infos:
            sock = socket.socket(family, kind, protocol)
            try:
                _prepare(sock)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = failure or error
                continue
            except BaseException:
                sock.close()
                raise
            connection = SocketConnection(loop, sock, self._buffer)
            connection.start(receiver(connection))
            return connection
        raise failure or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


def _bind_all(infos: Iterable[tuple[int, int, int, str, tuple[object, ...]]]) -> list[socket.socket]:
    """One name may have an IPv4 and an IPv6 address. Only the first must succeed: a machine may have IPv6 names but no
    IPv6, and a port that the kernel picked may be in use for the other."""
    bound: list[socket.socket] = []
    seen: list[object] = []
    for family, kind, protocol, _, address in infos:
        if address in seen:
            continue
        seen.append(address)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:
            if bound:
                continue
            raise
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            port = bound[0].getsockname()[1] if bound else address[1]
            sock.bind((address[0], port, *address[2:]))
            sock.listen(LISTEN_BACKLOG)
            sock.setblocking(False)
        except OSError:
            sock.close()
            if bound:
                continue
            raise
        bound.append(sock)
    return bound
