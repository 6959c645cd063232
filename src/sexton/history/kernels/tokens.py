"""Numbers, strings and fixed words: what JSON and EDN have in common."""

from __future__ import annotations

import numpy as np

from sexton.history.kernels.tables import BAD, DIGITS_MAX, OTHER, UNKNOWN, Bytes, Fs
from sexton.jit import kernel


def ascii_bytes(text: str) -> Bytes:
    return np.frombuffer(text.encode(), np.uint8)


NULL = ascii_bytes("null")
INVOKE = ascii_bytes("invoke")
OK = ascii_bytes("ok")
FAIL = ascii_bytes("fail")
INFO = ascii_bytes("info")


@kernel
def expect(data: Bytes, position: int, text: Bytes) -> int:
    """Returns the position after `text`, or BAD."""
    if position < 0:
        return BAD
    for index in range(len(text)):
        if data[position + index] != text[index]:
            return BAD
    return position + len(text)


@kernel
def natural(data: Bytes, position: int) -> tuple[int, int]:
    """Reads a number without sign or leading zero, of a size that cannot overflow."""
    if position < 0:
        return 0, BAD
    start = position
    value = 0
    while 48 <= data[position] <= 57 and position - start < DIGITS_MAX:
        value = value * 10 + (data[position] - 48)
        position += 1
    if position == start or 48 <= data[position] <= 57 or (data[start] == 48 and position - start > 1):
        return 0, BAD
    return value, position


@kernel
def integer(data: Bytes, position: int) -> tuple[int, int]:
    if position >= 0 and data[position] == 45:  # -
        value, after = natural(data, position + 1)
        return (-value, after) if value else (0, BAD)
    return natural(data, position)


@kernel
def same(data: Bytes, start: int, end: int, text: Bytes) -> bool:
    return end - start == len(text) and expect(data, start, text) == end


@kernel
def kind_of(data: Bytes, start: int, end: int, fs: Fs) -> int:
    first = 0
    for row in range(len(fs.ends)):
        if same(data, start, end, fs.data[first : fs.ends[row]]):
            return fs.kinds[row]
        first = fs.ends[row]
    return OTHER


@kernel
def text_end(data: Bytes, position: int) -> int:
    """Returns the position of the quote that ends a string of plain ASCII; `position` is that after the first."""
    if position < 0:
        return BAD
    while data[position] != 34:
        if data[position] < 32 or data[position] > 126 or data[position] == 92:
            return BAD
        position += 1
    return position


@kernel
def type_of(data: Bytes, start: int, end: int) -> int:
    if same(data, start, end, INVOKE):
        return 0
    if same(data, start, end, OK):
        return 1
    if same(data, start, end, FAIL):
        return 2
    if same(data, start, end, INFO):
        return 3
    return BAD


@kernel
def natural_or_null(data: Bytes, position: int) -> tuple[int, int]:
    if position >= 0 and data[position] == 110:  # n
        return UNKNOWN, expect(data, position, NULL)
    return natural(data, position)


@kernel
def after_byte(data: Bytes, position: int, byte: int) -> int:
    return position + 1 if position >= 0 and data[position] == byte else BAD
