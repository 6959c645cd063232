"""Removes tagged fields that a schema does not have.

A later version of the software may add a tagged field to any version of a message, and a reader skips the tags that it
does not know (KIP-482). kio refuses the whole message instead. Such messages are rare, so they are copied without the
unknown tags and parsed again.
"""

from __future__ import annotations

from typing import Any

from sexton.protocol.encoder import FieldShape, shapes, write_varint
from sexton.protocol.skimmer import count_reader, read_varint, value_walk


def without_unknown_tags(entity: Any, view: memoryview, position: int) -> bytes:
    """The message at the position, up to its end. Raises IndexError or struct.error if it ends too early."""
    out = bytearray()
    _copy(entity, view, position, out)
    return bytes(out)


def _copy(entity: Any, view: memoryview, position: int, out: bytearray) -> int:
    for shape in shapes(entity):
        if shape.tag is None:
            position = _copy_field(shape, view, position, out)
    return _copy_tags(entity, view, position, out) if entity.__flexible__ else position


def _copy_field(shape: FieldShape, view: memoryview, position: int, out: bytearray) -> int:
    if shape.is_array:
        count, start = count_reader(shape)(view, position)
        out += view[position:start]
        for _ in range(count):
            start = _copy_value(shape, view, start, out)
        return start
    if shape.entity is not None and shape.is_nullable:
        out.append(view[position])
        return position + 1 if view[position] == 0xFF else _copy(shape.entity, view, position + 1, out)
    return _copy_value(shape, view, position, out)


def _copy_value(shape: FieldShape, view: memoryview, position: int, out: bytearray) -> int:
    if shape.entity is not None:
        return _copy(shape.entity, view, position, out)
    end = value_walk(shape)(view, position)
    out += view[position:end]
    return end


def _copy_tags(entity: Any, view: memoryview, position: int, out: bytearray) -> int:
    known = {shape.tag: shape for shape in shapes(entity) if shape.tag is not None}
    kept = bytearray()
    kept_count = 0
    count, position = read_varint(view, position)
    for _ in range(count):
        tag, position = read_varint(view, position)
        size, position = read_varint(view, position)
        if position + size > len(view):
            raise IndexError
        if tag in known:
            content = bytearray()
            _copy_field(known[tag], view, position, content)
            write_varint(kept, tag)
            write_varint(kept, len(content))
            kept += content
            kept_count += 1
        position += size
    write_varint(out, kept_count)
    out += kept
    return position
