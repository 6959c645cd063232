"""The bridge between the model and the code that it is about.

Every answer is remembered by its arguments, so that an exploration pays for each decision once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from sexton.compaction import acceptance
from sexton.compaction.reference import compact
from sexton.compaction.rules import LastOfProducer
from sexton.compaction.terms import Terms
from sexton.compaction.watermarks import fence
from sexton.compaction.watermarks.leader import LeaderWatermarks
from sexton.compaction.watermarks.leader import Report as RealReport
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.log.epochs import EpochHistory, epoch_of
from sexton.ports.metastore import PartitionRow
from sexton.records.batch import Batch, ControlType, Record, make_batch, make_marker
from sexton.records.checkpoints import EpochEntry
from sexton.records.header import DELETE_HORIZON
from sexton.records.header import TRANSACTIONAL as TRANSACTIONAL_BIT
from sexton.replication import history
from sexton.replication.leadership import Leadership
from sexton.types import NO_PRODUCER_ID, LeaderEpoch
from tests.model import logs
from tests.model.logs import Records

NOW_MS, RETENTION_MS, LONG_AGO_MS = 1000, 1000, 0
PRODUCER_ID = 1

History = tuple[tuple[int, int], ...]
"""Epochs and where they start."""


class Marks(NamedTuple):
    """`ReplicaWatermarks` as a tuple of integers, which hashes and compares fast."""

    incarnation: int
    generation: int = 0
    mcco: int = 0
    mxfo: int = 0
    mtro: int = 0
    mxro: int = 0
    planned: int = 0
    fence: int = 0

    @property
    def compacted(self) -> Pair:
        return Pair(self.mcco, self.mxfo)

    @property
    def removable(self) -> Pair:
        return Pair(self.mtro, self.mxro)


Report = tuple[int, int, Pair]
"""Incarnation, generation, progress."""


# Compaction


@cache
def _batch(one: int) -> Batch:
    offset, kind, key = logs.offset_of(one), logs.kind_of(one), logs.KEYS[logs.key_of(one)].encode()
    producer = PRODUCER_ID if kind in logs.TRANSACTIONAL | logs.SETTLED else NO_PRODUCER_ID
    if kind in logs.MARKERS or kind == logs.C_EMPTY:
        outcome = ControlType.ABORT if kind == logs.ABORT else ControlType.COMMIT
        batch = make_marker(offset, outcome, PRODUCER_ID, 0, LONG_AGO_MS, leader_epoch=logs.epoch_of(one))
        if kind == logs.C_EMPTY:
            batch = replace(batch, records=(), record_count=0)
    elif kind in logs.EMPTIES:
        attributes = TRANSACTIONAL_BIT if kind == logs.T_EMPTY else 0
        batch = Batch(offset, offset, attributes, producer_id=producer, leader_epoch=logs.epoch_of(one))
    else:
        value = None if kind in logs.TOMBSTONES else b"%d" % one
        attributes = TRANSACTIONAL_BIT if kind in logs.TRANSACTIONAL else 0
        batch = make_batch(
            [Record(offset, LONG_AGO_MS, key, value)],
            producer_id=producer,
            attributes=attributes,
            leader_epoch=logs.epoch_of(one),
        )
    horizon = logs.horizon_of(one)
    if horizon == logs.NO_HORIZON:
        return batch
    at_ms = NOW_MS + RETENTION_MS if horizon == logs.RUNNING else LONG_AGO_MS
    return replace(batch, attributes=batch.attributes | DELETE_HORIZON, base_timestamp_ms=at_ms)


def _record(batch: Batch) -> int:
    assert batch.base_offset == batch.last_offset
    horizon_ms = batch.delete_horizon_ms
    horizon = logs.NO_HORIZON if horizon_ms is None else logs.RUNNING if horizon_ms > NOW_MS else logs.PASSED
    key = 0
    if batch.is_control:
        kinds = {ControlType.ABORT: logs.ABORT, ControlType.COMMIT: logs.COMMIT, ControlType.UNKNOWN: logs.C_EMPTY}
        kind = kinds[batch.control_type]
    elif not batch.records:
        kind = logs.T_EMPTY if batch.is_transactional else logs.S_EMPTY
        if batch.producer_id == NO_PRODUCER_ID:
            kind = logs.EMPTY
    else:
        kind = logs.TOMBSTONE if batch.records[0].is_tombstone else logs.VALUE
        if batch.producer_id != NO_PRODUCER_ID:
            kind += logs.T_VALUE if batch.is_transactional else logs.S_VALUE
        assert batch.records[0].key is not None
        key = logs.KEYS.index(batch.records[0].key.decode())
    return logs.record(batch.base_offset, batch.leader_epoch, kind, key, horizon)


@cache
def compacted(
    records: Records,
    bound: int,
    removable: Pair | None,
    settles: bool,
    last_data: int = -1,
    clean_below: int = 0,
) -> Records:
    """What the reference compactor leaves of a log. Without `removable` it is Kafka's, which asks nobody.

    `last_data` is the offset of a live producer's last batch, which stays for its sequence. Below `clean_below` it
    looks only for keys that it has found above."""
    terms = Terms(NOW_MS, bound, RETENTION_MS)
    if removable is None:
        terms = terms.independent()
    else:
        terms = replace(terms, mtro=removable.keys, mxro=removable.transactions, settle_below=bound if settles else 0)
    producers = [] if last_data < 0 else [LastOfProducer(PRODUCER_ID, 0, last_data)]
    batches = [_batch(one) for one in records]
    return tuple(_record(batch) for batch in compact(batches, terms, producers, (), clean_below).batches)


# Histories


def _entries(past: History) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), start) for epoch, start in past)


def _changed(past: History, change: Callable[[EpochHistory], object]) -> History:
    changed = EpochHistory(_entries(past))
    change(changed)
    return tuple((entry.epoch, entry.start_offset) for entry in changed.entries)


@cache
def begin_epoch(past: History, epoch: int, offset: int) -> History:
    return _changed(past, lambda entries: entries.begin(LeaderEpoch(epoch), offset))


@cache
def cut_history(past: History, offset: int) -> History:
    return _changed(past, lambda entries: entries.cut_end(offset))


@cache
def cut_history_start(past: History, offset: int) -> History:
    return _changed(past, lambda entries: entries.cut_start(offset))


@cache
def derived_history(records: Records) -> History:
    """The mistake of the first trap."""
    past: History = ()
    for one in records:
        past = begin_epoch(past, logs.epoch_of(one), logs.offset_of(one))
    return past


@cache
def lies_on(end: int, own: History, leader_start: int, leaders: History, leader_end: int) -> bool:
    last_epoch = epoch_of(_entries(own), end - 1)
    return end >= leader_start and history.is_prefix(end, last_epoch, _entries(leaders), leader_end)


@cache
def common_end(ours: History, start: int, end: int, theirs: History, their_start: int, their_end: int) -> int:
    return history.common_end(_entries(ours), start, end, _entries(theirs), their_start, their_end)


# The high watermark


_ROW = PartitionRow(uuid.UUID(int=0), 0, (0, 1, 2), (0,), 0, LeaderEpoch(0), 0)


@cache
def committed_end(own_end: int, ends: tuple[int, ...], in_sync: tuple[bool, ...]) -> int:
    """Broker 0 leads; `ends` and `in_sync` are of its followers, 1 and 2. -1 is a follower not heard of."""
    isr = (0, *(index + 1 for index, is_in in enumerate(in_sync) if is_in))
    leadership = Leadership(replace(_ROW, isr=isr), 0, 0, 0)
    for index, end in enumerate(ends):
        if end >= 0:
            leadership.fetched(index + 1, 0, end, end, 0)
    return leadership.committed_end(own_end)


@cache
def has_caught_up(end: int, high_watermark: int, epoch_start: int, joins_at: int) -> bool:
    leadership = Leadership(_ROW, 0, epoch_start, 0)
    leadership.fetched(1, 0, end, end, 0, joins_at)
    return leadership.caught_up(1, high_watermark)


# Watermarks

UNKNOWN = Pair(-1, -1)
"""What a leader knows of a replica that it has not heard of."""


def _id(incarnation: int) -> uuid.UUID:
    return uuid.UUID(int=incarnation)


def _to_real(marks: Marks) -> ReplicaWatermarks:
    number, generation, *_, planned, fence = marks
    return ReplicaWatermarks(_id(number), generation, marks.compacted, marks.removable, planned, fence)


def _from_real(real: ReplicaWatermarks) -> Marks:
    number = real.incarnation.int
    planned = real.planned_high_watermark
    return Marks(number, real.generation, *real.compacted, *real.removable, planned, real.fence_below)


@cache
def told(marks: Marks, generation: int, removable: Pair, fence: int = 0, planned: int = 0) -> Marks:
    return _from_real(_to_real(marks).with_received(generation, removable, fence, planned))


@cache
def told_while_empty(marks: Marks, generation: int, removable: Pair, fence: int = 0, planned: int = 0) -> Marks:
    return _from_real(_to_real(marks).with_received_while_empty(generation, removable, fence, planned))


@cache
def with_plan(marks: Marks, high_watermark: int) -> Marks:
    return _from_real(_to_real(marks).with_plan(high_watermark))


@cache
def with_compaction(marks: Marks, bound: int, carried: Pair, fence: int) -> Marks:
    return _from_real(_to_real(marks).with_compaction(bound, carried, fence))


@cache
def with_independent_compaction(marks: Marks, bound: int) -> Marks:
    return _from_real(_to_real(marks).with_independent_compaction(bound))


@cache
def may_commit(marks: Marks, generation: int, bound: int, stable: int) -> bool:
    return acceptance.may_commit(_to_real(marks), generation=generation, bound=bound, last_stable_offset=stable)


@cache
def may_adopt(marks: Marks, generation: int, bound: int, planned: int, stable: int, high_watermark: int) -> bool:
    return acceptance.may_adopt(
        _to_real(marks),
        generation=generation,
        bound=bound,
        planned_high_watermark=planned,
        last_stable_offset=stable,
        high_watermark=high_watermark,
    )


@cache
def may_rebuild(marks: Marks, generation: int, bound: int, content_end: int) -> bool:
    """Whether a finished compaction may fill a replica's *empty* log: below the bound is what was compacted, and
    nothing of what the replica claims to have compacted must come from elsewhere. It ends in a batch, or a log that
    ends where no batch does could come to lead, and nobody could ever reach its end.

    Brokers do not rebuild that way: they copy their leader's log, and adopt when they are in sync (decision 12)."""
    replica = _to_real(marks)
    return content_end == bound and generation == replica.generation and Pair(bound, bound).covers(replica.compacted)


