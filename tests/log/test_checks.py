"""What a leader checks of a batch, without a log: any kind of log can call it."""

from __future__ import annotations

from typing import Any

import pytest

from sexton.log.checks import (
    Rules,
    check_client_batch,
    check_copied,
    check_frame,
    check_marker,
    check_producer,
    check_time,
    note_producer,
)
from sexton.log.epochs import EpochHistory
from sexton.log.producers import Marker, PastBatch, ProducerStates
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType, encode, make_batch, make_marker
from sexton.records.header import CONTROL, DELETE_HORIZON, TRANSACTIONAL, unpack
from sexton.settings.schema import DAY_MS
from sexton.settings.topic import TopicConfig
from sexton.types import ProducerEpoch, ProducerId
from tests.log.helpers import NOW_MS, plain, records

PLACE = "orders-0"
SIZE_MAX = 1_000


def refusal(check: object, *args: object) -> ErrorCode:
    assert callable(check)
    with pytest.raises(KafkaError) as caught:
        check(*args)
    assert PLACE in caught.value.message
    return caught.value.code


def test_a_frame_is_one_whole_batch_that_is_not_too_large() -> None:
    batch = plain(b"a")
    assert check_frame(batch, PLACE, SIZE_MAX) == unpack(batch)
    assert refusal(check_frame, batch[:-1], PLACE, SIZE_MAX) is ErrorCode.corrupt_message
    assert refusal(check_frame, batch[:20], PLACE, SIZE_MAX) is ErrorCode.corrupt_message
    assert refusal(check_frame, batch + batch, PLACE, SIZE_MAX) is ErrorCode.invalid_record
    assert refusal(check_frame, batch[:-1] + b"!", PLACE, SIZE_MAX) is ErrorCode.corrupt_message
    assert refusal(check_frame, batch, PLACE, len(batch) - 1) is ErrorCode.message_too_large
    old = batch[:16] + b"\1" + batch[17:]
    assert refusal(check_frame, old, PLACE, SIZE_MAX) is ErrorCode.unsupported_for_message_format


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 1, "last_offset": 1},
        {"last_offset": 3},
        {"attributes": CONTROL},
        {"attributes": DELETE_HORIZON},
        {"attributes": 5},
        {"producer_id": 7, "base_sequence": -1},
    ],
)
def test_a_client_may_not_send_what_only_brokers_write(fields: dict[str, Any]) -> None:
    good = unpack(plain(b"a"))
    check_client_batch(good, PLACE)
    assert refusal(check_client_batch, good._replace(**fields), PLACE) is ErrorCode.invalid_record


def test_times_are_checked_by_the_topics_rules() -> None:
    rules = Rules.of(PLACE, TopicConfig(message_timestamp_before_max_ms=10, message_timestamp_after_max_ms=20))
    head = unpack(plain(b"a"))
    for now_ms in (NOW_MS - 20, NOW_MS, NOW_MS + 10):
        check_time(head, rules, now_ms)
    assert refusal(check_time, head, rules, NOW_MS - 21) is ErrorCode.invalid_timestamp
    assert refusal(check_time, head, rules, NOW_MS + 11) is ErrorCode.invalid_timestamp


def of_producer(sequence: int, epoch: int = 0) -> bytes:
    return plain(b"a", producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def test_a_producers_batches_come_in_sequence_and_a_repeated_one_is_told_where_it_was_appended() -> None:
    producers = ProducerStates(PLACE, DAY_MS)
    for sequence in range(2):
        head = unpack(of_producer(sequence))
        assert check_producer(head, producers, True, None) is None
        assert note_producer(head, producers, 50 + sequence, 50 + sequence, NOW_MS, None) is None
    assert check_producer(unpack(of_producer(0)), producers, True, None) == PastBatch(0, 0, 50, 50, NOW_MS)
    code = refusal(check_producer, unpack(of_producer(3)), producers, True, None)
    assert code is ErrorCode.out_of_order_sequence_number


def test_a_batch_whose_verification_is_void_is_refused() -> None:
    producers = ProducerStates(PLACE, DAY_MS)
    head = unpack(plain(b"a", attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0))
    verification = producers.begin_verification(ProducerId(7), ProducerEpoch(0))
    assert check_producer(head, producers, True, verification) is None
    producers.void_verifications(ProducerId(7), ProducerEpoch(0))
    assert refusal(check_producer, head, producers, True, verification) is ErrorCode.invalid_txn_state


def test_a_marker_ends_the_transaction_and_a_fenced_one_does_not() -> None:
    producers = ProducerStates(PLACE, DAY_MS)
    opening = unpack(plain(b"a", attributes=TRANSACTIONAL, producer_id=7, producer_epoch=1, base_sequence=0))
    note_producer(opening, producers, 50, 50, NOW_MS, None)
    late, ending = (encode(make_marker(0, ControlType.ABORT, 7, epoch, NOW_MS)) for epoch in (0, 1))
    code = refusal(check_marker, memoryview(late), unpack(late), producers, PLACE)
    assert code is ErrorCode.invalid_producer_epoch
    marker = check_marker(memoryview(ending), unpack(ending), producers, PLACE)
    assert marker == (Marker(True, 0), NOW_MS)
    ended = note_producer(unpack(ending), producers, 51, 51, NOW_MS, marker)
    assert ended is not None
    assert (ended.first_offset, ended.last_offset, ended.is_abort) == (50, 51, True)


def at(offset: int) -> bytes:
    return encode(make_batch(records(b"a"), base_offset=offset, last_offset=offset))


def test_a_follower_copies_whole_batches_in_order_with_gaps_only_where_something_was_compacted() -> None:
    copied = at(5) + at(6) + at(9)
    none = EpochHistory()
    heads = check_copied(memoryview(copied + at(10)[:-1]), PLACE, 5, 9, none)
    assert [head.base_offset for head in heads] == [5, 6, 9]
    assert refusal(check_copied, memoryview(copied), PLACE, 5, 8, none) is ErrorCode.offset_out_of_range
    assert refusal(check_copied, memoryview(copied), PLACE, 6, 9, none) is ErrorCode.offset_out_of_range
    damaged = memoryview(copied[:-1] + b"!")
    assert refusal(check_copied, damaged, PLACE, 5, 9, none) is ErrorCode.corrupt_message
