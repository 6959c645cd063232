"""Rules 3 to 7 and 10 (docs/rules.md), held against every replica of a compacted partition while it is being compacted.

The truth is what was committed, batch by batch, before any compaction touched it. Against it stands what lies on each
running replica's disk below its high watermark:

- every record is one that was committed at that offset (rules 2 and 10);
- an in-sync replica folds to what the truth folds to at the same high watermark (rules 3, 4 and 8): no value is lost,
  no key comes back, no aborted record is seen;
- a key's newest record that is a tombstone is there unless it lies below MTRO, a marker unless below MXRO (5, 6);
- below MCCO a key has one record, below MXFO nothing is transactional (docs/rules.md);
- MCCO, MXFO, MTRO and MXRO of an incarnation never go back, over restarts too (7).

All of it from the replica's log start on: what lies below is gone, whether or not it is still on the disk. A log start
may lie where somebody asked for it, or where retention puts it, and nowhere else (1).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sexton.records.batch import Batch
from sexton.simulate.copies import Copy
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, identity
from sexton.simulate.snapshots import Snapshot, Watermarks
from sexton.simulate.truth import Fold, Retention, Truth, difference, fold
from sexton.types import PartitionId, TopicPartition

Learned = Callable[[TopicPartition, Batch], None]
LeftBehind = Callable[[PartitionId, int, int], bool]
Known = tuple[Copy, int]
"""One, and the high watermark of its replica."""


@dataclass(slots=True)
class CompactionJudge:
    on_learned: Learned
    """Called with every batch as it is committed."""
    truths: dict[PartitionId, Truth] = field(default_factory=dict)
    _checked: dict[tuple[str, PartitionId], tuple[int, int, int, Watermarks | None]] = field(default_factory=dict)
    _watermarks: dict[tuple[str, PartitionId, uuid.UUID], Watermarks] = field(default_factory=dict)
    folds_count: int = 0
    is_left_behind: LeftBehind = lambda key, offset, leader_epoch: False
    """Whether a batch of a partition went with a loss: replicas that are not in sync may still have it."""

    def learn(
        self, place: TopicPartition, key: PartitionId, copy: Copy, high_watermark: int, others: Iterable[Known]
    ) -> None:
        """What lies below a high watermark is committed. Called as soon as one rises: before it can be compacted. What
        the log start has passed in one copy even so is found in others, as far as their own high watermarks go."""
        truth = self.truths.setdefault(key, Truth())
        gap_end = self._learn_from(place, key, truth, copy, high_watermark)
        if gap_end is None:
            return
        for other, its_high_watermark in others:
            self._learn_from(place, key, truth, other, min(gap_end, its_high_watermark))
        if truth.end_offset < gap_end:
            lacking = f"{truth.end_offset} to {gap_end - 1}"
            raise SimulationFailure("rule 1", f"{_name(place)}: {lacking} were committed by nobody")
        self._learn_from(place, key, truth, copy, high_watermark)

    def _learn_from(
        self, place: TopicPartition, key: PartitionId, truth: Truth, copy: Copy, high_watermark: int
    ) -> int | None:
        """Where what is known ends, and the copy goes on only later: where that is."""
        if high_watermark > truth.end_offset:
            for batch in copy.batches_from(truth.end_offset):
                if batch.base_offset >= high_watermark:
                    break
                if self.is_left_behind(key, batch.base_offset, batch.leader_epoch):
                    return None
                if not truth.may_add(batch):
                    return batch.base_offset
                truth.add(batch)
                self.on_learned(place, batch)
        return None

    def begin_generation(self, key: PartitionId, generation: int, log_end_offset: int) -> None:
        """A leader was forced: from here on its log is the truth."""
        self.truths[key] = Truth(generation, log_end_offset)
        self.forget(key)

    def forget(self, key: PartitionId) -> None:
        """What was checked is checked again."""
        self._checked = {known: value for known, value in self._checked.items() if known[1] != key}

    def check_start(
        self, where: str, key: PartitionId, starts: tuple[int, int], retention: Retention, now_ms: int, tail_bytes: int
    ) -> None:
        """Rule 1: a log start moved, from one offset to another, though nobody asked for that. Every value that has
        gone with it is older than retention.ms, or has retention.bytes behind it. `tail_bytes` are not committed yet.
        """
        truth = self.truths.setdefault(key, Truth())
        before, now = starts
        if now > truth.end_offset:
            raise SimulationFailure("rule 1", f"{where} starts at {now}, committed is {truth.end_offset}")
        for name, newest in truth.fold(truth.end_offset, before).values.items():
            if newest.offset >= now:
                continue
            age_ms = now_ms - truth.records[newest.offset].timestamp_ms
            too_old = 0 <= retention.ms < age_ms
            too_much = 0 <= retention.bytes <= truth.size_bytes_from(newest.offset) + tail_bytes
            if not (too_old or too_much):
                raise SimulationFailure(
                    "rule 1", f"{where} now starts at {now}: {name!r}@{newest.offset}, {age_ms} ms old, went too early"
                )

    def look(self, node: str, key: PartitionId, place: TopicPartition, replica: Snapshot) -> None:
        """Rule 7."""
        now = replica.kept
        known = self._watermarks.get((node, key, now.incarnation))
        if known == now:
            return
        self._watermarks[node, key, now.incarnation] = now
        if known is None or known.generation != now.generation:
            return
        if now.mcco < known.mcco or now.mxfo < known.mxfo or now.mtro < known.mtro or now.mxro < known.mxro:
            raise SimulationFailure(
                "rule 7",
                f"{node}: of {_name(place)} MCCO, MXFO went {known.mcco}, {known.mxfo} -> {now.mcco}, {now.mxfo} and "
                f"MTRO, MXRO {known.mtro}, {known.mxro} -> {now.mtro}, {now.mxro}",
            )

    def disk_replaced(self, node: str) -> None:
        """Rule 7 is about what a disk holds: one that is empty, or old, knows nothing of what was known since."""
        self._watermarks = {known: value for known, value in self._watermarks.items() if known[0] != node}
        self._checked = {known: value for known, value in self._checked.items() if known[0] != node}

    def check(
        self, node: str, key: PartitionId, place: TopicPartition, replica: Snapshot, copy: Copy, *, in_sync: bool
    ) -> None:
        high_watermark, watermarks = replica.high_watermark, replica.watermarks
        log_start = replica.start_offset
        state = (copy.version, high_watermark, log_start, watermarks)
        if self._checked.get((node, key)) == state:
            return
        truth = self.truths.setdefault(key, Truth())
        if watermarks.generation != truth.generation:
            return  # it is to be wiped, or is about to lead
        batches = [batch for batch in copy.batches_from(0) if batch.base_offset < high_watermark]
        if not in_sync:
            batches = [one for one in batches if not self.is_left_behind(key, one.base_offset, one.leader_epoch)]
        where = f"{node}: {_name(place)}"
        check_records(where, truth, batches)
        if in_sync:
            truth.start_offset = max(truth.start_offset, log_start)
        if not replica.is_independent:
            gone_below = log_start if in_sync else max(log_start, truth.start_offset)
            check_compacted(where, batches, watermarks, log_start, gone_below)
        if in_sync:
            self.folds_count += 1
            expected = truth.fold(high_watermark, log_start)
            found = fold(batches, high_watermark, log_start, expected.stable_offset if log_start else None)
            evidence = difference(expected, found)
            if evidence is not None:
                bounds = f"high watermark {high_watermark} and log start {log_start}"
                raise SimulationFailure("rule 4", f"{where}, in sync, at {bounds}: {evidence}")
            if not replica.is_independent:
                check_tombstones(where, expected, found, watermarks)
                check_markers(where, truth, expected.stable_offset, batches, watermarks, log_start)
            self._checked[node, key] = state  # as long as it is not in sync, it is looked at again

    def check_stopped(self, node: str, key: PartitionId, place: TopicPartition, copy: Copy, log_start: int) -> None:
        """Rules 1, 3 and 4 of an in-sync replica that does not run: its disk holds what was committed and nothing else
        there, and folds to the same. Where its log starts nobody says: anywhere up to `log_start`."""
        truth = self.truths.get(key)
        if truth is None:
            return
        state = (copy.version, truth.end_offset, log_start, None)
        if self._checked.get((node, key)) == state:
            return
        batches = [batch for batch in copy.batches_from(0) if batch.base_offset < truth.end_offset]
        where = f"{node}, which is down: {_name(place)}"
        check_records(where, truth, batches)
        expected = truth.fold(truth.end_offset, log_start)
        found = fold(batches, truth.end_offset, log_start, expected.stable_offset if log_start else None)
        evidence = difference(expected, found)
        if evidence is not None:
            raise SimulationFailure("rule 4", f"{where}, in sync, at {truth.end_offset}: {evidence}")
        self._checked[node, key] = state

    def check_acknowledged(self, history: History, place: TopicPartition, key: PartitionId) -> None:
        check_acknowledged(self.truths.get(key) or Truth(), history, place)


def check_acknowledged(truth: Truth, history: History, place: TopicPartition) -> None:
    """Rule 1: what a producer was promised was committed, at that offset."""
    known = {identity(record): offset for offset, record in truth.records.items()}
    for write in history.acknowledged(place):
        for index, value in enumerate(write.values):
            offset = known.get(value)
            if history.may_be_lost(write, write.base_offset + index if write.base_offset >= 0 else -1):
                continue
            if write.acks == -1 and offset is None:
                raise SimulationFailure("rule 1", f"{value!r} was acknowledged at {_name(place)}, and is lost")
            if offset is not None and write.base_offset >= 0 and offset != write.base_offset + index:
                raise SimulationFailure(
                    "rule 2", f"{value!r} was acknowledged at {write.base_offset + index}, but is at {offset}"
                )


def check_records(where: str, truth: Truth, batches: list[Batch]) -> None:
    for batch in batches:
        if batch.is_control:
            known = truth.markers.get(batch.base_offset)
            if known is None or (batch.records and known.control_type is not batch.control_type):
                raise SimulationFailure("rule 2", f"{where} has a marker at {batch.base_offset} that was not committed")
            continue
        for record in batch.records:
            original = truth.records.get(record.offset)
            if original is None or (original.key, original.value) != (record.key, record.value):
                committed = original and original.value
                raise SimulationFailure("rule 2", f"{where}@{record.offset}: {record.value!r}, not {committed!r}")


def check_compacted(
    where: str, batches: list[Batch], watermarks: Watermarks, log_start: int = 0, gone_below: int = 0
) -> None:
    """An empty copy of a log that starts in the middle of a batch begins with that batch, and starts where it should
    only when it has taken it. So what is `gone_below`, for a copy that is not in sync, may be there for a moment."""
    gone_below = max(gone_below, log_start)
    mcco, mxfo = watermarks.mcco, watermarks.mxfo
    if min(mcco, mxfo) < log_start:
        raise SimulationFailure("rule 7", f"{where} starts at {log_start}, and says MCCO, MXFO are {mcco}, {mxfo}")
    seen: dict[bytes, int] = {}
    for batch in batches:
        if batch.last_offset < gone_below:
            continue
        if batch.is_transactional and not batch.is_control and batch.last_offset < mxfo:
            raise SimulationFailure(
                "rule 6", f"{where} has a transactional batch at {batch.base_offset}, and says MXFO is {mxfo}"
            )
        if batch.is_control:
            continue
        for record in batch.records:
            if record.key is not None and gone_below <= record.offset < mcco:
                if record.key in seen:
                    offsets = f"{seen[record.key]} and {record.offset}"
                    raise SimulationFailure("rule 3", f"{where} has {record.key!r} at {offsets}, and MCCO is {mcco}")
                seen[record.key] = record.offset


def check_tombstones(where: str, expected: Fold, found: Fold, watermarks: Watermarks) -> None:
    mtro = max(watermarks.mtro, watermarks.fence_below)
    for key, newest in expected.tombstones.items():
        if newest.offset >= mtro and key not in found.tombstones:
            raise SimulationFailure("rule 5", f"{where} lacks the tombstone of {key!r}@{newest.offset}, MTRO is {mtro}")


def check_markers(
    where: str,
    truth: Truth,
    stable_offset: int,
    batches: list[Batch],
    watermarks: Watermarks,
    log_start: int = 0,
) -> None:
    mxro = max(watermarks.mxro, watermarks.fence_below, log_start)
    held = {batch.base_offset for batch in batches if batch.is_control and batch.records}
    for offset in truth.markers:
        if mxro <= offset < stable_offset and offset not in held:
            raise SimulationFailure("rule 6", f"{where} has lost the marker at {offset}, MXRO is {mxro}")


def _name(place: TopicPartition) -> str:
    return f"{place[0]}-{place[1]}"
