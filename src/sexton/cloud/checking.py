"""Whether all that is part of a cloud topic is in the store, and every byte of it is right. Changes nothing but for a
pin, which holds deletions back while this looks.

A cluster goes on meanwhile. What was part of a log when it was listed may not be when it is looked at, so nothing is
called lost, and no gap a gap, before the metastore was asked again.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from sexton.cloud.footers import read_footer
from sexton.cloud.looking import PAGE, objects_of, read_topics
from sexton.errors import DamagedObjectError, UnsupportedFormatError
from sexton.ports.cloud import CloudPartitionRow, ObjectId, ObjectRow, ObjectState
from sexton.ports.metastore import Metastore, StaleError
from sexton.ports.object_names import ObjectName, is_claimed
from sexton.ports.objects import ObjectMissingError, ObjectStore, StoreUnavailableError
from sexton.ports.retrying import pause_ms
from sexton.records.objects import FRONT_BYTES, MAGIC, Footer, Level, check_run
from sexton.types import PartitionId

T = TypeVar("T")

AT_ONCE: Final = 16
"""Objects that are looked at together."""
READ_BYTES: Final = 8 << 20
"""With one request: a run may have 64 MiB, which would take a slow store longer than a request may."""
READS_AT_ONCE: Final = 2
"""Runs in memory, however large objects are."""
ATTEMPTS_MAX: Final = 6
"""Of a request. One answer that was lost does not end a check of a million objects."""
PIN_ROUNDS: Final = 60
"""An hour of the default. It is renewed while the check goes on, and given back at its end."""
MAPS_MAX: Final = 5
"""How often the map of a partition that goes on changing is read before a gap in it is believed."""


@dataclass(slots=True)
class Found:
    """By a check. `lost` are objects that extents refer to and that are not there, or are not what they were."""

    objects_count: int = 0
    bytes_count: int = 0
    lost: list[tuple[ObjectId, str]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """What is wrong with the map: offsets that no extent has, or two."""
    is_marked: bool = True
    """Whether the store says that it is this cluster's."""

    @property
    def is_right(self) -> bool:
        return not self.lost and not self.gaps and self.is_marked


async def check(metastore: Metastore, store: ObjectStore, cluster_id: uuid.UUID, *, is_deep: bool) -> Found:
    """Every live object is there with its size; deep: every byte is what its checksums say, and what the extents say
    of it is what its footer says."""
    checking = _Checking(metastore, store, cluster_id, is_deep)
    await checking.pin()
    try:
        await checking.run()
    finally:
        await metastore.unpin(checking.pin_id)
    return checking.found


