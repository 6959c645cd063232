"""One job on cloud partitions, from end to end: register, carry out, check, commit, release.

Whatever goes wrong, nothing is undone: objects that were not committed become garbage, by release or when this
compactor's lease ends. A commit without an answer is sent again as it was (C10).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sexton.cloud.patience import until_known
from sexton.compaction.due import Leftovers
from sexton.compaction.fates import START_HORIZON, count
from sexton.compaction.watermarks.replica import Pair
from sexton.compactor.cloud.engine import CloudEngine
from sexton.compactor.cloud.plans import (
    L1_BYTES,
    Compacted,
    Output,
    PartitionPlan,
    Writer,
    WrittenL1,
    extent_of,
    group,
)
from sexton.errors import DamagedObjectError, SextonError
from sexton.ports.clock import Clock
from sexton.ports.cloud import (
    CloudStore,
    Extent,
    Level,
    LeveledPartition,
    ObjectId,
    Outcome,
    Owner,
    Replacement,
)
from sexton.ports.object_names import ObjectName, new_object_id
from sexton.ports.objects import ObjectStore
from sexton.records.objects import Level as ObjectLevel
from sexton.types import INT64_MAX, OFFSET_MAX, PartitionId

logger = logging.getLogger(__name__)

REGISTERED_AT_ONCE: Final = 500
WHY: Final = {
    Outcome.MISPLACED: "refused: the log has changed since it was planned (another compactor, or its start has moved)",
    Outcome.GONE: "refused: its topic was deleted",
    Outcome.LOST: "refused: this compactor's lease had ended",
}


TOO_LATE: Final = "refused: the job took so long that tombstones could have gone as soon as it was known (C8)"


class _TooLateError(Exception):
    """Of a compaction: it must not be sent any more."""


@dataclass(slots=True)
class Done:
    """What became of one partition."""

    plan: PartitionPlan
    error: str = ""
    """Why nothing was committed; empty if it was."""
    is_refused: bool = False
    """The work was done, and was for nothing: another was first. It is not this partition's fault."""
    is_late: bool = False
    bytes_after: int = 0
    fates: dict[str, int] = field(default_factory=dict)


