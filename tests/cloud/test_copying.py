"""A stretch of a local log as a run of L0: every offset, and nothing that is not what was written."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.cloud.copying import Stretch, UnalignedError, fillers, last_head, stretch_of
from sexton.compaction.leveling import aborted_index, level_run
from sexton.errors import CorruptLogError
from sexton.log.epochs import EpochHistory
from sexton.log.segment import AbortedEntry
from sexton.ports.cloud import AbortedRow
from sexton.records.batch import Record, decode_all, encode, make_batch
from sexton.records.checkpoints import EpochEntry
from sexton.types import INT32_MAX, LeaderEpoch, ProducerId

EPOCHS = EpochHistory([EpochEntry(LeaderEpoch(1), 0), EpochEntry(LeaderEpoch(4), 10)])


def batch(base: int, *times: int, epoch: int = 1) -> bytes:
    records = [Record(base + index, time, b"k", b"v") for index, time in enumerate(times)]
    return encode(make_batch(records, leader_epoch=LeaderEpoch(epoch)))


def stretch(data: bytes, base: int, end: int, epochs: EpochHistory = EPOCHS) -> Stretch:
    return stretch_of(data, base, end, epochs, "t-0")


def spans(data: bytes) -> list[tuple[int, int, int, int]]:
    """Base, end, leader epoch and records of each batch."""
    found = decode_all(data)
    return [(one.base_offset, one.next_offset, one.leader_epoch, one.record_count) for one in found]


def test_batches_without_gaps_are_copied_as_they_are() -> None:
    data = batch(0, 5, 7) + batch(2, 3)
    made = stretch(data, 0, 3)
    assert made.data == data
    assert (made.first_timestamp_ms, made.max_timestamp_ms, made.records_count) == (5, 7, 3)


def test_gaps_at_the_start_in_the_middle_and_at_the_end_are_filled() -> None:
    made = stretch(batch(2, 5) + batch(5, 6), 0, 9)
    assert spans(made.data) == [(0, 2, 1, 0), (2, 3, 1, 1), (3, 5, 1, 0), (5, 6, 1, 1), (6, 9, 1, 0)]
    assert (made.base_offset, made.end_offset, made.records_count) == (0, 9, 2)


def test_a_gap_over_a_change_of_leaders_is_filled_for_each_epoch() -> None:
    made = stretch(batch(15, 5, epoch=4), 7, 16)
    assert spans(made.data) == [(7, 10, 1, 0), (10, 15, 4, 0), (15, 16, 4, 1)]


def test_a_gap_larger_than_a_batch_can_be_takes_several() -> None:
    end = 2 * INT32_MAX + 30
    found = spans(b"".join(fillers(20, end, EPOCHS)))
    assert [(base, stop) for base, stop, _, _ in found] == [
        (20, 20 + INT32_MAX),
        (20 + INT32_MAX, 20 + 2 * INT32_MAX),
        (20 + 2 * INT32_MAX, end),
    ]


def test_what_retention_has_removed_is_filled_too() -> None:
    later = EpochHistory([EpochEntry(LeaderEpoch(4), 30)])
    assert spans(stretch(b"", 10, 30, later).data) == [(10, 30, -1, 0)]
    assert spans(stretch(batch(28, 1, 2, 3, epoch=4), 10, 31, later).data)[-1] == (28, 31, 4, 3)


def test_a_batch_that_begins_below_the_copy_is_told() -> None:
    with pytest.raises(UnalignedError, match="a batch at 0, and the copy ends at 1"):
        stretch(batch(0, 1, 2), 1, 2)


@pytest.mark.parametrize("at", [0, 8, 12, 17, 25, 61, 70])
def test_no_damaged_batch_is_copied(at: int) -> None:
    """The base offset, the length, the epoch, the CRC, what it covers."""
    data = bytearray(batch(0, 1) + batch(1, 2))
    data[at] ^= 0x40
    with pytest.raises((CorruptLogError, UnalignedError)):
        stretch(bytes(data), 0, 2)


def test_a_batch_that_is_cut_off_is_not_copied() -> None:
    with pytest.raises(CorruptLogError):
        stretch(batch(0, 1)[:-1], 0, 1)
    with pytest.raises(CorruptLogError):
        stretch((batch(0, 1) + batch(1, 2))[:100], 0, 2)


def test_nothing_of_a_run_is_stable_and_its_aborted_transactions_are_named() -> None:
    made = stretch(batch(0, 5, 7), 0, 2)
    key = (uuid.UUID(int=1), 3)
    run = made.run(key, LeaderEpoch(9), 8, [AbortedEntry(7, 0, 1, 2)])
    assert (run.topic_id, run.partition, run.writer_epoch, run.position) == (*key, 9, 8)
    assert (run.base_offset, run.end_offset, run.size_bytes, run.stable_offset) == (0, 2, len(made.data), 0)
    assert run.aborted == [AbortedRow(ProducerId(7), 0, 1, 2)]


def test_a_copy_is_recognised_by_its_last_batch() -> None:
    made = stretch(batch(0, 5) + batch(12, 6, epoch=4), 0, 13)
    head = last_head(made.data, "key")
    assert (head.base_offset, head.last_offset, head.leader_epoch) == (12, 12, 4)
    for damaged in (b"", made.data[:-1]):
        with pytest.raises(CorruptLogError):
            last_head(damaged, "key")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=8), st.integers(0, 20))
def test_every_offset_is_there_once_whatever_compaction_has_left(parts: list[tuple[int, int]], more: int) -> None:
    data, at = b"", 0
    for gap, count in parts:
        at += gap
        epoch = EPOCHS.epoch_of(at)
        if EPOCHS.epoch_of(at + count - 1) != epoch:
            at, epoch = 10, LeaderEpoch(4)
        data += batch(at, *range(count), epoch=epoch)
        at += count
    found = spans(stretch(data, 0, at + more).data)
    assert [base for base, _, _, _ in found] == [0, *(end for _, end, _, _ in found)][: len(found)]
    assert (found[-1][1] if found else 0) == at + more
    assert all(EPOCHS.epoch_of(base) == epoch == EPOCHS.epoch_of(end - 1) for base, end, epoch, _ in found)


def test_leveling_takes_what_was_copied() -> None:
    """Fillers, batches that compaction has emptied, and an end without records."""
    data = stretch(batch(2, 5, 6) + batch(15, 7, epoch=4), 0, 30).data
    left = level_run(np.frombuffer(data, dtype=np.uint8), 0, 30, aborted_index([]), "t-0", keeps_end=True)
    kept = list(decode_all(left.tobytes()))
    assert [record.offset for one in kept for record in one.records] == [2, 3, 15]
    assert kept[-1].next_offset == 30
