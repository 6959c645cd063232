"""Rules of cloud topics (C1 to C12, docs/rules.md), broken on purpose; those of L1 are in `leveled`."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from sexton.adapters.metastore.cloud import committing
from sexton.adapters.metastore.cloud.rows import lock_objects
from sexton.adapters.metastore.session import Session
from sexton.cloud import collector, uploads
from sexton.cloud.blocks import Block
from sexton.cloud.collector import CollectorSettings
from sexton.cloud.log import CloudLog, Piece
from sexton.cloud.pool import AHEAD_COUNT, Pool
from sexton.cloud.replica import CloudReplica
from sexton.cloud.scrubbing import AGE_MS, Scrubbed
from sexton.cloud.uploads import Link, Uploads
from sexton.ports.cloud import CloudStore, ObjectId, ObjectRow, ObjectState, Outcome, Owner, Run
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.ports.object_names import ObjectName, new_object_id, parse_key
from sexton.ports.objects import ObjectStore, StoreRefusedError, StoreUnavailableError
from sexton.ports.retrying import OnFailure, until_answered
from sexton.records.objects import Level
from sexton.replication.local_replica import LocalReplica
from sexton.simulate.broken.switch import Break, Patch
from sexton.simulate.plan import Profile

T = TypeVar("T")

OBJECTS_MAX = 1_000_000
"""More than a run makes."""


async def _registers_nothing(self: Pool) -> None:
    host = self._host
    ids = [new_object_id(host.clock.now_ms(), host.rng) for _ in range(AHEAD_COUNT)]
    self._ready.extend((Owner.broker(*host.identity), object_id) for object_id in ids)


async def _waits_for_no_answer(call: Callable[[], Awaitable[T]], rng: random.Random, on_failure: OnFailure) -> T:
    """The object's bytes are on their way."""
    asyncio.get_running_loop().create_task(until_answered(call, rng, on_failure))
    return cast(T, None)


def _finds_all_pending(session: Session, ids: Iterable[ObjectId]) -> dict[ObjectId, ObjectRow]:
    return {
        id_: replace(row, state=ObjectState.PENDING) if row.state is ObjectState.GARBAGE else row
        for id_, row in lock_objects(session, ids).items()
    }


def _has_no_grace(self: CollectorSettings) -> int:
    return 0


async def _asks_before_it_lists(
    metastore: CloudStore,
    store: ObjectStore,
    cluster_id: uuid.UUID,
    now_ms: int,
    *,
    age_ms: int = AGE_MS,
    is_dry: bool = False,
    only_strays: bool = False,
) -> Scrubbed:
    """What is registered and put between the two is unknown to it."""
    found, round_ = Scrubbed(), (await metastore.read_collection()).round
    known = {row.object_id for row in await metastore.read_objects(list(ObjectState), None, OBJECTS_MAX)}
    async for listed in store.list(f"{cluster_id}/"):
        name = parse_key(listed.key)
        if name is not None and name.object_id not in known:
            found.unknown.append(listed)
    if found.unknown:
        await store.delete([one.key for one in found.unknown])
    await metastore.note_scrub(round_, now_ms)
    return found


def _fits_anywhere(row: Any, run: Run) -> Outcome:
    return Outcome.GONE if row is None else Outcome.ACCEPTED


def _ends_with_its_tail(self: CloudReplica) -> int:
    return self._cloud_log.end_offset


_seal = CloudLog.seal


def _calls_all_stable(self: CloudLog) -> Piece:
    piece = _seal(self)
    piece.stable_offset = piece.end_offset
    return piece


async def _takes_silence_for_done(self: Uploads, links: list[Link]) -> None:
    host = self._host
    owner, commits = self._ask_for(links)
    try:
        told = await host.metastore.commit_l0(owner, commits, host.clock.now_ms())
    except MetastoreUnavailableError:
        told = [[Outcome.ACCEPTED] * len(link.pieces) for link in links]
    for link, outcomes in zip(links, told, strict=True):
        self._take(link, outcomes)


_commit = Uploads._commit


async def _cleans_up_after_silence(self: Uploads, links: list[Link]) -> None:
    """As some did (trap T2): what was not answered is taken for failed, and its object deleted."""
    host = self._host
    known = host.metastore.commit_l0

    async def commit_l0(owner: Owner, gathers: Any, now_ms: int) -> Any:
        try:
            return await known(owner, gathers, now_ms)
        except MetastoreUnavailableError:
            keys = [
                ObjectName(host.cluster_id, Level.L0, one.object_id).key for one in gathers if one.object_id is not None
            ]
            with suppress(StoreUnavailableError, StoreRefusedError):
                await host.objects.delete(keys)
            raise

    host.metastore.commit_l0 = commit_l0  # type: ignore[method-assign]
    try:
        await _commit(self, links)
    finally:
        host.metastore.commit_l0 = known  # type: ignore[method-assign]


def _has_always_room(self: Uploads, size_bytes: int) -> bool:
    return True


def _believes_the_store(cls: type[Block], data: Any, extent: Any, epochs: Any, place: str) -> Block:
    return Block.own(memoryview(data).toreadonly())


def _seals_nothing(self: LocalReplica) -> None:
    pass


CLOUD: dict[str, Break] = {
    "1-move": Break(Patch(LocalReplica, "seal", _seals_nothing), Profile.CLOUD, 0.5),
    "C1": Break(Patch(Pool, "_fill", _registers_nothing), Profile.CLOUD, 0.4),
    "C2": Break(Patch(uploads, "until_answered", _waits_for_no_answer), Profile.CLOUD, 0.4),
    "C3": Break(Patch(committing, "lock_objects", _finds_all_pending), Profile.CLOUD, 0.4),
    "C4": Break(Patch(CollectorSettings, "grace_rounds", property(_has_no_grace)), Profile.CLOUD, 0.4),
    "C4-scrub": Break(Patch(collector, "scrub", _asks_before_it_lists), Profile.CLOUD, 0.4),
    "C5": Break(Patch(committing._Commit, "_fits", staticmethod(_fits_anywhere)), Profile.CLOUD, 0.4),
    "C6": Break(Patch(CloudReplica, "high_watermark", property(_ends_with_its_tail)), Profile.CLOUD, 0.4),
    "C10": Break(Patch(Uploads, "_commit", _takes_silence_for_done), Profile.CLOUD, 0.4),
    "C10-delete": Break(Patch(Uploads, "_commit", _cleans_up_after_silence), Profile.CLOUD, 0.4),
    "C11": Break(Patch(Uploads, "_fits", _has_always_room), Profile.CLOUD, 0.4),
    "C12": Break(Patch(Block, "checked", classmethod(_believes_the_store)), Profile.CLOUD, 0.4),
    "8-cloud": Break(Patch(CloudLog, "seal", _calls_all_stable), Profile.CLOUD, 0.4),
}
"""By rule: a log takes appends while its partition becomes a cloud partition; ids are used that nobody registered;
an object is committed while its bytes are on their way; garbage is live again; what is garbage is deleted at once;
the scrub looks for rows before it lists; a commit need not continue the log; consumers are given what is not
committed; a commit without an answer counts as done; or it counts as failed, and its object is deleted; memory has no
bound; what the store sends is believed; open transactions count as stable."""
