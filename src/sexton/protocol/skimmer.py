"""Finds impossible array counts before the native parser sees them.

kio allocates memory for as many items as a message claims; a count of two billion ends the whole process. So every
message is skimmed first: counts are compared with the bytes that are left. Nothing is built, and the walk ends at the
last array, so that it costs little where it matters (about 1 µs for a Produce request). The parser itself finds any
other error in a message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sexton.protocol.encoder import FieldShape, shapes

Skim = Callable[[memoryview, int], int]
"""Takes the position where something starts and returns the one behind it. Raises IndexError or struct.error past the
end."""

ITEMS_MAX = 1 << 21
"""Maximum number of items in one array. Bounds the memory that a message takes beyond its own size."""

_FIXED_BYTES = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}

_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from


class ImpossibleCountError(Exception):
    """An array claims more items than there are bytes for."""


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Returns (value, position behind it). A varint of more than five bytes is read as a number that is too large for
    anything."""
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            return 1 << 35, position


@cache
def skimmer(entity: Any) -> Skim | None:
    """Returns None if the message has no arrays. The function returns the position it has reached, not the end of the
    message."""
    return _tail(entity) if _has_arrays(entity) else None


@cache
def _has_arrays(entity: Any) -> bool:
    return any(shape.is_array or (shape.entity is not None and _has_arrays(shape.entity)) for shape in shapes(entity))


@cache
def _least_bytes(entity: Any) -> int:
    """The smallest size of an instance on the wire."""
    total = 1 if entity.__flexible__ else 0
    for shape in shapes(entity):
        if shape.tag is None:
            total += _least_field_bytes(shape)
    return max(total, 1)


def _least_field_bytes(shape: FieldShape) -> int:
    if shape.is_array:
        return 1 if shape.is_compact else 4
    if shape.entity is not None:
        return 1 if shape.is_nullable else _least_bytes(shape.entity)
    return _least_value_bytes(shape)


def _least_value_bytes(shape: FieldShape) -> int:
    kind = shape.kafka_type or ""
    if kind in _FIXED_BYTES:
        return _FIXED_BYTES[kind]
    if shape.is_compact:
        return 1
    return 2 if kind == "string" else 4


# The whole of an entity


@cache
def entity_walk(entity: Any) -> Skim:
    steps = _steps([shape for shape in shapes(entity) if shape.tag is None])
    if entity.__flexible__:
        steps.append(_tags_walk(entity))
    if len(steps) == 1:
        return steps[0]

    def walk(view: memoryview, position: int) -> int:
        for step in steps:
            position = step(view, position)
        return position

    return walk


def _steps(untagged: Sequence[FieldShape]) -> list[Skim]:
    """Neighbouring fields of fixed size are skipped together."""
    steps: list[Skim] = []
    skip = 0
    for shape in untagged:
        fixed = None if shape.is_array else _FIXED_BYTES.get(shape.kafka_type or "")
        if fixed is not None:
            skip += fixed
            continue
        if skip:
            steps.append(_skip(skip))
            skip = 0
        steps.append(_field_walk(shape))
    if skip:
        steps.append(_skip(skip))
    return steps


def _skip(size: int) -> Skim:
    def skip(view: memoryview, position: int) -> int:
        return position + size

    return skip


def _field_walk(shape: FieldShape) -> Skim:
    if shape.is_array:
        return _array_walk(shape)
    if shape.entity is not None:
        return _nullable_walk(entity_walk(shape.entity)) if shape.is_nullable else entity_walk(shape.entity)
    return value_walk(shape)


def _nullable_walk(walk: Skim) -> Skim:
    def walk_nullable(view: memoryview, position: int) -> int:
        return position + 1 if view[position] == 0xFF else walk(view, position + 1)

    return walk_nullable


def value_walk(shape: FieldShape) -> Skim:
    kind = shape.kafka_type or ""
    if kind in _FIXED_BYTES:
        return _skip(_FIXED_BYTES[kind])
    if shape.is_compact:
        return _skip_compact
    return _skip_old_string if kind == "string" else _skip_old_bytes


def _skip_compact(view: memoryview, position: int) -> int:
    size = view[position]
    position += 1
    if size >= 0x80:
        size, position = read_varint(view, position - 1)
    return position + size - 1 if size else position


