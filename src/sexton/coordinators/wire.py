"""Kafka's primitive types, in the classic and the flexible (KIP-482) encoding, for the records of `__consumer_offsets`
and `__transaction_state`.

`kio` has the messages that cross the network; the records that a coordinator keeps are not among them. There are fewer
than twenty, so they are written by hand in `records.py` on top of these two small classes.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sexton.errors import CorruptLogError

T = TypeVar("T")

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

UVARINT_BYTES_MAX = 5
"""Bytes of an unsigned 32-bit number in groups of seven bits."""


class Writer:
    """Appends values. `flexible` selects compact lengths and makes `tags` write something."""

    def __init__(self, flexible: bool = False) -> None:
        self.out = bytearray()
        self.flexible = flexible

    def i8(self, value: int) -> None:
        self.out += _I8.pack(value)

    def i16(self, value: int) -> None:
        self.out += _I16.pack(value)

    def i32(self, value: int) -> None:
        self.out += _I32.pack(value)

    def i64(self, value: int) -> None:
        self.out += _I64.pack(value)

    def uvarint(self, value: int) -> None:
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def uuid(self, value: uuid.UUID) -> None:
        self.out += value.bytes

    def string(self, value: str | None) -> None:
        data = None if value is None else value.encode()
        if self.flexible:
            self._compact(data)
        elif data is None:
            self.i16(-1)
        else:
            self.i16(len(data))
            self.out += data

    def bytes_(self, value: bytes | None) -> None:
        if self.flexible:
            self._compact(value)
        elif value is None:
            self.i32(-1)
        else:
            self.i32(len(value))
            self.out += value

    def array(self, items: Sequence[T], write: Callable[[T], None]) -> None:
        if self.flexible:
            self.uvarint(len(items) + 1)
        else:
            self.i32(len(items))
        for item in items:
            write(item)

    def tags(self, fields: Mapping[int, bytes] | None = None) -> None:
        """Ends a flexible structure. Older encodings have no tagged fields."""
        if not self.flexible:
            return
        fields = fields or {}
        self.uvarint(len(fields))
        for tag in sorted(fields):
            self.uvarint(tag)
            self.uvarint(len(fields[tag]))
            self.out += fields[tag]

    def _compact(self, data: bytes | None) -> None:
        if data is None:
            self.uvarint(0)
        else:
            self.uvarint(len(data) + 1)
            self.out += data


class Reader:
    """Reads values from the front. A value that does not fit its own length is a CorruptLogError, never an index
    error."""

    def __init__(self, data: bytes, flexible: bool = False, place: str = "__consumer_offsets") -> None:
        self.data = data
        self.position = 0
        self.flexible = flexible
        self.place = place

    def i8(self) -> int:
        return int(_I8.unpack(self._take(1))[0])

    def i16(self) -> int:
        return int(_I16.unpack(self._take(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self._take(4))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self._take(8))[0])

    def uvarint(self) -> int:
        value = 0
        for index in range(UVARINT_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise self._corrupt("a length is longer than five bytes")

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._take(16))

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.i16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise self._corrupt("a string is not UTF-8") from error

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise self._corrupt("a string that must be there is null")
        return value

    def bytes_(self) -> bytes:
        length = self.uvarint() - 1 if self.flexible else self.i32()
        if length < 0:
            raise self._corrupt("bytes that must be there are null")
        return self._take(length)

    def skip(self, size_bytes: int) -> None:
        self._take(size_bytes)

    def array(self, read: Callable[[], T]) -> list[T]:
        items = self.nullable_array(read)
        if items is None:
            raise self._corrupt("an array that must be there is null")
        return items

    def nullable_array(self, read: Callable[[], T]) -> list[T] | None:
        count = self.uvarint() - 1 if self.flexible else self.i32()
        if count < 0:
            return None
        if count > len(self.data) - self.position:
            raise self._corrupt(f"an array claims {count} items, more than there are bytes")
        return [read() for _ in range(count)]

    def tags(self) -> dict[int, bytes]:
        if not self.flexible:
            return {}
        fields: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self._take(self.uvarint())
        return fields

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise self._corrupt("it ends too early")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def _corrupt(self, why: str) -> CorruptLogError:
        return CorruptLogError(
            f"A record is not what its version says: at byte {self.position} of {len(self.data)} {why}",
            self.place,
            "Restore the partition from another replica",
        )
