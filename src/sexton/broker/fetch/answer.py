"""The Fetch response, encoded by hand: records are sent as slices of files, between buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sexton.broker.fetch.sessions import Topic, Wanted
from sexton.broker.leader_hints import LeaderHint, encode_hint, write_endpoints
from sexton.broker.network.request import Encoded
from sexton.ports.disk import FileSlice
from sexton.ports.network import Part
from sexton.protocol.encoder import write_varint

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.log.types import AbortedTransaction

_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_PARTITION_V12_PLAIN = struct.Struct(">ihqqqBi")
_ABORTED = struct.Struct(">qq")
_ABORTED_TAGGED = struct.Struct(">qqB")
_DIVERGING = struct.Struct(">iqB")
_INT = struct.Struct(">i")
_TOP_V7 = struct.Struct(">ihi")
_SIZE_AND_ID = struct.Struct(">ii")

JOIN_BYTES_MAX = 1 << 12
"""Records in memory up to this size are copied into the buffer around them."""


class Found:
    """The response for one partition."""

    __slots__ = (
        "aborted",
        "code",
        "diverging",
        "high_watermark",
        "hint",
        "last_stable_offset",
        "parts",
        "preferred_replica",
        "size_bytes",
        "start_offset",
    )

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.start_offset = -1
        self.aborted: Sequence[AbortedTransaction] | None = None
        self.preferred_replica = -1
        self.diverging: tuple[int, int] | None = None
        """(epoch, end offset) of the last point at which the consumer and this log agree."""
        self.hint: LeaderHint | None = None
        self.parts: Sequence[Part] = ()
        self.size_bytes = 0

    @property
    def is_urgent(self) -> bool:
        """Whether the response must be sent at once: waiting for more would only delay it."""
        return self.code != 0 or self.diverging is not None or self.preferred_replica >= 0


Topics = dict[Topic, list[tuple[Wanted, Found]]]


class FetchEncoder:
    def __init__(self, broker: Broker, version: int, correlation_id: int) -> None:
        self._broker = broker
        self._version = version
        self._correlation_id = correlation_id
        self._is_tagged = version >= 12
        self._parts: list[Part] = []
        self._out = bytearray(9 if self._is_tagged else 8)
        self._slices_bytes = 0
        self._hints: list[LeaderHint] = []

    def encode(self, code: int, session_id: int, topics: Topics) -> Encoded:
        version = self._version
        out = self._out
        out += _TOP_V7.pack(0, code, session_id) if version >= 7 else b"\x00\x00\x00\x00"
        self._write_count(len(topics))
        for topic, partitions in topics.items():
            self._write_topic(topic)
            self._write_count(len(partitions))
            for wanted, found in partitions:
                self._write_partition(wanted.partition, found)
            if self._is_tagged:
                self._out.append(0)
        if version >= 16:
            write_endpoints(self._out, self._broker, self._hints)
        elif self._is_tagged:
            self._out.append(0)
        return self._finish()

    def _finish(self) -> Encoded:
        if not self._parts:
            out = self._out
            _SIZE_AND_ID.pack_into(out, 0, len(out) - 4, self._correlation_id)
            return bytes(out)
        self._parts.append(self._out)
        first = self._parts[0]
        assert isinstance(first, bytearray)
        size = sum(len(part) for part in self._parts if not isinstance(part, FileSlice)) + self._slices_bytes
        _SIZE_AND_ID.pack_into(first, 0, size - 4, self._correlation_id)
        return self._parts

    def _write_count(self, count: int) -> None:
        if self._is_tagged:
            write_varint(self._out, count + 1)
        else:
            self._out += _INT.pack(count)

    def _write_topic(self, topic: Topic) -> None:
        if isinstance(topic, str):
            name = topic.encode()
            if self._is_tagged:
                write_varint(self._out, len(name) + 1)
            else:
                self._out += struct.pack(">h", len(name))
            self._out += name
        else:
            self._out += topic.bytes if topic is not None else bytes(16)

    def _write_partition(self, index: int, found: Found) -> None:
        out = self._out
        head = index, found.code, found.high_watermark, found.last_stable_offset
        if self._is_tagged:
            if found.aborted is None:
                out += _PARTITION_V12_PLAIN.pack(*head, found.start_offset, 0, found.preferred_replica)
            else:
                out += _PARTITION_V5.pack(*head, found.start_offset)
                write_varint(out, len(found.aborted) + 1)
                for producer_id, first_offset in found.aborted:
                    out += _ABORTED_TAGGED.pack(producer_id, first_offset, 0)
                out += _INT.pack(found.preferred_replica)
            write_varint(out, found.size_bytes + 1)
            self._write_records(found.parts)
            self._write_partition_tags(found)
            return
        out += _PARTITION_V4.pack(*head) if self._version < 5 else _PARTITION_V5.pack(*head, found.start_offset)
        if found.aborted is None:
            out += b"\xff\xff\xff\xff"
        else:
            out += _INT.pack(len(found.aborted))
            for producer_id, first_offset in found.aborted:
                out += _ABORTED.pack(producer_id, first_offset)
        if self._version >= 11:
            out += _INT.pack(found.preferred_replica)
        out += _INT.pack(found.size_bytes)
        self._write_records(found.parts)

    def _write_records(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, FileSlice):
                self._slices_bytes += part.size_bytes
            elif len(part) <= JOIN_BYTES_MAX:
                self._out += part
                continue
            self._parts.append(self._out)
            self._parts.append(part)
            self._out = bytearray()

    def _write_partition_tags(self, found: Found) -> None:
        out = self._out
        if found.diverging is None and found.hint is None:
            out.append(0)
            return
        out.append((found.diverging is not None) + (found.hint is not None))
        if found.diverging is not None:
            out += bytes((0, _DIVERGING.size))
            out += _DIVERGING.pack(*found.diverging, 0)
        if found.hint is not None:
            content = encode_hint(found.hint)
            out += bytes((1, len(content)))
            out += content
            self._hints.append(found.hint)
