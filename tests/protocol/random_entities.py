"""Random instances of kio's classes, and the order in which to go through all of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from sexton.protocol.encoder import FieldShape
from sexton.protocol.messages import known_versions

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_LONGEST_ARRAY = 3


def every_api_and_version() -> Iterator[tuple[int, int]]:
    for api_key in sorted(api_key_map):
        versions = known_versions(api_key)
        assert versions is not None
        for version in range(versions[0], versions[1] + 1):
            yield api_key, version


def random_entity(rng: random.Random, entity: Any) -> Any:
    values = {}
    for field in fields(entity):
        if "tag" in field.metadata and rng.random() < 0.4:
            continue
        shape = FieldShape(field, entity.__flexible__, entity.__name__)
        # kio cannot write null into a tagged field unless null is the default, when nothing is written at all.
        may_be_null = shape.is_nullable and (shape.tag is None or shape.default is None)
        values[field.name] = None if may_be_null and rng.random() < 0.3 else _random_field(rng, shape)
    missing = {field.name for field in fields(entity)} - set(values)
    return entity(**values, **_implicit(entity, missing))


def _implicit(entity: Any, names: set[str]) -> dict[str, Any]:
    """Tagged fields without a default of their own must be given all the same."""
    from dataclasses import MISSING

    from kio.serial._implicit_defaults import get_tagged_field_default

    return {
        field.name: get_tagged_field_default(field)
        for field in fields(entity)
        if field.name in names and field.default is MISSING
    }


def _random_field(rng: random.Random, shape: FieldShape) -> Any:
    if shape.is_array:
        return tuple(_random_value(rng, shape) for _ in range(rng.randint(0, _LONGEST_ARRAY)))
    return _random_value(rng, shape)


def _random_value(rng: random.Random, shape: FieldShape) -> Any:
    if shape.entity is not None:
        return random_entity(rng, shape.entity)
    kind = shape.kafka_type
    assert kind is not None
    if kind in _BITS:
        return rng.randint(-(1 << _BITS[kind] - 1), (1 << _BITS[kind] - 1) - 1)
    if kind.startswith("uint"):
        return rng.randint(0, (1 << int(kind[4:])) - 1)
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "float64":
            return rng.random()
        case "string":
            return "é" * rng.choice([0, 1, 5, 70]) + "x"
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 126, 127, 20_000]))
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128) | 1)
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32":
            return timedelta(milliseconds=rng.randint(-1, (1 << 31) - 1))
        case "timedelta_i64":
            return timedelta(milliseconds=rng.randint(-1, 1 << 40))
        case "datetime_i64":
            return datetime.fromtimestamp(rng.randint(0, 1 << 31), tz=UTC)
    raise AssertionError(f"no random values for {kind}")
