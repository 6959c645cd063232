"""The scrub: what lies in the store and nobody knows of.

Such objects are rare: a PUT that was given up, and landed after its object had been collected. They are found by
listing, and only then looked up: a key that was listed has been put, so its row was there before (C1); if there is none
afterwards, it is gone, and never comes back (C3). The other way round would delete what is registered and put between
the two. Young ones are left alone, not for safety, but for those who restore an older metastore.

So it is with files that a crash left in a folder, on a file system that has none without names: each is named for its
object, and nobody writes to it once that is gone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final

from sexton.ports.cloud import CloudStore, ObjectId
from sexton.ports.object_names import is_claimed, object_id_time_ms, parse_key
from sexton.ports.objects import ListedObject, ObjectStore, StoreRefusedError

AT_ONCE: Final = 1_000
AGE_MS: Final = 7 * 24 * 3_600_000
TEMPORARY_SUFFIX: Final = ".tmp"


@dataclass(slots=True)
class Scrubbed:
    listed_count: int = 0
    young_count: int = 0
    """Unknown, and younger than was asked for: left alone."""
    unknown: list[ListedObject] = field(default_factory=list)
    deleted_count: int = 0

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
) -> Scrubbed:
    """Raises StoreRefusedError unless the store is marked as this cluster's."""
    if not await is_claimed(store, cluster_id):
        raise StoreRefusedError(
            "the store has no marker: nobody knows whose it is", store.place, "`sexton cloud check` says more"
        )
    round_ = (await metastore.read_collection()).round
    found = Scrubbed()
    some: dict[ListedObject, ObjectId] = {}
    async for listed in store.list(f"{cluster_id}/"):
        name = parse_key(_without_suffix(listed.key))
        if name is None:
            continue
        found.listed_count += 1
        some[listed] = name.object_id
        if len(some) == AT_ONCE:
            await _look_up(metastore, store, some, found, now_ms - age_ms, is_dry)
            some = {}
    await _look_up(metastore, store, some, found, now_ms - age_ms, is_dry)
    if not is_dry:
        await metastore.note_scrub(round_, now_ms)
    return found


def _without_suffix(key: str) -> str:
    """A temporary file has its object's key, and more."""
    return key.partition(".")[0] if key.endswith(TEMPORARY_SUFFIX) else key


async def _look_up(
    metastore: CloudStore,
    store: ObjectStore,
    listed: dict[ListedObject, ObjectId],
    found: Scrubbed,
    before_ms: int,
    is_dry: bool,
) -> None:
    if not listed:
        return
    unknown = set(await metastore.find_unknown(list(dict.fromkeys(listed.values()))))
    nobodys = {one: object_id for one, object_id in listed.items() if object_id in unknown}
    old = [one for one, object_id in nobodys.items() if object_id_time_ms(object_id) < before_ms]
    found.young_count += len(nobodys) - len(old)
    found.unknown += old
    if old and not is_dry:
        found.deleted_count += len(await store.delete([one.key for one in old]))
