"""The reference compactor: one log in memory, one object per record, as close to the rules' wording as code gets.

It is the tests' oracle: the Spark pipeline must keep exactly what this keeps, for the same reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sexton.compaction import rules
from sexton.compaction.fates import Fate
from sexton.compaction.rules import Action, LastOfProducer
from sexton.compaction.terms import NO_HORIZON, Terms
from sexton.records.batch import Batch, ControlType, Record
from sexton.records.header import CODEC_MASK, DELETE_HORIZON, TRANSACTIONAL
from sexton.types import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fate of one record or marker."""

    offset: int
    fate: Fate


@dataclass(slots=True)
class Compacted:
    """The log after a compaction, with the fate of every record and marker below the bound."""

    batches: list[Batch] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def compact(
    batches: Sequence[Batch],
    terms: Terms,
    producers: Iterable[LastOfProducer] = (),
    segment_ends: Collection[int] = (),
    clean_below: int = 0,
) -> Compacted:
    """Compacts everything below ``terms.bound``. ``batches`` is the whole log, with all records.

    ``segment_ends`` are the last offsets of the segments, where the log has more than one below the bound. Below
    ``clean_below`` the log is assumed to hold each key once, as the pipeline assumes it: a caller that claims too much
    gets what the pipeline would make of it. By default nothing is assumed.
    """
    terms.check_invariants()
    outcomes = _outcomes(batches)
    with_data = _markers_with_data(batches)
    newest = _newest_offsets(batches, terms, outcomes, clean_below)
    below = [batch for batch in batches if batch.base_offset < terms.bound]
    protected = list(producers)
    result = Compacted()
    for batch in batches:
        if batch.base_offset >= terms.bound:
            result.batches.append(batch)
            continue
        must_keep = rules.must_keep_batch(
            is_segment_end=batch is below[-1] or batch.last_offset in segment_ends,
            is_producers_last=any(producer.is_in(batch) for producer in protected),
        )
        outcome = outcomes.get(batch.base_offset, ControlType.UNKNOWN)
        fates = list(_fates(batch, terms, outcome, batch.last_offset in with_data, newest))
        result.verdicts += [Verdict(record.offset, fate) for record, fate in zip(batch.records, fates, strict=True)]
        result.batches += _written(batch, terms, fates, outcome, must_keep)
    return result


def fold_by_key(batches: Iterable[Batch]) -> dict[bytes, Record]:
    """What a ``read_committed`` consumer ends up with: the newest committed record of each key, without tombstones."""
    log = list(batches)
    outcomes = _outcomes(log)
    fold: dict[bytes, Record] = {}
    for batch in log:
        if batch.is_control or outcomes.get(batch.base_offset) == ControlType.ABORT:
            continue
        if batch.is_transactional and outcomes.get(batch.base_offset) is None:
            break  # an open transaction: this is the last stable offset
        for record in batch.records:
            if record.key is None:
                continue
            if record.is_tombstone:
                fold.pop(record.key, None)
            else:
                fold[record.key] = record
    return fold


def _outcomes(batches: Sequence[Batch]) -> dict[int, ControlType]:
    """How the transaction of each transactional batch ended, by base offset; open transactions are missing."""
    outcomes: dict[int, ControlType] = {}
    waiting: dict[int, list[int]] = {}
    for batch in batches:
        if batch.is_control and batch.control_type != ControlType.UNKNOWN:
            for base_offset in waiting.pop(batch.producer_id, []):
                outcomes[base_offset] = batch.control_type
        elif batch.is_transactional and not batch.is_control:
            waiting.setdefault(batch.producer_id, []).append(batch.base_offset)
    return outcomes


def _markers_with_data(batches: Sequence[Batch]) -> set[int]:
    """Offsets of the markers whose transaction still has batches in the log."""
    with_data: set[int] = set()
    waiting: set[int] = set()
    for batch in batches:
        if batch.is_control and batch.control_type != ControlType.UNKNOWN:
            if batch.producer_id in waiting:
                with_data.add(batch.last_offset)
            waiting.discard(batch.producer_id)
        elif batch.is_transactional and not batch.is_control:
            waiting.add(batch.producer_id)
    return with_data


