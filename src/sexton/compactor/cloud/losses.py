"""Accepting a loss: runs that cannot be read any more become runs without records, so that consumers, leveling and
compaction get on.

A broker never does this by itself: what is missing today may be back tomorrow, from a backup or another version of the
object (C12). An operator who knows that it is not names the offsets. Only what really cannot be read there is given up;
everything around it stays as it is. What the operator's command does is what compactors do, with their commits: L0 is
leveled up to the end of what is lost, L1 is replaced, and whatever the log has become meanwhile wins.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

from sexton.cloud.checking import patiently, read_range
from sexton.cloud.copying import fillers
from sexton.cloud.footers import read_footer
from sexton.cloud.ownership import unmarked
from sexton.compactor.cloud.jobs import CloudJobs
from sexton.compactor.cloud.planning import plan_level
from sexton.compactor.cloud.plans import L1_BYTES, PartitionPlan, Writer
from sexton.compactor.cloud.reference import ReferenceCloudEngine
from sexton.errors import DamagedObjectError, SextonError
from sexton.log.epochs import EpochHistory
from sexton.ports.clock import Clock
from sexton.ports.cloud import CloudPartitionRow, Extent, Level, hash_of_settings
from sexton.ports.metastore import ConfigScope, LeaseLostError, Metastore, MetastoreUnavailableError, StaleError
from sexton.ports.object_names import ObjectName, is_claimed
from sexton.ports.objects import ObjectMissingError, ObjectStore
from sexton.ports.work_queue import CompactorRow
from sexton.records.batch import Batch, decode_all
from sexton.records.objects import Level as ObjectLevel
from sexton.records.objects import check_run, find_run, read_batches
from sexton.settings.layers import CLUSTER_DEFAULT, set_at_run_time
from sexton.types import NO_EPOCH, PartitionId

logger = logging.getLogger(__name__)

NAME: Final = "sexton cloud accept-loss"
LEASE_MS: Final = 120_000
"""A step is decoded and encoded in one turn of the event loop, without a renewal. If the command is killed, what it had
registered goes so much later."""
RENEW_MS: Final = 3_000
PAGE: Final = 1_000
STEP_BYTES: Final = 8 << 20
"""Of L0 that is leveled at once: it is held in memory, as objects, and uncompressed may be ten times as much."""
REFUSED_MAX: Final = 20
"""A log that goes on changing, by compactors or retention that run meanwhile, is read so often anew."""


class LossError(SextonError):
    """Nothing can be given up there, or not now."""

    exit_code: ClassVar[int] = 65


class Loss(NamedTuple):
    extent: Extent
    why: str


async def find_losses(
    metastore: Metastore,
    store: ObjectStore,
    cluster_id: uuid.UUID,
    key: PartitionId,
    offsets: range,
    rng: random.Random,
) -> list[Loss]:
    """Every run that has some of these offsets is read. Raises StoreUnavailableError: what a store that is away has
    nobody knows; and StoreRefusedError where the marker is not: in another store everything would be lost."""
    if not await patiently(lambda: is_claimed(store, cluster_id), rng):
        raise unmarked(store.place)
    losses: list[Loss] = []
    async for _, extent in _extents(metastore, key, offsets):
        if extent.object_id is None:
            continue
        try:
            data = await _read_run(store, cluster_id, extent, rng)
            await _check_footer(store, cluster_id, key, extent, data, rng)
        except (ObjectMissingError, DamagedObjectError) as error:
            losses.append(Loss(extent, str(error.what)))
    return losses


async def _check_footer(
    store: ObjectStore, cluster_id: uuid.UUID, key: PartitionId, extent: Extent, data: bytes, rng: random.Random
) -> None:
    """What only the footer knows of a run: leader epochs, which the CRC of a batch leaves out. Leaders read L1 by it,
    and L0 without. Raises DamagedObjectError, and what the store raises."""
    name, level = _named(cluster_id, extent)
    try:
        footer = await patiently(lambda: read_footer(store, name), rng)
        run = find_run(footer, key, extent.base_offset, extent.end_offset, extent.position, name)
    except DamagedObjectError:
        if level is ObjectLevel.L0:
            return
        raise
    check_run(run, level, data, name)


def _named(cluster_id: uuid.UUID, extent: Extent) -> tuple[str, ObjectLevel]:
    assert extent.object_id is not None
    level = ObjectLevel(int(extent.level))
    return ObjectName(cluster_id, level, extent.object_id).key, level


async def _read_run(store: ObjectStore, cluster_id: uuid.UUID, extent: Extent, rng: random.Random) -> bytes:
    """What is damaged is read once again: it may have been on its way. Raises ObjectMissingError, DamagedObjectError,
    and what the store raises."""
    name, level = _named(cluster_id, extent)
    with suppress(DamagedObjectError):
        return await _read_intact(store, name, level, extent, rng)
    return await _read_intact(store, name, level, extent, rng)


async def _read_intact(store: ObjectStore, name: str, level: ObjectLevel, extent: Extent, rng: random.Random) -> bytes:
    data = await read_range(store, name, extent.position, extent.size_bytes, rng)
    read_batches(data, level, extent.base_offset, extent.end_offset, name)
    return data


async def _extents(
    metastore: Metastore, key: PartitionId, offsets: range
) -> AsyncIterator[tuple[CloudPartitionRow, Extent]]:
    """Each with the partition's row of the same moment."""
    at = offsets.start
    while page := await metastore.read_extents(key, at, PAGE):
        for extent in page.extents:
            if extent.base_offset >= offsets.stop:
                return
            yield page.row, extent
        if len(page.extents) < PAGE:
            return
        at = page.extents[-1].end_offset


