"""JSON of any kind, passed over."""

from __future__ import annotations

import numpy as np

from sexton.history.kernels.tables import BAD, DEPTH_MAX, Bytes
from sexton.history.kernels.tokens import NULL, after_byte, ascii_bytes, expect
from sexton.jit import kernel

TRUE = ascii_bytes("true")
FALSE = ascii_bytes("false")


@kernel
def after_number(data: Bytes, position: int) -> int:
    """Returns the position after any number, of a size that Python takes."""
    start = position
    if data[position] == 45:
        position += 1
    first = position
    while 48 <= data[position] <= 57:
        position += 1
    if position == first or (data[first] == 48 and position - first > 1):
        return BAD
    if data[position] == 46:
        position += 1
        first = position
        while 48 <= data[position] <= 57:
            position += 1
        if position == first:
            return BAD
    if data[position] == 101 or data[position] == 69:
        position += 1
        if data[position] == 43 or data[position] == 45:
            position += 1
        first = position
        while 48 <= data[position] <= 57:
            position += 1
        if position == first:
            return BAD
    return position if position - start < 1000 else BAD


@kernel
def after_string(data: Bytes, position: int) -> int:
    """Returns the position after a string with escapes; `position` is that after the first quote."""
    while data[position] != 34:
        byte = data[position]
        if byte < 32 or byte > 126:
            return BAD
        position += 1
        if byte == 92:
            byte = data[position]
            if byte == 117:  # u
                for _ in range(4):
                    position += 1
                    digit = data[position] | 32
                    if not (48 <= data[position] <= 57 or 97 <= digit <= 102):
                        return BAD
            elif not (
                byte == 34
                or byte == 92
                or byte == 47
                or byte == 98
                or byte == 102
                or byte == 110
                or byte == 114
                or byte == 116
            ):
                return BAD
            position += 1
    return position + 1


@kernel
def after_object(data: Bytes, position: int) -> int:
    return after_nested(data, position) if data[position] == 123 else BAD


@kernel
def after_value(data: Bytes, position: int) -> int:
    if position < 0:
        return BAD
    is_nested = data[position] == 123 or data[position] == 91
    return after_nested(data, position) if is_nested else after_scalar(data, position)


@kernel
def after_scalar(data: Bytes, position: int) -> int:
    byte = data[position]
    if byte == 34:
        return after_string(data, position + 1)
    if byte == 110:
        return expect(data, position, NULL)
    if byte == 116:
        return expect(data, position, TRUE)
    if byte == 102:
        return expect(data, position, FALSE)
    return after_number(data, position)


@kernel
def after_nested(data: Bytes, position: int) -> int:
    """Returns the position after any object or list that is not nested too deeply; `position` is that of its
    bracket."""
    is_map = np.zeros(DEPTH_MAX, np.bool_)
    is_map[0] = data[position] == 123
    depth = 1
    is_first = True
    position += 1
    while depth > 0:
        # After an opening bracket, or after a value.
        if data[position] == (125 if is_map[depth - 1] else 93):
            position += 1
            depth -= 1
            is_first = False
            continue
        if not is_first:
            position = after_byte(data, position, 44)
            if position < 0:
                return BAD
        if is_map[depth - 1]:
            if data[position] != 34:
                return BAD
            position = after_byte(data, after_string(data, position + 1), 58)
            if position < 0:
                return BAD
        byte = data[position]
        is_first = byte == 123 or byte == 91
        if not is_first:
            position = after_scalar(data, position)
        elif depth == DEPTH_MAX:
            return BAD
        else:
            is_map[depth] = byte == 123
            depth += 1
            position += 1
        if position < 0:
            return BAD
    return position