def _newest_offsets(
    batches: Sequence[Batch], terms: Terms, outcomes: dict[int, ControlType], clean_below: int
) -> set[int]:
    """Offsets of the records that are their key's newest. A record in the clean part is, unless its key occurs in the
    dirty part."""
    newest: dict[bytes, int] = {}
    clean: dict[bytes, int] = {}
    believed: set[int] = set()
    for batch in batches:
        if batch.base_offset >= terms.bound or batch.is_control:
            continue
        if outcomes.get(batch.base_offset) == ControlType.ABORT:
            continue
        is_clean = batch.last_offset < clean_below
        for record in batch.records:
            if record.key is not None:
                (clean if is_clean else newest)[record.key] = record.offset
                believed |= {record.offset} if is_clean else set()
    superseded = {offset for key, offset in clean.items() if key in newest}
    return (believed - superseded) | set(newest.values())


def _fates(
    batch: Batch, terms: Terms, outcome: ControlType, marker_has_data: bool, newest: Collection[int]
) -> Iterator[Fate]:
    horizon_ms = NO_HORIZON if batch.delete_horizon_ms is None else batch.delete_horizon_ms
    for record in batch.records:
        if batch.is_control:
            fate = rules.marker_fate(
                terms,
                is_end_of_txn=batch.control_type != ControlType.UNKNOWN,
                has_data=marker_has_data,
                offset=record.offset,
                horizon_ms=horizon_ms,
            )
        else:
            fate = rules.record_fate(
                terms,
                has_key=record.key is not None,
                is_newest=record.key is not None and record.offset in newest,
                is_aborted=outcome == ControlType.ABORT,
                is_tombstone=record.is_tombstone,
                batch_last=batch.last_offset,
                horizon_ms=horizon_ms,
            )
        yield fate


def _written(
    batch: Batch, terms: Terms, fates: Sequence[Fate], outcome: ControlType, must_keep: bool
) -> Iterator[Batch]:
    kept = tuple(record for record, fate in zip(batch.records, fates, strict=True) if fate.stays)
    starts_horizon = any(fate in (Fate.TOMBSTONE_STARTS_HORIZON, Fate.MARKER_STARTS_HORIZON) for fate in fates)
    settles = rules.is_settled(
        terms,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
        has_ended=outcome != ControlType.UNKNOWN,
        batch_last=batch.last_offset,
    )
    action = rules.batch_action(
        record_count=len(batch.records),
        kept_count=len(kept),
        must_keep=must_keep,
        starts_horizon=starts_horizon,
        settles=settles,
    )
    if action == Action.DROP:
        return
    attributes = batch.attributes & ~(TRANSACTIONAL if settles else 0)
    if action == Action.COPY:
        yield batch
    elif action == Action.EMPTY:
        yield replace(
            batch,
            attributes=attributes & ~CODEC_MASK & ~DELETE_HORIZON,
            base_timestamp_ms=NO_TIMESTAMP,
            records=(),
            record_count=0,
        )
    elif action == Action.PATCH:
        yield replace(batch, attributes=attributes)
    else:
        yield _with_records(batch, kept, attributes, terms, starts_horizon)


def _with_records(batch: Batch, kept: tuple[Record, ...], attributes: int, terms: Terms, starts_horizon: bool) -> Batch:
    newest_ms = batch.max_timestamp_ms if batch.is_log_append_time else max(r.timestamp_ms for r in kept)
    base_ms = batch.base_timestamp_ms
    if starts_horizon:
        attributes |= DELETE_HORIZON
        base_ms = terms.horizon_ms
    return replace(
        batch,
        attributes=attributes,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=newest_ms,
        records=kept,
        record_count=len(kept),
    )
