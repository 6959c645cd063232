"""Encodes and decodes Kafka's messages, for every API and version that kio has.

Decoded requests and responses are kio's frozen entities, from its native parser. Messages to encode are nested mappings
with kio's field names (see `encoder.py` for what they may hold). Schema modules are imported when an API and version is
first used: there are hundreds, and a broker must be ready within two seconds.

On the wire a message is `size, header, body`. Encoded messages include the size; messages to decode no longer have it
(`frames.py` removes it).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.static.constants import EntityType

from sexton.protocol.encoder import Encode, Values, encoder, shapes
from sexton.protocol.private import FIRST_PRIVATE_API_KEY
from sexton.protocol.skimmer import read_varint, skimmer
from sexton.protocol.unknown_tags import without_unknown_tags

_CORRECTED = {(65, 0, EntityType.response): "sexton.protocol.corrections:DescribeTransactionsResponse"}

_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_SIZE_AND_ID = struct.Struct(">ii")


class MalformedMessageError(Exception):
    """The bytes are not a valid message. Nothing that follows on the same connection can be trusted."""


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    position: int
    """Where the body starts; -1 if kio does not have the version, so that this is unknown."""


@cache
def known_versions(api_key: int) -> tuple[int, int] | None:
    """Returns the lowest and highest version that kio has; None if it does not have the API."""
    name = api_key_map.get(api_key)
    if name is None:
        return None
    versions = schema_name_map[name]
    return min(versions), max(versions)


@cache
def request_type(api_key: int, version: int) -> Any:
    return _load(api_key, version, EntityType.request)


@cache
def response_type(api_key: int, version: int) -> Any:
    return _load(api_key, version, EntityType.response)


def _load(api_key: int, version: int, kind: Any) -> Any:
    try:
        path = _CORRECTED.get((api_key, version, kind)) or schema_name_map[api_key_map[api_key]][version][kind]
    except KeyError:
        raise LookupError(f"api key {api_key} has no version {version}") from None
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@cache
def _has_tagged_header(api_key: int, version: int) -> bool:
    return bool(request_type(api_key, version).__header_schema__.__flexible__)


@cache
def _answer_has_tagged_header(api_key: int, version: int) -> bool:
    """An ApiVersions response always has the first header version, for the client does not know yet what the broker
    supports."""
    return bool(response_type(api_key, version).__header_schema__.__flexible__)


def decode_request_header(view: memoryview) -> RequestHeader:
    try:
        api_key, version, correlation_id, client_id_size = _HEADER.unpack_from(view)
    except struct.error as error:
        raise MalformedMessageError("a request must have at least ten bytes of header") from error
    position = 10
    client_id = None
    if client_id_size >= 0:
        position += client_id_size
        if position > len(view):
            raise MalformedMessageError("the client id goes past the end of the request")
        try:
            client_id = str(view[10:position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessageError("the client id is not UTF-8") from error
    if api_key < FIRST_PRIVATE_API_KEY:
        try:
            if _has_tagged_header(api_key, version):
                position = _skip_tags(view, position)
        except LookupError:
            position = -1
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def _skip_tags(view: memoryview, position: int) -> int:
    """No tagged fields of the header are defined yet, so there are usually none."""
    try:
        if view[position] == 0:
            return position + 1
        count, position = read_varint(view, position)
        for _ in range(count):
            _, position = read_varint(view, position)
            size, position = read_varint(view, position)
            position += size
            if position > len(view):
                raise IndexError
    except IndexError:
        raise MalformedMessageError("the header goes past the end of the message") from None
    return position


@cache
def request_reader(api_key: int, version: int) -> Callable[[memoryview, int], Any]:
    """Returns a function that decodes the body at a position. It raises MalformedMessageError, also for a null where
    the schema allows none."""
    return entity_decoder(request_type(api_key, version))


@cache
def response_reader(api_key: int, version: int) -> Callable[[memoryview, int], Any]:
    return entity_decoder(response_type(api_key, version))


def entity_decoder(entity: Any) -> Callable[[memoryview, int], Any]:
    """For a class of kio's, or one that has the same form."""
    read = entity_reader(entity)
    check = _null_check(entity)
    skim = skimmer(entity)

    def decode(view: memoryview, position: int) -> Any:
        try:
            if skim is not None:
                skim(view, position)
            # kio accepts only read-only views.
            readonly = view if view.readonly else view.toreadonly()
            try:
                body, _ = read(readonly, position)
            except KeyError:  # kio's error for a tag that the schema does not have
                body, _ = read(memoryview(without_unknown_tags(entity, view, position)), 0)
        except Exception as error:
            # Several kinds (kio's own, ValueError, OverflowError, IndexError) that all mean the same.
            raise MalformedMessageError(f"{entity.__name__}: {str(error) or 'it ends too early'}") from error
        if check is not None:
            check(body)
        return body

    return decode


