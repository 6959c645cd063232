"""Schemas of the records that Kafka keeps in internal topics. kio has the messages that cross the network only.

A `schema` is one class for all versions, as Kafka's own JSON files have it: each field says on the wire's terms what
it is, and since which version it is there. From it the class of each version is derived, in the form that kio's parser
and our encoder take. A field that a version lacks has its `absent` value.

Modules that declare schemas keep annotations as objects (no `from __future__ import annotations`): kio reads a field's
type from them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin

from kio.static.constants import EntityType
from kio.static.primitive import i16

from sexton.errors import CorruptLogError
from sexton.protocol.encoder import Step, Values, steps_of
from sexton.protocol.messages import MalformedMessageError, entity_decoder

Metadata: TypeAlias = Mapping[str, Any]

INT8: Final[Metadata] = {"kafka_type": "int8"}
INT16: Final[Metadata] = {"kafka_type": "int16"}
INT32: Final[Metadata] = {"kafka_type": "int32"}
INT64: Final[Metadata] = {"kafka_type": "int64"}
BOOL: Final[Metadata] = {"kafka_type": "bool"}
STRING: Final[Metadata] = {"kafka_type": "string"}
BYTES: Final[Metadata] = {"kafka_type": "bytes"}
UUID: Final[Metadata] = {"kafka_type": "uuid"}
STRUCT: Final[Metadata] = {}
"""Another dataclass, or an array of it."""

schema = dataclass(init=False, repr=False, eq=False)
"""Declares a schema; only its fields are used."""

_VERSION = struct.Struct(">h")


def since(version: int, kind: Metadata, absent: Any, *, until: int = 2**15 - 1) -> Metadata:
    return {**kind, "versions": range(version, until + 1), "absent": absent}


def tagged(tag: int, version: int, kind: Metadata, absent: Any) -> Metadata:
    """A tagged field (KIP-482). It is written only if its value is not the `absent` one."""
    return {**since(version, kind, absent), "tag": tag}


class RecordSchema:
    """A key or a value: its version in 16 bits, then the fields."""

    def __init__(self, declared: type, topic: str, *, newest: int = 0, flexible_since: int = 2**15) -> None:
        self._schema = declared
        self._topic = topic
        self._newest = newest
        self._flexible_since = flexible_since
        self._decoders: dict[int, Callable[[memoryview, int], Any]] = {}
        self._steps: dict[int, list[Step]] = {}
        """Both compiled when a version is first used: most never are, and a broker must start quickly."""

    def encode(self, version: int, values: Values) -> bytes:
        """The values must be complete. The number of a key may be above its only version."""
        out = bytearray(_VERSION.pack(version))
        known = min(version, self._newest)
        steps = self._steps.get(known)
        if steps is None:
            steps = self._steps[known] = steps_of(self._entity(known))
        for step in steps:
            step(out, values)
        return bytes(out)

    def decode(self, data: bytes) -> Any:
        """The fields, as attributes. A version that is newer than all that are known is read as the newest. Raises
        CorruptLogError, with the topic."""
        version = version_of(data, self._topic)
        known = max(0, min(version, self._newest))
        decode = self._decoders.get(known)
        if decode is None:
            decode = self._decoders[known] = entity_decoder(self._entity(known))
        try:
            return decode(memoryview(data), _VERSION.size)
        except MalformedMessageError as error:
            raise CorruptLogError(
                f"A record is not what its version {version} says: {error}",
                self._topic,
                "Restore the partition from another replica",
            ) from error

    def _entity(self, version: int) -> type:
        return entity_of(self._schema, version, version >= self._flexible_since)


def version_of(data: bytes, topic: str) -> int:
    """The number that a key or a value begins with."""
    if len(data) < _VERSION.size:
        raise CorruptLogError(
            "A record is too short to have a version", topic, "Restore the partition from another replica"
        )
    return int(_VERSION.unpack_from(data)[0])


def entity_of(declared: type, version: int = 0, is_flexible: bool = False, kind: Any = EntityType.data) -> type:
    """The class of one version, as kio has them."""
    present: list[tuple[str, Any, Any]] = []
    attributes: dict[str, Any] = {
        "__type__": kind,
        "__version__": i16(version),
        "__flexible__": is_flexible,
    }
    for one in fields(declared):
        metadata = one.metadata
        if version not in metadata.get("versions", range(version + 1)):
            attributes[one.name] = metadata["absent"]
            continue
        wire = {name: metadata[name] for name in ("kafka_type", "tag") if name in metadata}
        made = field(metadata=wire, default=metadata["absent"]) if "tag" in wire else field(metadata=wire)
        present.append((one.name, _type_of_version(one.type, version, is_flexible), made))
    return make_dataclass(declared.__name__, present, frozen=True, slots=True, kw_only=True, namespace=attributes)


def _type_of_version(annotation: Any, version: int, is_flexible: bool) -> Any:
    """The same type, with the dataclasses in it replaced by those of the version."""
    if is_dataclass(annotation):
        return entity_of(annotation, version, is_flexible, EntityType.nested)  # type: ignore[arg-type]
    arguments = tuple(_type_of_version(part, version, is_flexible) for part in get_args(annotation))
    if get_origin(annotation) is tuple:
        return tuple[arguments]  # type: ignore[valid-type]
    if get_origin(annotation) is UnionType:
        return reduce(or_, arguments)
    return annotation