def _skip_old_string(view: memoryview, position: int) -> int:
    size: int = _INT16(view, position)[0]
    return position + 2 + max(size, 0)


def _skip_old_bytes(view: memoryview, position: int) -> int:
    size: int = _INT32(view, position)[0]
    return position + 4 + max(size, 0)


def count_reader(shape: FieldShape) -> Callable[[memoryview, int], tuple[int, int]]:
    """Returns a function that reads the count of an array and raises if it is impossible. A null array has no items."""
    least = _least_bytes(shape.entity) if shape.entity is not None else _least_value_bytes(shape)
    name = shape.name

    def refuse(count: int) -> ImpossibleCountError:
        return ImpossibleCountError(f"{name} claims {count} items, for which there is no room")

    def read_compact(view: memoryview, position: int) -> tuple[int, int]:
        count = view[position]
        position += 1
        if count >= 0x80:
            count, position = read_varint(view, position - 1)
        count -= 1
        if count > 0 and (count * least > len(view) - position or count > ITEMS_MAX):
            raise refuse(count)
        return count, position

    def read_old(view: memoryview, position: int) -> tuple[int, int]:
        count: int = _INT32(view, position)[0]
        position += 4
        if count > 0 and (count * least > len(view) - position or count > ITEMS_MAX):
            raise refuse(count)
        return count, position

    return read_compact if shape.is_compact else read_old


def _array_walk(shape: FieldShape) -> Skim:
    read_count = count_reader(shape)
    if shape.entity is None and (size := _FIXED_BYTES.get(shape.kafka_type or "")) is not None:

        def walk_fixed(view: memoryview, position: int) -> int:
            count, position = read_count(view, position)
            return position + max(count, 0) * size

        return walk_fixed

    walk_item = entity_walk(shape.entity) if shape.entity is not None else value_walk(shape)

    def walk_items(view: memoryview, position: int) -> int:
        count, position = read_count(view, position)
        for _ in range(count):
            position = walk_item(view, position)
        return position

    return walk_items


def _tags_walk(entity: Any) -> Skim:
    """Tagged fields are skipped by their size, but walked if they have arrays inside."""
    inside = {
        shape.tag: _field_walk(shape)
        for shape in shapes(entity)
        if shape.tag is not None and (shape.is_array or (shape.entity is not None and _has_arrays(shape.entity)))
    }

    def walk_tags(view: memoryview, position: int) -> int:
        count = view[position]
        position += 1
        if not count:
            return position
        if count >= 0x80:
            count, position = read_varint(view, position - 1)
        for _ in range(count):
            tag, position = read_varint(view, position)
            size, position = read_varint(view, position)
            look = inside.get(tag)
            if look is not None:
                look(view, position)
            position += size
            if position > len(view):
                raise IndexError
        return position

    return walk_tags


# Up to the last array of the message


def _tail(entity: Any) -> Skim:
    """Like `_walk`, but skips what follows the last array, and what follows the last array inside that array's last
    item."""
    if any(shape.tag is not None and (shape.is_array or shape.entity is not None) for shape in shapes(entity)):
        return entity_walk(entity)
    untagged = [shape for shape in shapes(entity) if shape.tag is None]
    last = max(index for index, shape in enumerate(untagged) if shape.is_array or _holds_arrays(shape))
    steps = _steps(untagged[:last])
    steps.append(_field_tail(untagged[last]))

    def walk(view: memoryview, position: int) -> int:
        for step in steps:
            position = step(view, position)
        return position

    return walk


def _holds_arrays(shape: FieldShape) -> bool:
    return shape.entity is not None and _has_arrays(shape.entity)


def _field_tail(shape: FieldShape) -> Skim:
    if not shape.is_array:
        tail = _tail(shape.entity)
        return _nullable_walk(tail) if shape.is_nullable else tail
    read_count = count_reader(shape)
    if not _holds_arrays(shape):
        return lambda view, position: read_count(view, position)[1]
    walk_item, tail_item = entity_walk(shape.entity), _tail(shape.entity)

    def walk_items(view: memoryview, position: int) -> int:
        count, position = read_count(view, position)
        for _ in range(count - 1):
            position = walk_item(view, position)
        return tail_item(view, position) if count > 0 else position

    return walk_items
