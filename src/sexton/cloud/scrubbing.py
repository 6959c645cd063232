"""The scrub: what lies in the store and nobody knows of.

Such objects are rare: a PUT that was given up, and landed after its object had been collected. They are found by
listing, and only then looked up: a key that was listed has been put, so its row was there before (C1); if there is none
afterwards, it is gone, and never comes back (C3). The other way round would delete what is registered and put between
the two. Young ones are left alone, not for safety, but for those who restore an older metastore.

That much rests on the metastore being the newest one. To one that was restored from an old backup, or to a copy that
somebody plays with, most of the store is unknown, and what is deleted for it is missing when the right one is back. So
what nobody has asked for is given up where there is more to delete than strays can be.

So it is with files that a crash left in a folder, on a file system that has none without names: each is named for its
object, and nobody writes to it once that is gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sexton.ports.cloud import CloudStore, ObjectId
from sexton.ports.object_names import is_claimed, object_id_time_ms, parse_key
from sexton.ports.objects import ListedObject, ObjectStore, StoreRefusedError

AT_ONCE: Final = 1_000
AGE_MS: Final = 7 * 24 * 3_600_000
TEMPORARY_SUFFIX: Final = ".tmp"

STRAYS_MAX: Final = 100
"""A scrub that the controller begins by itself deletes no more than so many, or STRAYS_SHARE of the store if that is
more. Strays are PUTs that were given up and landed after minutes: at most what a few brokers had in flight."""
STRAYS_SHARE: Final = 0.01


@dataclass(slots=True)
class Scrubbed:
    listed_count: int = 0
    young_count: int = 0
    """Unknown, and younger than was asked for: left alone."""
    unknown: list[ListedObject] = field(default_factory=list)
    deleted_count: int = 0
    is_given_up: bool = False
    """There were too many to be strays: nothing was deleted."""

    @property
    def is_doubtful(self) -> bool:
        return len(self.unknown) > max(STRAYS_MAX, self.listed_count * STRAYS_SHARE)

    @property
    def unknown_bytes(self) -> int:
        return sum(one.size_bytes for one in self.unknown)


async def scrub(
    metastore: CloudStore,
    store: ObjectStore,
    cluster_id: uuid.UUID,
    now_ms: int,
    *,
    age_ms: int = AGE_MS,
    is_dry: bool = False,
    only_strays: bool = False,
) -> Scrubbed:
    """`only_strays`: nothing is deleted if there is more than strays can be. Raises StoreRefusedError unless the store
    is marked as this cluster's."""
    if not await is_claimed(store, cluster_id):
        raise StoreRefusedError(
            "the store has no marker, so it is unknown which cluster it belongs to",
            store.place,
            "`sexton cloud check` says more",
        )
    round_ = (await metastore.read_collection()).round
    found, deletes_at_once = Scrubbed(), not is_dry and not only_strays
    some: dict[ListedObject, ObjectId] = {}
    async for listed in store.list(f"{cluster_id}/"):
        name = parse_key(_without_suffix(listed.key))
        if name is None:
            continue
        found.listed_count += 1
        some[listed] = name.object_id
        if len(some) == AT_ONCE:
            old = await _look_up(metastore, some, found, now_ms - age_ms)
            if deletes_at_once:
                await _delete(store, old, found)
            some = {}
    old = await _look_up(metastore, some, found, now_ms - age_ms)
    found.is_given_up = only_strays and found.is_doubtful
    if not is_dry:
        if not found.is_given_up:
            await _delete(store, old if deletes_at_once else found.unknown, found)
        await metastore.note_scrub(round_, now_ms)
    return found


def _without_suffix(key: str) -> str:
    """A temporary file has its object's key, and more."""
    return key.partition(".")[0] if key.endswith(TEMPORARY_SUFFIX) else key


async def _look_up(
    metastore: CloudStore, listed: dict[ListedObject, ObjectId], found: Scrubbed, before_ms: int
) -> list[ListedObject]:
    """Returns those that may go. Who was unknown once stays unknown (C3), however long they are kept in memory."""
    if not listed:
        return []
    unknown = set(await metastore.find_unknown(list(dict.fromkeys(listed.values()))))
    nobodys = {one: object_id for one, object_id in listed.items() if object_id in unknown}
    old = [one for one, object_id in nobodys.items() if object_id_time_ms(object_id) < before_ms]
    found.young_count += len(nobodys) - len(old)
    found.unknown += old
    return old


async def _delete(store: ObjectStore, old: Sequence[ListedObject], found: Scrubbed) -> None:
    for first in range(0, len(old), AT_ONCE):
        keys = [one.key for one in old[first : first + AT_ONCE]]
        found.deleted_count += len(await store.delete(keys))