class _Checking:
    def __init__(self, metastore: Metastore, store: ObjectStore, cluster_id: uuid.UUID, is_deep: bool) -> None:
        self._metastore = metastore
        self._store = store
        self._cluster_id = cluster_id
        self._is_deep = is_deep
        self._rng = random.Random()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self.pin_id = uuid.uuid4()
        self.found = Found()

    async def pin(self) -> None:
        await self._metastore.pin(self.pin_id, "sexton cloud check", "what is being looked at stays", PIN_ROUNDS)

    async def run(self) -> None:
        self.found.is_marked = await patiently(lambda: is_claimed(self._store, self._cluster_id), self._rng)
        await self._check_maps()
        some: list[ObjectRow] = []
        async for row in objects_of(self._metastore, [ObjectState.LIVE]):
            some.append(row)
            if len(some) == AT_ONCE:
                await self._check_some(some)
                some = []
        await self._check_some(some)

    # The map

    async def _check_maps(self) -> None:
        topics = await read_topics(self._metastore)
        for row in await self._metastore.read_cloud_partitions():
            if row.topic_id in topics:  # others are being purged
                self.found.gaps += await self._gaps(f"{topics[row.topic_id]}-{row.partition}", row)

    async def _gaps(self, name: str, row: CloudPartitionRow) -> list[str]:
        """Pages that were read between two changes do not fit together, without a gap in either."""
        key = row.topic_id, row.partition
        for _ in range(MAPS_MAX):
            gaps, stood = await self._gaps_of_pages(name, key, row.start_offset)
            if not gaps or stood:
                break
        return gaps

    async def _gaps_of_pages(self, name: str, key: PartitionId, at: int) -> tuple[list[str], bool]:
        gaps: list[str] = []
        first: CloudPartitionRow | None = None
        while page := await self._metastore.read_extents(key, at, PAGE):
            if first is None:
                first, at = page.row, page.row.start_offset
            for extent in page.extents:
                if extent.base_offset != at and (extent.base_offset > at or at > first.start_offset):
                    gaps.append(f"{name}: extents end at {at} and go on at {extent.base_offset}")
                at = extent.end_offset
            if len(page.extents) < PAGE:
                if at < page.row.end_offset:
                    gaps.append(f"{name}: extents end at {at}, the log at {page.row.end_offset}")
                return gaps, _stands(first, page.row)
        return [], True  # the topic was deleted

    # Objects

    async def _check_some(self, rows: Sequence[ObjectRow]) -> None:
        told = await asyncio.gather(*(self._wrong(row) for row in rows))
        for row, wrong in zip(rows, told, strict=True):
            self.found.objects_count += 1
            self.found.bytes_count += row.size_bytes
            if wrong is not None and await self._is_live(row.object_id):
                self.found.lost.append((row.object_id, wrong))
        with suppress(StaleError):  # it has ended: whatever is gone by now is looked up before it is called lost
            await self._metastore.renew_pin(self.pin_id, PIN_ROUNDS)

    async def _is_live(self, object_id: ObjectId) -> bool:
        now = await self._metastore.read_object(object_id)
        return now is not None and now.state is ObjectState.LIVE

    async def _wrong(self, row: ObjectRow) -> str | None:
        key = ObjectName(self._cluster_id, Level(int(row.level)), row.object_id).key
        try:
            size_bytes = await patiently(lambda: self._store.size_bytes(key), self._rng)
            if size_bytes != row.size_bytes:
                return f"it has {size_bytes} bytes, not {row.size_bytes}"
            if not self._is_deep:
                return None
            footer = await self._read_whole(key)
        except ObjectMissingError:
            return "it is not there"
        except (DamagedObjectError, UnsupportedFormatError) as error:
            return str(error.what)
        return await self._contradiction(row.object_id, footer)

    async def _read_whole(self, key: str) -> Footer:
        """Run by run: their places tile the object, which the footer's decoder checks."""
        place = f"{self._store.place}/{key}"
        async with self._reads:
            footer = await patiently(lambda: read_footer(self._store, key), self._rng)
            if await read_range(self._store, key, 0, FRONT_BYTES, self._rng) != MAGIC:
                raise DamagedObjectError("it does not begin as an object does", place)
            for run in footer.runs:
                data = await read_range(self._store, key, run.position, run.size_bytes, self._rng)
                check_run(run, footer.level, data, place)
        return footer

    async def _contradiction(self, object_id: ObjectId, footer: Footer) -> str | None:
        runs = {(run.topic_id, run.partition, run.base_offset): run for run in footer.runs}
        for (topic_id, partition), extent in await self._metastore.find_references(object_id, PAGE):
            run = runs.get((topic_id, partition, extent.base_offset))
            expected = extent.end_offset, extent.position, extent.size_bytes
            if run is None or (run.end_offset, run.position, run.size_bytes) != expected:
                return (
                    f"its footer does not know offsets {extent.base_offset} to {extent.end_offset - 1} of {partition}"
                )
        return None


def _stands(before: CloudPartitionRow, now: CloudPartitionRow) -> bool:
    """Extents that leaders add continue those before; all else changes the map."""
    names = ("start_offset", "leveled_offset", "compaction_epoch")
    return all(getattr(before, name) == getattr(now, name) for name in names)


async def read_range(store: ObjectStore, key: str, start: int, size_bytes: int, rng: random.Random) -> bytes:
    """Piece by piece, whatever its size. Raises ObjectMissingError, DamagedObjectError, and what the store raises."""
    parts: list[bytes] = []
    for at in range(start, start + size_bytes, READ_BYTES):
        left_bytes = min(READ_BYTES, start + size_bytes - at)
        parts.append(bytes(await patiently(partial(store.get, key, at, left_bytes), rng)))
    return b"".join(parts)


async def patiently(call: Callable[[], Awaitable[T]], rng: random.Random) -> T:
    """Asks a few times while nobody knows. Raises StoreUnavailableError in the end."""
    for attempt in range(1, ATTEMPTS_MAX):
        try:
            return await call()
        except StoreUnavailableError as error:
            await asyncio.sleep(pause_ms(error, attempt, rng) / 1000)
    return await call()