@cache
def with_log_start(marks: Marks, offset: int) -> Marks:
    return _from_real(_to_real(marks).with_log_start(offset))


@cache
def with_forced_election(marks: Marks, generation: int, log_end: int) -> Marks:
    return _from_real(_to_real(marks).with_forced_election(generation, log_end))


@cache
def computed(own: Marks, followers: tuple[tuple[int, Pair], ...]) -> Pair:
    """`followers`: the incarnation that the metastore knows, and what the leader has heard."""
    incarnations = {index + 1: _id(number) for index, (number, _) in enumerate(followers)}
    leader = LeaderWatermarks(0, _to_real(own), {0: _id(own.incarnation), **incarnations})
    for index, (number, known) in enumerate(followers):
        if known != UNKNOWN:
            leader.take_report(index + 1, RealReport(_id(number), own.generation, known))
    return leader.computed()


@cache
def after_report(own: Marks, incarnation: int, known: Pair, heard: int, report: Report, process: int) -> Pair:
    """What the leader knows of a follower after a report. `heard`: of which process is what it knows now."""
    leader = LeaderWatermarks(0, _to_real(own), {0: _id(own.incarnation), 1: _id(incarnation)})
    if known != UNKNOWN:
        leader.take_report(1, RealReport(_id(incarnation), own.generation, known, heard))
    leader.take_report(1, RealReport(_id(report[0]), report[1], report[2], process))
    return leader.last_known.get(1) or UNKNOWN


@cache
def may_copy(own: Marks, end: int, is_empty: bool, report: Report, in_sync: bool) -> bool:
    _, generation, compacted = report
    return fence.may_copy(
        _to_real(own),
        end_offset=end,
        is_empty=is_empty,
        generation=generation,
        compacted=compacted,
        in_sync=in_sync,
    )