@cache
def _null_check(entity: Any) -> Callable[[Any], None] | None:
    """kio reads a null array where the schema allows none, and handlers would fail on it."""
    arrays = [
        (shape.name, None if shape.entity is None else _null_check(shape.entity), shape.is_nullable)
        for shape in shapes(entity)
        if shape.is_array
    ]
    nested = [
        (shape.name, _null_check(shape.entity))
        for shape in shapes(entity)
        if shape.entity is not None and not shape.is_array
    ]
    inner = [(name, check) for name, check in nested if check is not None]
    if not arrays and not inner:
        return None

    def check_entity(value: Any) -> None:
        for name, check, is_nullable in arrays:
            items = getattr(value, name)
            if items is None:
                if not is_nullable:
                    raise MalformedMessageError(f"{entity.__name__}.{name} must not be null")
            elif check is not None:
                for item in items:
                    check(item)
        for name, check in inner:
            part = getattr(value, name)
            if part is not None:
                check(part)

    return check_entity


def decode_request(api_key: int, version: int, view: memoryview, position: int) -> Any:
    return request_reader(api_key, version)(view, position)


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, values: Values) -> bytes:
    """Returns a whole frame, with its size."""
    out = bytearray(4)
    _write_request_header(out, api_key, version, correlation_id, client_id)
    if _has_tagged_header(api_key, version):
        out.append(0)
    _request_encoder(api_key, version)(out, values)
    _SIZE.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def encode_private_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, payload: bytes
) -> bytes:
    """Returns a whole frame, with its size, for one of our own APIs (`FIRST_PRIVATE_API_KEY` on)."""
    out = bytearray(4)
    _write_request_header(out, api_key, version, correlation_id, client_id)
    out += payload
    _SIZE.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _write_request_header(
    out: bytearray, api_key: int, version: int, correlation_id: int, client_id: str | None
) -> None:
    if client_id is None:
        out += _HEADER.pack(api_key, version, correlation_id, -1)
    else:
        encoded = client_id.encode()
        out += _HEADER.pack(api_key, version, correlation_id, len(encoded))
        out += encoded


def decode_response(api_key: int, version: int, view: memoryview) -> tuple[int, Any]:
    """Returns (correlation id, body) of a frame without its size."""
    if len(view) < 4:
        raise MalformedMessageError("an answer must have at least four bytes of header")
    (correlation_id,) = _SIZE.unpack_from(view)
    position = _skip_tags(view, 4) if _answer_has_tagged_header(api_key, version) else 4
    return correlation_id, response_reader(api_key, version)(view, position)


def response_header(correlation_id: int, size_bytes: int, *, tagged: bool) -> bytes:
    """Returns size and header of a response whose body, encoded by hand, has `size_bytes`."""
    if tagged:
        return _SIZE_AND_ID.pack(size_bytes + 5, correlation_id) + b"\x00"
    return _SIZE_AND_ID.pack(size_bytes + 4, correlation_id)


def encode_response(api_key: int, version: int, correlation_id: int, values: Values) -> bytes:
    """Returns a whole frame, with its size."""
    out = bytearray(8)
    if _answer_has_tagged_header(api_key, version):
        out.append(0)
    _response_encoder(api_key, version)(out, values)
    _SIZE_AND_ID.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


@cache
def _request_encoder(api_key: int, version: int) -> Encode:
    return encoder(request_type(api_key, version))


@cache
def _response_encoder(api_key: int, version: int) -> Encode:
    return encoder(response_type(api_key, version))


__all__ = [
    "MalformedMessageError",
    "RequestHeader",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_private_request",
    "encode_request",
    "encode_response",
    "entity_decoder",
    "known_versions",
    "request_reader",
    "request_type",
    "response_header",
    "response_reader",
    "response_type",
]