async def accept(
    metastore: Metastore,
    store: ObjectStore,
    writer: Writer,
    key: PartitionId,
    topic: str,
    losses: Sequence[Loss],
    clock: Clock,
    rng: random.Random,
) -> int:
    """Returns how many are given up: what can be read again by now is kept. Raises LossError if that cannot be now.
    What was done by then is done: call again."""
    lost = [loss.extent for loss in losses]
    engine = _WithoutThem(store, lost, rng)
    jobs = CloudJobs(metastore, store, engine, clock, rng)
    async with _leased(metastore, writer.compactor_id):
        refused_count = 0
        while (found := await _first_of(metastore, key, lost)) is not None:
            plan = await _plan(metastore, key, topic, *found)
            error, is_refused = "the log has changed meanwhile", True
            if plan is not None:
                run = jobs.level if plan.extents[0].level is Level.L0 else jobs.merge
                (done,) = await run([plan], writer, L1_BYTES)
                error, is_refused = done.error, done.is_refused
            refused_count += bool(error)
            if error and (not is_refused or refused_count > REFUSED_MAX):
                raise LossError(error, f"{topic}:{key[1]}", "Call this again; stop compactors if it goes on")
    return len(engine.given_up)


async def _first_of(
    metastore: Metastore, key: PartitionId, lost: Sequence[Extent]
) -> tuple[CloudPartitionRow, Extent] | None:
    """None if none of them is part of the log any more."""
    offsets = range(lost[0].base_offset, lost[-1].end_offset)
    async for row, extent in _extents(metastore, key, offsets):
        if extent in lost:
            return row, extent
    return None


async def _plan(
    metastore: Metastore, key: PartitionId, topic: str, row: CloudPartitionRow, lost: Extent
) -> PartitionPlan | None:
    """What is to be done next; None if the log has changed since the row was read."""
    if lost.level is Level.L0:
        return await _leveling_up_to(metastore, key, topic, row, lost)
    settings = await _settings_of(metastore, topic)
    return PartitionPlan(topic=topic, row=row, extents=(lost,), settings_hash=hash_of_settings(settings))


async def _leveling_up_to(
    metastore: Metastore, key: PartitionId, topic: str, row: CloudPartitionRow, lost: Extent
) -> PartitionPlan | None:
    if row.stable_offset < lost.end_offset:
        raise LossError(
            f"a transaction is open below offset {lost.end_offset}, and what comes behind it stays as it is",
            f"{topic}:{key[1]}",
            "Wait until it has ended, or end it: `sexton txn list` shows it",
        )
    plan = await plan_level(metastore, key, topic)
    return None if plan is None or plan.base_offset >= lost.end_offset else _cut(plan, lost)


def _cut(plan: PartitionPlan, lost: Extent) -> PartitionPlan:
    chosen: list[Extent] = []
    size_bytes = 0
    for extent in plan.extents:
        if extent.base_offset >= lost.end_offset or (chosen and size_bytes + extent.size_bytes > STEP_BYTES):
            break
        chosen.append(extent)
        size_bytes += extent.size_bytes
    return replace(plan, extents=tuple(chosen))


async def _settings_of(metastore: Metastore, topic: str) -> dict[str, str]:
    known = {(one.scope, one.name): one.settings for one in (await metastore.read_changes(0)).configs}
    defaults = known.get((ConfigScope.BROKER, CLUSTER_DEFAULT), {})
    return set_at_run_time(defaults, known.get((ConfigScope.TOPIC, topic), {}))


class _WithoutThem(ReferenceCloudEngine):
    """Reads what is lost as batches without records. Each is looked at once more: hours may have passed since it was
    found, and somebody may have brought it back."""

    def __init__(self, store: ObjectStore, lost: Sequence[Extent], rng: random.Random) -> None:
        super().__init__(store)
        self._lost = lost
        self._rng = rng
        self.given_up: set[Extent] = set()

    async def _read(self, extent: Extent, writer: Writer) -> list[Batch]:
        if extent not in self._lost:
            return await super()._read(extent, writer)
        try:
            batches = decode_all(await _read_run(self._store, writer.cluster_id, extent, self._rng))
            return [replace(batch, leader_epoch=NO_EPOCH) for batch in batches]  # it may be what is damaged
        except (ObjectMissingError, DamagedObjectError):
            self.given_up.add(extent)
            return list(decode_all(b"".join(fillers(extent.base_offset, extent.end_offset, EpochHistory()))))


@asynccontextmanager
async def _leased(metastore: Metastore, compactor_id: uuid.UUID) -> AsyncIterator[None]:
    """What this writes belongs to a compactor's lease, as all that compactors write."""
    await metastore.register_compactor(CompactorRow(compactor_id, NAME, LEASE_MS, 0))

    async def keep() -> None:
        while True:
            await asyncio.sleep(RENEW_MS / 1000)
            with suppress(MetastoreUnavailableError, LeaseLostError):
                await metastore.renew_compactor(compactor_id)

    renewing = asyncio.ensure_future(keep())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        for row in await metastore.read_compactors():
            if row.compactor_id == compactor_id:
                with suppress(StaleError):
                    await metastore.remove_compactor(compactor_id, row.renewals_count)