class CloudJobs:
    def __init__(
        self, metastore: CloudStore, store: ObjectStore, engine: CloudEngine, clock: Clock, rng: random.Random
    ) -> None:
        self._metastore = metastore
        self._store = store
        self._engine = engine
        self._clock = clock
        self._rng = rng
        self.wasted_bytes = 0
        """Read and written by jobs that were refused."""

    # Leveling

    async def level(self, plans: Sequence[PartitionPlan], writer: Writer, l1_bytes: int) -> list[Done]:
        outputs = group(plans, l1_bytes)
        ids = _Ids(self, writer)
        done = [Done(plan) for plan in plans]
        try:
            made = await self._engine.level(plans, outputs, ids.register, writer)
            for output, one in zip(outputs, made, strict=True):
                found = await self._checked(one, writer)
                if isinstance(found, SextonError):
                    for piece in output:
                        done[piece.plan].error = done[piece.plan].error or str(found)
                else:
                    await self._commit_level(plans, found, done, ids)
        finally:
            await ids.release()
        return done

    async def _commit_level(
        self, plans: Sequence[PartitionPlan], made: WrittenL1, done: Sequence[Done], ids: _Ids
    ) -> None:
        numbers = {plan.key: number for number, plan in enumerate(plans)}
        parts = _parts(made)
        now_ms = self._clock.now_ms()
        told = await self._known(lambda: self._metastore.commit_level(ids.owner, [made.written], parts, now_ms))
        ids.committed.add(made.object_id)
        for part, outcome in zip(parts, told, strict=True):
            self._note(done[numbers[part.topic_id, part.partition]], outcome, _size(part.extents))

    # Compaction and merging

    async def compact(self, plans: Sequence[PartitionPlan], writer: Writer, l1_bytes: int = L1_BYTES) -> list[Done]:
        ids = _Ids(self, writer)
        done = [Done(plan) for plan in plans]
        try:
            made = await self._engine.compact(plans, ids.register, writer, l1_bytes)
            for number, one in enumerate(made):
                done[number].fates = one.fates
                done[number].error = "" if one.failure is None else str(one.failure)
            for numbers in _sharing(made):
                await self._commit_compaction(plans, made, numbers, done, ids)
        finally:
            await ids.release()
        return done

    async def merge(self, plans: Sequence[PartitionPlan], writer: Writer, l1_bytes: int) -> list[Done]:
        outputs = [output for number, plan in enumerate(plans) for output in _alone(plan, number, l1_bytes)]
        ids = _Ids(self, writer)
        done = [Done(plan) for plan in plans]
        try:
            made = await self._engine.level(plans, outputs, ids.register, writer)
            found: list[Compacted] = [Compacted() for _ in plans]
            for output, one in zip(outputs, made, strict=True):
                if isinstance(one, SextonError):
                    done[output[0].plan].error = str(one)
                else:
                    found[output[0].plan].objects.append(one)
            for number in range(len(plans)):
                if not done[number].error:
                    await self._commit_compaction(plans, found, [number], done, ids)
        finally:
            await ids.release()
        return done

    async def _commit_compaction(
        self,
        plans: Sequence[PartitionPlan],
        made: Sequence[Compacted],
        numbers: Sequence[int],
        done: Sequence[Done],
        ids: _Ids,
    ) -> None:
        objects = {one.object_id: one for number in numbers for one in made[number].objects}
        for one in objects.values():
            found = await self._checked(one, ids.writer)
            if isinstance(found, SextonError):
                for number in numbers:
                    done[number].error = str(found)
                return
        try:
            changes = [replacement_of(plans[number], made[number]) for number in numbers]
        except ValueError as error:
            for number in numbers:
                done[number].error = f"the engine's result makes no sense: {error}"
            return
        written = [one.written for one in objects.values()]
        now_ms = self._clock.now_ms()

        async def commit() -> Sequence[Outcome]:
            """A metastore that was away meanwhile makes a commit late, too. What was sent in time may have been
            carried out; if it was not, its objects are given back, and it never will be."""
            if any(self._is_too_late(plans[number], made[number]) for number in numbers):
                raise _TooLateError
            return await self._metastore.commit_compactions(ids.owner, written, changes, now_ms)

        try:
            told = await self._known(commit)
        except _TooLateError:
            for number in numbers:
                done[number].error, done[number].is_refused = TOO_LATE, True
                done[number].is_late = self._is_too_late(plans[number], made[number])
                self.wasted_bytes += plans[number].size_bytes
            return
        ids.committed |= objects.keys()
        for number, change, outcome in zip(numbers, changes, told, strict=True):
            left = plans[number].size_bytes - _size(change.inputs) + _size(change.outputs)
            self._note(done[number], outcome, left)

    def _is_too_late(self, plan: PartitionPlan, made: Compacted) -> bool:
        """Who has read a value in the map of before must find the tombstone in the next one."""
        return _starts_horizons(plan, made) and self._clock.now_ms() > plan.commit_by_ms

    # What they have in common

    async def _checked(self, made: WrittenL1 | SextonError, writer: Writer) -> WrittenL1 | SextonError:
        """The store's word for the size, before anything refers to it."""
        if isinstance(made, SextonError):
            return made
        key = ObjectName(writer.cluster_id, ObjectLevel.L1, made.object_id).key
        try:
            size_bytes = await self._store.size_bytes(key)
        except SextonError as error:
            return error
        if size_bytes != made.size_bytes:
            return DamagedObjectError(f"it has {size_bytes} bytes, and {made.size_bytes} were written", key)
        return made

    def _note(self, done: Done, outcome: Outcome, bytes_after: int) -> None:
        done.bytes_after += bytes_after
        if outcome is not Outcome.ACCEPTED:
            done.error, done.is_refused = WHY[outcome], True
            self.wasted_bytes += done.plan.size_bytes

    async def _known(self, call: Callable[[], Awaitable[Sequence[Outcome]]]) -> Sequence[Outcome]:
        return await until_known(call, self._rng)

    def new_ids(self, count: int) -> list[ObjectId]:
        return [new_object_id(self._clock.now_ms(), self._rng) for _ in range(count)]

    @property
    def metastore(self) -> CloudStore:
        return self._metastore

    @property
    def rng(self) -> random.Random:
        return self._rng


