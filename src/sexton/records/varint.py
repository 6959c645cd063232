"""Zigzag varints, the plain reference: 7 bits per byte, low bits first, the sign in the lowest bit."""

from __future__ import annotations

MAX_VARINT_BYTES = 10


def write_varint(out: bytearray, value: int) -> None:
    unsigned = (value << 1) ^ (value >> 63)
    unsigned &= 0xFFFFFFFFFFFFFFFF
    while unsigned >= 0x80:
        out.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    out.append(unsigned)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Returns the value and the position after it. Raises IndexError past the end, ValueError if it is too long."""
    unsigned = 0
    for index in range(MAX_VARINT_BYTES):
        byte = data[position + index]
        unsigned |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            unsigned &= 0xFFFFFFFFFFFFFFFF
            return (unsigned >> 1) ^ -(unsigned & 1), position + index + 1
    raise ValueError("a varint longer than 10 bytes")
