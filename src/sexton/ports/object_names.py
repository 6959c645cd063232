"""How objects are named, and the marker that says whose they are.

    {cluster id}/l0/{hh}/{object id}     below the store's URL
    {cluster id}/l1/{hh}/{object id}
    sexton.json                          the marker

An object id is a UUIDv7: when it was made, then random bits. `hh` are its last two digits, which are random: S3 scales
by prefix, and a folder's directories stay small. Nothing relies on the time in it but the scrub's wish to leave what is
young alone.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from typing import Final, NamedTuple

from sexton.ports.objects import ObjectStore, StoreRefusedError
from sexton.records.objects import Level

MARKER_KEY: Final = "sexton.json"
FORMAT_VERSION: Final = 1
"""Of keys, marker and objects together. A build refuses a store with a later one."""

TIME_MS_MAX: Final = 2**48 - 1
_RANDOM_A_BITS: Final = 12
_RANDOM_B_BITS: Final = 62
_VERSION: Final = 7
_VARIANT: Final = 0b10

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_KEY: Final = re.compile(rf"({_UUID})/l([01])/([0-9a-f]{{2}})/({_UUID})", re.ASCII)


class ObjectName(NamedTuple):
    cluster_id: uuid.UUID
    level: Level
    object_id: uuid.UUID

    @property
    def key(self) -> str:
        text = str(self.object_id)
        return f"{self.cluster_id}/l{int(self.level)}/{text[-2:]}/{text}"


def parse_key(key: str) -> ObjectName | None:
    """Returns None for a key that is none of ours, e.g. the marker or a temporary file of a folder."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    name = ObjectName(uuid.UUID(match[1]), Level(int(match[2])), uuid.UUID(match[4]))
    return name if name.key == key else None


def new_object_id(now_ms: int, rng: random.Random) -> uuid.UUID:
    """Makes a UUIDv7 (RFC 9562). Never made twice: 74 random bits for each millisecond."""
    if not 0 <= now_ms <= TIME_MS_MAX:
        raise ValueError(f"no UUIDv7 can be made at {now_ms} ms")
    number = now_ms << 80 | _VERSION << 76 | rng.getrandbits(_RANDOM_A_BITS) << 64
    return uuid.UUID(int=number | _VARIANT << 62 | rng.getrandbits(_RANDOM_B_BITS))


def object_id_time_ms(object_id: uuid.UUID) -> int:
    """When it was made, by the clock of who made it."""
    return object_id.int >> 80


# ---- the marker ----


def encode_marker(cluster_id: uuid.UUID) -> bytes:
    fields = {"cluster_id": str(cluster_id), "format_version": FORMAT_VERSION, "made_by": "Sexton"}
    return json.dumps(fields, indent=2).encode() + b"\n"


def check_marker(data: bytes, cluster_id: uuid.UUID, place: str) -> None:
    """Raises StoreRefusedError unless the marker is this cluster's, in a version that this build writes."""
    where = f"{place}/{MARKER_KEY}"
    try:
        fields = json.loads(data)
        owner, version = uuid.UUID(fields["cluster_id"]), fields["format_version"]
        if type(version) is not int or version < 1:
            raise ValueError(f"format version {version!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreRefusedError(
            f"this is no marker of a Sexton cluster ({type(error).__name__}: {error})",
            where,
            "Give cloud.store.url a prefix or folder of its own; if this one was Sexton's, restore the file",
        ) from None
    if owner != cluster_id:
        raise StoreRefusedError(
            f"the store belongs to cluster {owner}, and this is cluster {cluster_id}",
            where,
            "Give each cluster a prefix or folder of its own (cloud.store.url)",
        )
    if version > FORMAT_VERSION:
        raise StoreRefusedError(
            f"the store has format version {version}, and this build writes {FORMAT_VERSION}",
            where,
            "Start a newer Sexton",
        )


async def claim_store(store: ObjectStore, cluster_id: uuid.UUID) -> None:
    """Marks the store as this cluster's, if nobody's mark is there. Done before the first cloud topic is made. Raises
    StoreRefusedError if it is another's."""
    check_marker(await store.create_marker(MARKER_KEY, encode_marker(cluster_id)), cluster_id, store.place)


async def is_claimed(store: ObjectStore, cluster_id: uuid.UUID) -> bool:
    """Returns False if there is no marker: nobody has claimed the store, or somebody has wiped it. Raises
    StoreRefusedError if it is another's."""
    data = await store.read_marker(MARKER_KEY)
    if data is None:
        return False
    check_marker(data, cluster_id, store.place)
    return True
