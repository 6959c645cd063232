"""The tables of cloud topics as plain Python, with the rules in the fewest words: what a test compares the metastore
with. It remembers what a database forgets: every run that was ever accepted."""

from __future__ import annotations

from dataclasses import dataclass, field

from sexton.ports.cloud import Gather, Level, ObjectId, ObjectState, Outcome, Owner, Run
from sexton.types import PartitionId

PENDING, LIVE, GARBAGE = ObjectState.PENDING, ObjectState.LIVE, ObjectState.GARBAGE


@dataclass
class PlainExtent:
    base: int
    end: int
    level: Level
    object_id: ObjectId | None


@dataclass
class PlainPartition:
    start: int = 0
    end: int = 0
    stable: int = 0
    leveled: int = 0
    cleaned: int = 0
    epoch: int = -1
    writer: Owner | None = None
    compaction_epoch: int = 0
    extents: list[PlainExtent] = field(default_factory=list)
    accepted: set[tuple[int, int]] = field(default_factory=set)
    """Epoch and base offset of every run that ever was: a leader sends the same again under another id, never other
    records."""


@dataclass
class PlainTables:
    live_owners: set[Owner] = field(default_factory=set)
    owners: dict[ObjectId, Owner] = field(default_factory=dict)
    states: dict[ObjectId, ObjectState] = field(default_factory=dict)
    rounds: dict[ObjectId, int] = field(default_factory=dict)
    round: int = 0
    partitions: dict[PartitionId, PlainPartition] = field(default_factory=dict)

    def register(self, owner: Owner, object_id: ObjectId) -> None:
        self.owners[object_id] = owner
        self.states[object_id] = PENDING

    def discard(self, object_id: ObjectId) -> None:
        self.states[object_id] = GARBAGE
        self.rounds[object_id] = self.round

    def pending_of(self, owner: Owner) -> list[ObjectId]:
        return [id_ for id_, state in self.states.items() if state is PENDING and self.owners[id_] == owner]

    def expire(self) -> int:
        dead = [
            id_ for id_, state in self.states.items() if state is PENDING and self.owners[id_] not in self.live_owners
        ]
        for object_id in dead:
            self.discard(object_id)
        return len(dead)

    def sweep(self) -> None:
        """What nothing refers to any more is garbage."""
        used = {extent.object_id for one in self.partitions.values() for extent in one.extents}
        for object_id, state in self.states.items():
            if state is LIVE and object_id not in used:
                self.discard(object_id)

    def claim(self, key: PartitionId, epoch: int, owner: Owner) -> bool:
        one = self.partitions[key]
        if one.epoch == epoch and one.writer == owner:
            return True
        if epoch <= one.epoch:
            return False
        one.epoch, one.writer = epoch, owner
        return True

    def commit(self, owner: Owner, gathers: list[Gather]) -> list[list[Outcome]]:
        told: list[list[Outcome]] = []
        refused: dict[PartitionId, Outcome] = {}
        for gather in gathers:
            if told and {Outcome.LOST, Outcome.SKIPPED} & set(told[-1]):
                told.append([Outcome.SKIPPED for _ in gather.runs])
                continue
            id_ = gather.object_id
            is_pending = id_ is not None and self.states.get(id_) is PENDING and self.owners[id_] == owner
            told.append([])
            for run in gather.runs:
                key = (run.topic_id, run.partition)
                how = self._take(run, id_, refused.get(key)) if is_pending else self._judge(run, id_)
                if how is not Outcome.ACCEPTED:
                    refused.setdefault(key, how)
                told[-1].append(how)
            if is_pending and id_ is not None:
                self.states[id_] = LIVE
                self.sweep()
        return told

    def _take(self, run: Run, object_id: ObjectId | None, refused: Outcome | None) -> Outcome:
        one = self.partitions[run.topic_id, run.partition]
        if refused is not None:
            return refused
        if one.epoch != run.writer_epoch:
            return Outcome.FENCED
        if one.end != run.base_offset:
            return Outcome.MISPLACED
        one.extents.append(PlainExtent(run.base_offset, run.end_offset, Level.L0, object_id))
        one.end, one.stable = run.end_offset, max(one.stable, run.stable_offset)
        one.accepted.add((run.writer_epoch, run.base_offset))
        return Outcome.ACCEPTED

    def _judge(self, run: Run, object_id: ObjectId | None) -> Outcome:
        """By what has happened, which is remembered here, and not by what the rows still tell."""
        one = self.partitions[run.topic_id, run.partition]
        if (run.writer_epoch, run.base_offset) in one.accepted:
            at_base = [extent for extent in one.extents if (extent.base, extent.level) == (run.base_offset, Level.L0)]
            if all(extent.object_id == object_id for extent in at_base):
                return Outcome.ACCEPTED
        if one.epoch != run.writer_epoch:
            return Outcome.FENCED
        return Outcome.LOST if one.end == run.base_offset else Outcome.MISPLACED

    def advance_start(self, key: PartitionId, epoch: int, offset: int) -> Outcome:
        one = self.partitions.get(key)
        if one is None:
            return Outcome.GONE
        if one.epoch != epoch:
            return Outcome.FENCED
        if offset > one.end:
            return Outcome.MISPLACED
        one.start = max(one.start, offset)
        one.extents = [extent for extent in one.extents if extent.end > one.start]
        boundary = min(one.start, one.extents[0].base if one.extents else one.end)
        one.stable, one.leveled = max(one.stable, boundary), max(one.leveled, boundary)
        one.cleaned = max(one.cleaned, boundary)
        self.sweep()
        return Outcome.ACCEPTED

    def level(self, key: PartitionId, base: int, end: int, object_id: ObjectId) -> Outcome:
        one = self.partitions[key]
        ends = {extent.end for extent in one.extents if extent.level is Level.L0}
        if one.leveled != base or end > one.stable or end not in ends:
            self.discard(object_id)
            return Outcome.MISPLACED
        kept = [extent for extent in one.extents if extent.end <= base or extent.base >= end]
        one.extents = sorted([*kept, PlainExtent(base, end, Level.L1, object_id)], key=lambda extent: extent.base)
        one.leveled = end
        self.states[object_id] = LIVE
        self.sweep()
        return Outcome.ACCEPTED

    def compact(
        self, key: PartitionId, epoch: int, inputs: list[tuple[int, int]], object_id: ObjectId, bound: int
    ) -> Outcome:
        """Contiguous inputs, one output."""
        one = self.partitions[key]
        base, end = inputs[0][0], inputs[-1][1]
        there = {(extent.base, extent.end): extent for extent in one.extents if extent.level is Level.L1}
        is_there = all(span in there or span[1] <= one.start for span in inputs)
        cleaned = max(one.cleaned, bound)
        others = [(extent.base, extent.end) for extent in one.extents if (extent.base, extent.end) not in inputs]
        is_split = cleaned > one.start and any(low < cleaned < high for low, high in [*others, (base, end)])
        if one.compaction_epoch != epoch or bound > one.leveled or not is_there or is_split:
            self.discard(object_id)
            return Outcome.MISPLACED
        kept = [extent for extent in one.extents if (extent.base, extent.end) not in inputs]
        made = [PlainExtent(base, end, Level.L1, object_id)] if end > one.start else []
        one.extents = sorted([*kept, *made], key=lambda extent: extent.base)
        one.cleaned, one.compaction_epoch = cleaned, epoch + 1
        self.states[object_id] = LIVE
        self.sweep()
        return Outcome.ACCEPTED

    def forget(self, grace: int) -> set[ObjectId]:
        due = {id_ for id_, at in self.rounds.items() if id_ in self.states and at <= self.round - grace}
        for object_id in due:
            del self.states[object_id]
        return due
