"""The scrub: what lies in the store and nobody knows of.

Such objects are rare: a PUT that was given up, and landed after its object had been collected. They are found by
listing, and only then looked up: a key that was listed has been put, so its row was there before (C1); if there is none
afterwards, it is gone, and never comes back (C3). The other way round would delete what is registered and put between
the two. Young ones are left alone, not for safety, but for those who restore an older metastore.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final

from sexton.ports.metastore import Metastore
from sexton.ports.object_names import ObjectName, is_claimed, object_id_time_ms, parse_key
from sexton.ports.objects import ListedObject, ObjectStore, StoreRefusedError

AT_ONCE: Final = 1_000
AGE_MS: Final = 7 * 24 * 3_600_000


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
    metastore: Metastore,
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
    some: dict[ObjectName, ListedObject] = {}
    async for listed in store.list(f"{cluster_id}/"):
        name = parse_key(listed.key)
        if name is None:
            continue
        found.listed_count += 1
        some[name] = listed
        if len(some) == AT_ONCE:
            await _look_up(metastore, store, some, found, now_ms - age_ms, is_dry)
            some = {}
    await _look_up(metastore, store, some, found, now_ms - age_ms, is_dry)
    if not is_dry:
        await metastore.note_scrub(round_, now_ms)
    return found


async def _look_up(
    metastore: Metastore,
    store: ObjectStore,
    listed: dict[ObjectName, ListedObject],
    found: Scrubbed,
    before_ms: int,
    is_dry: bool,
) -> None:
    if not listed:
        return
    unknown = set(await metastore.find_unknown([name.object_id for name in listed]))
    nobodys = {name: one for name, one in listed.items() if name.object_id in unknown}
    old = [one for name, one in nobodys.items() if object_id_time_ms(name.object_id) < before_ms]
    found.young_count += len(nobodys) - len(old)
    found.unknown += old
    if old and not is_dry:
        found.deleted_count += len(await store.delete([one.key for one in old]))
