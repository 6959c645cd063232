"""Idempotent and transactional producers: sequences, duplicates, epochs, and where reading committed ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sexton.log import replay
from sexton.log.log import Log
from sexton.log.producers import Marker, ProducerStates, first_sequence_of, last_sequence_of
from sexton.log.types import AbortedTransaction
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType, Record, encode, make_batch, make_marker
from sexton.records.producer_snapshot import ProducerEntry, decode_producer_snapshot
from sexton.types import OFFSET_MAX, ProducerEpoch, ProducerId
from tests import logs
from tests.log.helpers import (
    EPOCH,
    NOW_MS,
    end_transaction,
    lead,
    marker,
    open_log,
    plain,
    read_all,
    records,
    sequenced,
)
from tests.producers import head_of, producer_at

MAX = 2**31 - 1
ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def refusal(log: Log, batch: bytes, *, from_client: bool = True) -> ErrorCode:
    end_offset = log.end_offset
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(batch, EPOCH, NOW_MS, from_client=from_client)
    assert log.end_offset == end_offset
    return caught.value.code


# Sequences


async def test_a_retry_of_any_of_the_last_five_batches_gets_the_first_answer(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    batches = [sequenced(2 * index, 2) for index in range(5)]
    first = lead(log, *batches)
    for batch, offset in zip(batches, first, strict=True):
        again = log.append_as_leader(batch, EPOCH, NOW_MS)
        assert again.is_duplicate
        assert (again.first_offset, again.last_offset) == (offset, offset + 1)
    assert log.end_offset == 10


@pytest.mark.parametrize("stopped_cleanly", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
async def test_after_a_restart_too_a_retry_of_any_of_the_last_five_batches_gets_the_first_answer(
    tmp_path: Path, stopped_cleanly: bool, segment_bytes: int
) -> None:
    """A snapshot has only the last batch of each producer. A client that had more in flight repeats them all."""
    batches = [sequenced(2 * index, 2) for index in range(7)]
    others = [sequenced(index, pid=8) for index in range(7)]

    log = await open_log(tmp_path, segment_bytes=segment_bytes)
    first = [lead(log, batch, other)[0] for batch, other in zip(batches, others, strict=True)]
    await log.flush()
    if stopped_cleanly:
        await log.close()
    again = await open_log(tmp_path, segment_bytes=segment_bytes, is_clean=stopped_cleanly)
    for batch, offset in list(zip(batches, first, strict=True))[2:]:
        appended = again.append_as_leader(batch, EPOCH, NOW_MS)
        assert appended.is_duplicate
        assert appended.first_offset == offset
    assert refusal(again, batches[1]) is ErrorCode.out_of_order_sequence_number


@pytest.mark.parametrize("stopped_cleanly", [True, False])
async def test_of_deleted_batches_a_producers_last_one_is_known_after_a_restart_and_the_others_are_out_of_order(
    tmp_path: Path, stopped_cleanly: bool
) -> None:
    """As in Kafka, whose snapshots have no more either. Until the restart all five are known."""
    batches = [sequenced(2 * index, 2) for index in range(5)]

    log = await open_log(tmp_path)
    first = lead(log, *batches)
    await log.flush()
    await log.advance_start(log.end_offset)
    assert all(log.append_as_leader(batch, EPOCH, NOW_MS).is_duplicate for batch in batches)
    if stopped_cleanly:
        await log.close()
    again = await open_log(tmp_path, is_clean=stopped_cleanly)
    last = again.append_as_leader(batches[-1], EPOCH, NOW_MS)
    assert last.is_duplicate
    assert last.first_offset == first[-1]
    for batch in batches[:-1]:
        assert refusal(again, batch) is ErrorCode.out_of_order_sequence_number


async def test_a_retry_of_the_sixth_last_batch_is_out_of_order(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, *[sequenced(index) for index in range(6)])
    assert refusal(log, sequenced(0)) is ErrorCode.out_of_order_sequence_number


async def test_a_batch_that_repeats_a_sequence_with_other_records_is_acknowledged_and_dropped(tmp_path: Path) -> None:
    """As in Kafka, and decided so (docs/decisions): the log cannot tell it from a retry that was packed anew."""
    log = await open_log(tmp_path)

    def batch(*values: bytes) -> bytes:
        return plain(*values, producer_id=7, producer_epoch=0, base_sequence=0)

    lead(log, batch(b"first", b"value"))
    again = log.append_as_leader(batch(b"quite", b"another"), EPOCH, NOW_MS)
    assert (again.is_duplicate, again.first_offset) == (True, 0)
    (held,) = read_all(log)
    assert [record.value for record in held.records] == [b"first", b"value"]
    assert refusal(log, batch(b"fewer")) is ErrorCode.out_of_order_sequence_number


async def test_part_of_a_batch_is_no_duplicate_of_it(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, 3))
    assert refusal(log, sequenced(0, 2)) is ErrorCode.out_of_order_sequence_number


async def test_a_gap_in_the_sequence_is_out_of_order(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, 3))
    assert refusal(log, sequenced(4)) is ErrorCode.out_of_order_sequence_number
    lead(log, sequenced(3))


async def test_an_unknown_producer_may_begin_anywhere(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(41), sequenced(42))


async def test_sequences_wrap_around(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    wrapped = sequenced(MAX - 1, 4)  # MAX - 1, MAX, 0, 1
    lead(log, wrapped, sequenced(2))
    assert log.append_as_leader(wrapped, EPOCH, NOW_MS).is_duplicate
    assert refusal(log, sequenced(2, 2)) is ErrorCode.out_of_order_sequence_number


async def test_zero_follows_the_largest_sequence(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(MAX), sequenced(0))


@pytest.mark.parametrize(("first", "count"), [(0, 1), (5, 3), (MAX, 1), (MAX, 2), (MAX - 1, 5), (0, 1000)])
def test_the_two_ends_of_a_batch_tell_each_other(first: int, count: int) -> None:
    assert first_sequence_of(last_sequence_of(first, count), count) == first


async def test_a_new_epoch_begins_at_zero_and_ends_the_old_one(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0), sequenced(1))
    assert refusal(log, sequenced(2, epoch=1)) is ErrorCode.out_of_order_sequence_number
    lead(log, sequenced(0, epoch=1))
    assert refusal(log, sequenced(2, epoch=0)) is ErrorCode.invalid_producer_epoch
    assert refusal(log, sequenced(0, epoch=0)) is ErrorCode.invalid_producer_epoch


async def test_producers_do_not_mind_each_other(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, pid=1), sequenced(0, pid=2), plain(b"v"), sequenced(1, pid=1), sequenced(1, pid=2))


async def test_what_the_broker_itself_appends_needs_no_sequence(tmp_path: Path) -> None:
    offsets_of_a_group = plain(b"v", producer_id=7, producer_epoch=2, base_sequence=-1)
    log = await open_log(tmp_path)
    for _ in range(2):
        log.append_as_leader(offsets_of_a_group, EPOCH, NOW_MS, from_client=False)
    assert log.end_offset == 2
    stale = plain(b"v", producer_id=7, producer_epoch=1, base_sequence=-1)
    assert refusal(log, stale, from_client=False) is ErrorCode.invalid_producer_epoch


def test_silent_producers_are_forgotten_unless_they_hold_something_open() -> None:
    states = ProducerStates("orders-0", expiry_ms=1000)
    states.note_data(head_of(producer_at(1), 0, 0), 0, 0, NOW_MS)
    states.note_data(head_of(producer_at(2), 0, 1, is_transactional=True), 1, 1, NOW_MS)
    states.note_data(head_of(producer_at(3), 0, 2), 2, 2, NOW_MS + 1)
    states.expire(NOW_MS + 1000)
    assert [producer.producer_id for producer in states] == [2, 3]


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("restart", [None, "clean", "after a crash"])
async def test_a_producer_of_records_from_long_ago_is_remembered_as_long_as_any_other(
    tmp_path: Path, is_leader: bool, restart: str | None
) -> None:
    """What is mirrored or loaded anew keeps its times. That says nothing about when its producer has stopped."""
    day_ms = 86_400_000
    value = [Record(0, NOW_MS - 2 * day_ms, b"key", b"v")]
    batch = encode(make_batch(value, leader_epoch=EPOCH, producer_id=7, producer_epoch=0, base_sequence=0))

    log = await open_log(tmp_path)
    if is_leader:
        lead(log, batch)
    else:
        log.append_as_follower(batch)
    if restart is not None:
        await log.flush()
        await log.close()
        log = await open_log(tmp_path, is_clean=restart == "clean", now_ms=NOW_MS + day_ms // 2)
    log.producers.expire(NOW_MS + day_ms - 1)
    assert log.append_as_leader(batch, EPOCH, NOW_MS + day_ms - 1).is_duplicate
    log.producers.expire(NOW_MS + 2 * day_ms)
    assert not [*log.producers]


def test_a_snapshot_brings_back_the_state_but_for_older_batches() -> None:
    states = ProducerStates("orders-0", expiry_ms=1000)
    for first in (0, 2, 4):
        states.note_data(head_of(producer_at(1, 4), first, first, last_offset=first + 1), first, first + 1, NOW_MS)
    states.note_data(head_of(producer_at(2), 9, 6, is_transactional=True), 6, 6, NOW_MS)
    states.note_marker(ProducerId(3), ProducerEpoch(5), 7, NOW_MS, Marker(False, 11))
    copy = ProducerStates("orders-0", expiry_ms=1000)
    copy.load(decode_producer_snapshot(states.encode(), "snapshot"), NOW_MS)
    assert copy.encode() == states.encode()
    assert copy.first_unstable_offset(OFFSET_MAX) == 6
    past = copy.duplicate_of(ProducerId(1), ProducerEpoch(4), 4, 2)
    assert past is not None
    assert (past.first_offset, past.last_offset) == (4, 5)
    assert copy.duplicate_of(ProducerId(1), ProducerEpoch(4), 2, 2) is None
    assert decode_producer_snapshot(copy.encode(), "")[2] == ProducerEntry(
        ProducerId(3), ProducerEpoch(5), -1, -1, 0, NOW_MS, 11, -1
    )


# Transactions


async def test_an_open_transaction_holds_the_last_stable_offset(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"v"))
    assert log.last_stable_offset(1) == 1
    lead(log, sequenced(0, is_open=True), plain(b"v"))
    assert log.last_stable_offset(3) == 1
    end_transaction(log, COMMIT)
    assert log.last_stable_offset(3) == 1, "the marker is not committed"
    assert log.last_stable_offset(4) == 4


@pytest.mark.parametrize("stopped_cleanly", [True, False])
@pytest.mark.parametrize("recalled_bytes", [1 << 20, 1])
@pytest.mark.parametrize("later_count", [0, 3])
async def test_after_a_restart_too_a_marker_that_is_not_committed_ends_nothing(
    tmp_path: Path, stopped_cleanly: bool, recalled_bytes: int, later_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator: a replica compacted what its own high watermark did not show to have ended."""
    monkeypatch.setattr(replay, "RECALLED_BYTES", recalled_bytes)

    log = await open_log(tmp_path)
    lead(log, plain(b"v"), sequenced(0, is_open=True), plain(b"v"))
    end_transaction(log, COMMIT)
    for _ in range(later_count):
        log.close_active(NOW_MS)
        lead(log, plain(b"v"))
    await log.flush()
    if stopped_cleanly:
        await log.close()
    again = await open_log(tmp_path, is_clean=stopped_cleanly)
    assert again.last_stable_offset(3) <= 1
    assert again.last_stable_offset(4 + later_count) == 4 + later_count