class _Ids:
    """The ids of one job. Those that were not committed are given back at its end (they are garbage then): the lease,
    with which they would expire, may be kept for months. Of a job that is cancelled they are, if the metastore answers
    at once."""

    def __init__(self, jobs: CloudJobs, writer: Writer) -> None:
        self.writer = writer
        self.owner = Owner.compactor(writer.compactor_id)
        self.committed: set[ObjectId] = set()
        self._jobs = jobs
        self._registered: list[ObjectId] = []

    async def register(self, count: int) -> Sequence[ObjectId]:
        """Raises LeaseLostError."""
        made: list[ObjectId] = []
        while len(made) < count:
            some = self._jobs.new_ids(min(REGISTERED_AT_ONCE, count - len(made)))
            self._registered += some  # if there is no answer they may be
            await self._jobs.metastore.register_objects(self.owner, Level.L1, some)
            made += some
        return made

    async def release(self) -> None:
        left = [one for one in self._registered if one not in self.committed]
        if not left:
            return
        task = asyncio.current_task()
        is_cancelled = task is not None and task.cancelling() > 0
        try:
            if is_cancelled:
                await self._jobs.metastore.release_objects(self.owner, left)
            else:
                await until_known(lambda: self._jobs.metastore.release_objects(self.owner, left), self._jobs.rng)
        except (SextonError, asyncio.CancelledError) as error:
            logger.info("%d objects that will not be committed expire with the lease: %s", len(left), error)
            if isinstance(error, asyncio.CancelledError):
                raise


def _parts(made: WrittenL1) -> list[LeveledPartition]:
    """What an object has of each partition: one run, or several that follow each other."""
    extents: dict[PartitionId, list[Extent]] = {}
    for run in made.runs:
        extents.setdefault((run.topic_id, run.partition), []).append(extent_of(run, made.object_id))
    return [
        LeveledPartition(
            topic_id=topic_id,
            partition=partition,
            base_offset=some[0].base_offset,
            end_offset=some[-1].end_offset,
            extents=some,
        )
        for (topic_id, partition), some in extents.items()
    ]


def replacement_of(plan: PartitionPlan, made: Compacted) -> Replacement:
    """Inputs are the extents that tile what the runs tile. Raises ValueError if there are none such."""
    outputs = [
        extent_of(run, one.object_id)
        for one in made.objects
        for run in one.runs
        if (run.topic_id, run.partition) == plan.key
    ]
    outputs.sort(key=lambda extent: extent.base_offset)
    inputs: list[Extent] = []
    for output in outputs:
        span = [one for one in plan.extents if output.base_offset <= one.base_offset < output.end_offset]
        if not span or (span[0].base_offset, span[-1].end_offset) != (output.base_offset, output.end_offset):
            raise ValueError(f"offsets {output.base_offset} to {output.end_offset - 1} are no whole extents")
        inputs += span
    terms = plan.terms
    return Replacement(
        topic_id=plan.row.topic_id,
        partition=plan.row.partition,
        compaction_epoch=plan.row.compaction_epoch,
        settings_hash=plan.settings_hash,
        inputs=inputs,
        outputs=outputs,
        bound=0 if terms is None else terms.bound,
        horizon_ms=plan.row.horizon_ms if terms is None else _horizon_ms(plan, made),
    )


def _starts_horizons(plan: PartitionPlan, made: Compacted) -> bool:
    return plan.terms is not None and count(made.fates, START_HORIZON) > 0


def _horizon_ms(plan: PartitionPlan, made: Compacted) -> int:
    """When another compaction would remove a tombstone; 0 if none waits."""
    assert plan.terms is not None
    everywhere = Pair(OFFSET_MAX, OFFSET_MAX)
    before = Leftovers(
        removable=everywhere,
        waiting_for_replicas_count=0,
        waiting_for_horizon_count=1,
        horizon_ms=plan.row.horizon_ms or INT64_MAX,
    )
    terms = plan.terms
    left = Leftovers.of_pass(before, made.fates, everywhere, terms.now_ms, terms.delete_retention_ms)
    return left.horizon_ms if left.waiting_for_horizon_count and left.horizon_ms < INT64_MAX else 0


def _sharing(made: Sequence[Compacted]) -> list[list[int]]:
    """Numbers of those that must be committed together, because they share objects. What failed is left out."""
    groups: list[tuple[set[ObjectId], list[int]]] = []
    for number, one in enumerate(made):
        if one.failure is not None:
            continue
        ids, numbers = {each.object_id for each in one.objects}, [number]
        for other in [each for each in groups if each[0] & ids]:
            groups.remove(other)
            ids |= other[0]
            numbers = [*other[1], *numbers]
        groups.append((ids, sorted(numbers)))
    return [numbers for _, numbers in groups]


def _alone(plan: PartitionPlan, number: int, l1_bytes: int) -> list[Output]:
    """A merge shares no object with other partitions: what one is refused does not concern another."""
    return [tuple(piece._replace(plan=number) for piece in output) for output in group([plan], l1_bytes)]


def _size(extents: Sequence[Extent]) -> int:
    return sum(extent.size_bytes for extent in extents)
