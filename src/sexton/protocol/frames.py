"""Cuts a stream of bytes into frames: a size of four bytes, then that many bytes.

No I/O here. A frame that lies whole in the received chunk is returned as a view of that chunk, without a copy; it is
valid as long as the chunk is. A frame that spans chunks is collected in a buffer that grows with the bytes that have
really arrived: a peer that only announces a large frame takes no memory. Growing is amortized, never quadratic.
"""

from __future__ import annotations

import struct

SIZE_BYTES = 4

DEFAULT_MAX_FRAME_BYTES = 100 << 20
"""Default of Kafka's socket.request.max.bytes."""

TLS_START = b"\x16\x03"
HTTP_STARTS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "})

_SIZE = struct.Struct(">i")


class FrameSizeError(Exception):
    """A negative size, or one above the limit. The rest of the stream cannot be cut into frames any more."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(size_bytes, max_bytes)
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes

    def __str__(self) -> str:
        return f"a frame of {self.size_bytes} bytes, where 0 to {self.max_bytes} are allowed. {self._remedy()}"

    def _remedy(self) -> str:
        """Most often the peer uses another protocol, of which the first bytes were taken for a size."""
        start = _SIZE.pack(self.size_bytes)
        if start.startswith(TLS_START):
            return "It speaks TLS: set security.protocol=PLAINTEXT in the client"
        if start in HTTP_STARTS:
            return "It speaks HTTP: this port is for Kafka clients"
        if self.size_bytes < 0:
            return "It is no Kafka client, or a broken one"
        return "If it is a Kafka client that means it, raise socket.request.max.bytes"


class FrameReader:
    """`feed` a chunk, then call `next` until it returns None. One chunk at a time."""

    __slots__ = ("_chunk", "_end", "_max_bytes", "_owns_chunk", "_partial", "_partial_size", "_position")

    def __init__(self, max_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunk = memoryview(b"")
        self._position = 0
        self._end = 0
        self._owns_chunk = True
        self._partial = bytearray()
        """The start of a frame whose rest has not arrived yet, with its size."""
        self._partial_size = -1
        """Size of the whole frame with its size field; -1 while it is unknown."""

    @property
    def claimed_bytes(self) -> int:
        """Total size of the frame that is being collected; 0 if there is none, or its size has not arrived yet."""
        return max(self._partial_size, 0) if self._partial else 0

    def feed(self, chunk: memoryview) -> None:
        assert self._position == self._end, "the chunk before was not read to its end"
        self._chunk = chunk if chunk.readonly else chunk.toreadonly()
        self._position = 0
        self._end = len(chunk)
        self._owns_chunk = False

    def next(self) -> memoryview | None:
        """Returns the next frame without its size, read-only; None if the chunk has no more whole frame.

        Raises FrameSizeError, and so does every later call.
        """
        if self._partial:
            return self._next_partial()
        position = self._position
        rest = self._end - position
        if rest >= SIZE_BYTES:
            size: int = _SIZE.unpack_from(self._chunk, position)[0]
            if not 0 <= size <= self._max_bytes:
                raise FrameSizeError(size, self._max_bytes)
            end = position + SIZE_BYTES + size
            if end <= self._end:
                self._position = end
                return self._chunk[position + SIZE_BYTES : end]
            self._partial_size = SIZE_BYTES + size
        if rest:
            self._take(rest)
        return None

    def keep_rest(self) -> None:
        """Copies the bytes that `next` has not processed yet, so that it can go on after the chunk is no longer
        valid."""
        if not self._owns_chunk:
            self._chunk = memoryview(bytes(self._chunk[self._position : self._end]))
            self._end -= self._position
            self._position = 0
            self._owns_chunk = True

    @property
    def has_rest(self) -> bool:
        """Whether bytes of the chunk are still to be processed. A new chunk can be fed only when there are none."""
        return self._position < self._end

    def _take(self, size_bytes: int) -> None:
        self._partial += self._chunk[self._position : self._position + size_bytes]
        self._position += size_bytes

    def _next_partial(self) -> memoryview | None:
        if self._partial_size < 0:
            self._take(min(SIZE_BYTES - len(self._partial), self._end - self._position))
            if len(self._partial) < SIZE_BYTES:
                return None
            (size,) = _SIZE.unpack(self._partial)
            if not 0 <= size <= self._max_bytes:
                raise FrameSizeError(size, self._max_bytes)
            self._partial_size = SIZE_BYTES + size
        self._take(min(self._partial_size - len(self._partial), self._end - self._position))
        if len(self._partial) < self._partial_size:
            return None
        frame = memoryview(self._partial).toreadonly()[SIZE_BYTES:]
        self._partial = bytearray()
        self._partial_size = -1
        return frame