async def test_the_oldest_of_several_transactions_counts(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, pid=1, is_open=True), sequenced(0, pid=2, is_open=True))
    assert log.last_stable_offset(2) == 0
    end_transaction(log, ABORT, pid=1)
    assert log.last_stable_offset(3) == 1
    end_transaction(log, COMMIT, pid=2)
    assert log.last_stable_offset(4) == 4


async def test_aborted_transactions_are_listed_for_the_offsets_they_touch(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, pid=1, is_open=True), plain(b"v"), sequenced(0, pid=2, is_open=True))
    end_transaction(log, COMMIT, pid=2)
    end_transaction(log, ABORT, pid=1)
    lead(log, sequenced(1, pid=1, is_open=True))
    end_transaction(log, ABORT, pid=1)
    first, second = AbortedTransaction(1, 0), AbortedTransaction(1, 5)
    assert log.aborted_transactions(0, 7) == [first, second]
    assert log.aborted_transactions(0, 5) == [first]
    assert log.aborted_transactions(4, 5) == [first]
    assert log.aborted_transactions(5, 7) == [second]


async def test_a_leader_refuses_a_plain_batch_inside_a_transaction(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, is_open=True))
    assert refusal(log, sequenced(1)) is ErrorCode.invalid_txn_state


async def test_a_marker_with_nothing_open_changes_nothing_but_the_epoch(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    end_transaction(log, ABORT, epoch=3)
    assert log.aborted_transactions(0, 10) == []
    assert log.last_stable_offset(1) == 1
    assert refusal(log, sequenced(0, epoch=2)) is ErrorCode.invalid_producer_epoch
    lead(log, sequenced(0, epoch=3))


async def test_markers_of_old_epochs_are_refused(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, epoch=3, is_open=True))
    assert refusal(log, marker(ABORT, epoch=2), from_client=False) is ErrorCode.invalid_producer_epoch
    assert log.last_stable_offset(1) == 0


