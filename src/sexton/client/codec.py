"""Requests from nested mappings and answers to entities, by kio alone."""

from __future__ import annotations

import dataclasses
import io
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> bytes:
    schema = load_request_schema(api_key, version)
    header_schema: Any = schema.__header_schema__
    values = {
        "request_api_key": api_key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    buffer = io.BytesIO()
    entity_writer(header_schema)(buffer, _entity(header_schema, values))
    entity_writer(schema)(buffer, _entity(schema, body))
    return buffer.getvalue()


def decode_response(api_key: int, version: int, view: memoryview, position: int) -> Any:
    schema = load_response_schema(api_key, version)
    _, header_bytes = entity_reader(schema.__header_schema__)(view, position)
    entity, _ = entity_reader(schema)(view, position + header_bytes)
    return entity


def _entity(schema: Any, values: Mapping[str, Any]) -> Any:
    return schema(**{name: _value(kind, values[name]) for name, kind in _fields(schema).items() if name in values})


@cache
def _fields(schema: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(schema)
    return {each.name: hints[each.name] for each in dataclasses.fields(schema)}


def _value(kind: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _entity(_entity_type(kind), value)
    if isinstance(value, (list, tuple)):
        return tuple(_value(kind, each) for each in value)
    return value


def _entity_type(kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return kind
    for argument in typing.get_args(kind):
        found = _entity_type(argument)
        if found is not None:
            return found
    return None
