"""Reading a range of offsets: what is asked next, what of an answer counts, and when a replica is given up."""

from __future__ import annotations

import pytest

from sexton.audit.live.errors import ReplicaUnreadableError
from sexton.audit.live.ranges import EMPTY_MAX, PATIENCE_MS, PAUSE_MS, Answer, Asked, Range
from sexton.client.errors import CorruptRecordsError
from sexton.client.fetching import READ_COMMITTED, READ_UNCOMMITTED
from sexton.records.batch import Record, encode, make_batch


def batch(first: int, last: int) -> bytes:
    return encode(make_batch([Record(offset, 0, b"k", b"v") for offset in range(first, last + 1)]))


def answer(*batches: bytes, high_watermark: int = 100, stable: int = 100) -> Answer:
    return Answer(b"".join(batches), high_watermark, stable, 0)


def test_the_next_question_begins_after_the_last_whole_batch() -> None:
    reading = Range("t-0", 0, 50)
    data = batch(0, 9), batch(10, 19), batch(20, 29)[:-1]
    taken = reading.take(answer(*data), 0)
    assert (taken.start, taken.end) == (0, len(data[0]) + len(data[1]))
    assert reading.next().offset == 20
    assert not reading.is_done


def test_a_batch_that_begins_at_the_end_belongs_to_the_next_range() -> None:
    reading = Range("t-0", 0, 20)
    first = batch(0, 19)
    taken = reading.take(answer(first, batch(20, 29)), 0)
    assert (taken.start, taken.end) == (0, len(first))
    assert reading.is_done


def test_a_batch_that_lies_across_a_border_is_read_once() -> None:
    """It begins in the range before, which takes it whole."""
    across, later = batch(15, 24), batch(25, 30)
    before, after = Range("t-0", 0, 20), Range("t-0", 20, 40, takes_straddling=False)
    taken = before.take(answer(batch(0, 14), across, later), 0)
    assert taken.end == len(batch(0, 14)) + len(across)
    assert before.is_done
    taken = after.take(answer(across, later), 0)
    assert (taken.start, taken.end) == (len(across), len(across) + len(later))
    assert after.next().offset == 31


def test_a_log_that_begins_in_the_middle_of_a_batch_is_read_with_that_batch() -> None:
    reading = Range("t-0", 5, 20)
    assert reading.take(answer(batch(0, 19)), 0).start == 0
    assert reading.is_done


def test_it_reads_as_a_consumer_of_committed_records_up_to_the_last_stable_offset_and_as_any_other_beyond() -> None:
    reading = Range("t-0", 0, 30)
    assert reading.next().isolation == READ_COMMITTED
    reading.take(answer(batch(0, 9), stable=10), 0)
    assert reading.next() == Asked(10, READ_COMMITTED, reading.answer_bytes)
    assert reading.take(answer(stable=10), 0).pause_ms == 0
    assert reading.next()[:2] == (10, READ_UNCOMMITTED)
    reading.take(answer(batch(10, 29), stable=10), 0)
    assert reading.is_done


def test_what_compaction_has_emptied_up_to_the_end_is_passed_after_a_few_empty_answers() -> None:
    reading = Range("t-0", 40, 60)
    for _ in range(EMPTY_MAX):
        assert reading.take(answer(stable=50), 0).pause_ms == PAUSE_MS
    reading.take(answer(stable=50), 0)
    assert reading.next()[:2] == (50, READ_COMMITTED)
    reading.take(answer(stable=50), 0)
    for _ in range(EMPTY_MAX + 1):
        assert not reading.is_done
        assert reading.next()[:2] == (50, READ_UNCOMMITTED)
        reading.take(answer(stable=50), 0)
    assert reading.is_done


def test_a_replica_with_fewer_records_than_it_had_is_waited_for_and_then_given_up() -> None:
    reading = Range("t-0", 0, 50)
    assert reading.take(answer(high_watermark=0, stable=0), 1_000).pause_ms == 0
    assert reading.take(answer(high_watermark=0, stable=0), 1_000).pause_ms == PAUSE_MS
    reading.take(answer(high_watermark=0, stable=0), 1_000 + PATIENCE_MS)
    with pytest.raises(ReplicaUnreadableError, match="high watermark went back to 0"):
        reading.take(answer(high_watermark=0, stable=0), 1_001 + PATIENCE_MS)


def test_patience_begins_anew_with_each_record_that_comes() -> None:
    reading = Range("t-0", 0, 50)
    reading.failed("away", 0)
    reading.take(answer(batch(0, 9)), PATIENCE_MS)
    assert reading.failed("away", 2 * PATIENCE_MS) == PAUSE_MS
    with pytest.raises(ReplicaUnreadableError, match=r"offset 10 .* away"):
        reading.failed("away", 3 * PATIENCE_MS + 1)


def test_records_that_are_deleted_meanwhile_are_passed_and_told() -> None:
    reading = Range("t-0", 0, 50)
    assert "offsets 0 to 30" in reading.out_of_range(30)
    assert reading.next().offset == 30


def test_a_log_that_got_shorter_is_given_up() -> None:
    reading = Range("t-0", 40, 50)
    with pytest.raises(ReplicaUnreadableError, match="ends below offset 40"):
        reading.out_of_range(0)


def test_a_batch_that_no_answer_holds_is_asked_for_with_more_room() -> None:
    reading = Range("t-0", 0, 50, answer_bytes=1_000)
    taken = reading.take(answer(batch(0, 40)[:100]), 0)
    assert (taken.start, taken.end, taken.pause_ms) == (0, 0, PAUSE_MS)
    assert reading.next() == Asked(0, READ_COMMITTED, 2_000)


def test_a_leader_that_has_to_load_what_it_is_asked_for_is_given_time() -> None:
    """One of a cloud topic: so many answers without a record need not mean that there is none."""
    reading = Range("t-0", 0, 10, wait_ms=500, empty_max=10)
    for _ in range(10):
        assert reading.next() == Asked(0, READ_COMMITTED, reading.answer_bytes, 500)
        reading.take(answer(stable=10), 0)
    reading.take(answer(batch(0, 9), stable=10), 0)
    assert reading.is_done


def test_bytes_that_are_no_batch_are_an_error_that_says_where() -> None:
    good = batch(0, 9)
    with pytest.raises(CorruptRecordsError, match=f"no batch at byte {len(good)}"):
        Range("t-0", 0, 50).take(answer(good, bytes(100)), 0)