async def test_a_follower_takes_a_plain_batch_inside_a_transaction(tmp_path: Path) -> None:
    """Trap: a settled batch of the same producer, sent by a leader that has compacted, ends nothing."""
    log = await open_log(tmp_path)
    open_batch = make_batch(
        records(b"v"),
        base_offset=0,
        last_offset=0,
        attributes=0x10,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    settled = make_batch([*logs.data((b"k", b"v"), at=1).records], producer_id=7, producer_epoch=0, base_sequence=1)
    log.append_as_follower(encode(open_batch) + encode(settled))
    assert log.last_stable_offset(2) == 0
    log.append_as_follower(encode(make_marker(2, ABORT, 7, 0, NOW_MS)))
    assert log.aborted_transactions(0, 3) == [AbortedTransaction(7, 0)]


async def test_a_follower_takes_a_marker_with_nothing_open_beside_an_open_transaction(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    log.append_as_follower(encode(logs.in_transaction((b"k", b"v"), at=0, pid=7)))
    log.append_as_follower(encode(make_marker(1, COMMIT, 8, 0, NOW_MS)))
    assert log.last_stable_offset(2) == 0
    log.append_as_follower(encode(make_marker(2, COMMIT, 7, 0, NOW_MS)))
    assert log.last_stable_offset(3) == 3


@pytest.mark.parametrize("seed", range(20))
async def test_a_follower_of_any_log_knows_what_was_aborted_and_where_it_is_stable(tmp_path: Path, seed: int) -> None:
    """Against plain answers, live and after a restart of either kind."""
    made = logs.random_log(random.Random(seed))
    settings: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 300}

    def check(log: Log) -> None:
        assert log.last_stable_offset(log.end_offset) == logs.last_stable_offset(made.batches, log.end_offset)
        expected = [
            AbortedTransaction(producer_id, first) for producer_id, first, _, _ in logs.aborted_entries(made.batches)
        ]
        assert log.aborted_transactions(log.start_offset, log.end_offset + 1) == expected

    log = await open_log(tmp_path, now_ms=0, **settings)
    await log.restart_at(made.bases[0])
    for batch in made.batches:
        log.append_as_follower(logs.encode_as_broker(batch))
    check(log)
    await log.flush()
    states = log.producers.encode()
    log = await open_log(tmp_path, is_clean=False, now_ms=0, **settings)
    check(log)
    assert log.producers.encode() == states
    await log.close()
    log = await open_log(tmp_path, is_clean=True, now_ms=0, **settings)
    check(log)
    assert log.producers.encode() == states
