"""From what tasks found to what an audit judges: replicas from facts of their stretches, keys from rows of codes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sexton.audit.keys import DifferingKey, OnReplica, Sight
from sexton.audit.replica import AbortedClaim, Replica
from sexton.audit.standing import Standing, with_markers
from sexton.compaction.transactions import join_events
from sexton.records.batch import Batch, Record
from sexton.records.kernels.keys import FLAG_BITS, TOMBSTONE
from sexton.records.keyhash import HashKey, hash_key
from sexton.spark.fold_compare import NO_CODE, View, Why
from sexton.spark.fold_pass import GAP, IN_TRANSACTION, StretchFacts
from sexton.types import NO_OFFSET


def standing_of(replica: Replica, facts: Sequence[StretchFacts], *, is_current: bool = False) -> Standing:
    parts = sorted((each for each in facts if each.first_offset != NO_OFFSET), key=lambda each: each.first_offset)
    events = join_events([each.events for each in parts])
    end = max((each.read_to for each in facts if each.read_to != NO_OFFSET), default=replica.log_start_offset)
    claims = [*replica.aborted, *(AbortedClaim(*claim) for each in facts for claim in each.aborted)]
    known = replica.high_watermark
    # It may have begun to be deleted before it was read: what was deleted first elsewhere is read there, and not here.
    start = max(replica.log_start_offset, *(each.log_start_offset for each in facts), NO_OFFSET)
    replica = replace(replica, log_start_offset=start)
    return Standing(
        replica=replica,
        events=events,
        gaps=np.concatenate([np.zeros(0, dtype=GAP), *_gaps(parts, replica.log_start_offset)]),
        has_all_gaps=all(len(each.gaps) == each.gaps_count for each in parts),
        end_offset=end,
        high_watermark=end if known is None else min(end, known),
        is_current=is_current,
        aborted=with_markers(claims, events),
        epochs=_epochs(parts),
        record_count=sum(each.record_count for each in parts),
        keyless_count=sum(each.keyless_count for each in parts),
        size_bytes=sum(each.size_bytes for each in parts),
        notes=tuple(note for each in facts for note in each.notes),
        failure=next((each.failure for each in facts if each.failure is not None), None),
    )


def _epochs(parts: Sequence[StretchFacts]) -> tuple[tuple[int, int], ...]:
    ends: dict[int, int] = {}
    for epoch, end in (pair for each in parts for pair in each.epochs):
        ends[epoch] = max(end, ends.get(epoch, end))
    return tuple(ends.items())


def _gaps(parts: Sequence[StretchFacts], start: int) -> Iterator[npt.NDArray[np.void]]:
    """Those inside of stretches, and between them."""
    time_ms = -1
    for each in parts:
        if each.first_offset > start:
            yield np.array([(start, each.first_offset, time_ms, each.max_timestamp_ms)], dtype=GAP)
        yield each.gaps
        start, time_ms = each.end_offset, each.max_timestamp_ms


def view_of(standing: Standing) -> View:
    committed_end = max(standing.committed_end, standing.end_offset) if standing.lags else standing.committed_end
    return View(
        standing.start_offset, standing.end_offset, standing.visible_end, standing.events.markers, committed_end
    )


# ---- Records of differing keys ----


def looked_up_key(
    row: np.void, readable: Sequence[int], found: Mapping[int, Mapping[int, Batch]], key: HashKey
) -> DifferingKey | None:
    """None if a record is not there any more, or is another one."""
    hashed = int(row["first"]), int(row["second"])
    replicas = {}
    records: dict[int, dict[int, Record | None]] = {}
    for place, number in enumerate(readable):
        newest, hidden = int(row["code"][place]), int(row["hidden"][place])
        seen = _sight(newest, found[number], hashed, key)
        if newest != NO_CODE and not newest & TOMBSTONE and seen is None:
            return None
        if seen is not None and not seen.is_tombstone:
            records.setdefault(seen.offset, {})[int(row["content"][place])] = _record(found[number], seen.offset)
        replicas[number] = OnReplica(
            seen or (None if newest == NO_CODE else sight_of_code(newest)),
            int(row["content"][place]),
            _sight(hidden, found[number], hashed, key),
        )
    if any(len(each) > 1 and len(set(each.values())) == 1 for each in records.values()):
        return None  # they were different when they were read: one was truncated since, and written again
    return DifferingKey(*hashed, replicas, is_pinned=int(row["why"]) == Why.PINNED)


def sight_of_code(code: int) -> Sight:
    """What an entry tells by itself."""
    return Sight(code >> FLAG_BITS, bool(code & TOMBSTONE), bool(code & IN_TRANSACTION))


def _sight(code: int, batches: Mapping[int, Batch], hashed: tuple[int, int], key: HashKey) -> Sight | None:
    if code == NO_CODE or (batch := batches.get(code >> FLAG_BITS)) is None:
        return None
    record = _record(batches, code >> FLAG_BITS)
    if record is None or record.key is None or hash_key(record.key, key) != hashed:
        return None
    has_sequence = batch.base_sequence >= 0
    return Sight(
        offset=record.offset,
        is_tombstone=record.is_tombstone,
        is_transactional=batch.is_transactional,
        key=record.key,
        value=record.value,
        timestamp_ms=record.timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.base_sequence + record.offset - batch.base_offset if has_sequence else -1,
        leader_epoch=batch.leader_epoch,
        was_looked_up=True,
    )


def _record(batches: Mapping[int, Batch], offset: int) -> Record | None:
    batch = batches.get(offset)
    return None if batch is None else next((each for each in batch.records if each.offset == offset), None)


def key_of_codes(row: np.void, numbers: Sequence[int]) -> DifferingKey:
    """Where there are no records to look at, only entries."""
    replicas = {
        number: OnReplica(
            _of_code(int(row["code"][place])), int(row["content"][place]), _of_code(int(row["hidden"][place]))
        )
        for place, number in enumerate(numbers)
    }
    is_pinned = int(row["why"]) == Why.PINNED
    return DifferingKey(int(row["first"]), int(row["second"]), replicas, is_pinned=is_pinned)


def _of_code(code: int) -> Sight | None:
    return None if code == NO_CODE else sight_of_code(code)
