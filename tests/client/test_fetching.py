"""What a consumer may see of the bytes that a broker sends."""

from __future__ import annotations

from sexton.client.fetching import Aborted, visible
from sexton.records import batch as batches
from sexton.records.batch import ControlType, Record
from sexton.records.header import TRANSACTIONAL

PRODUCER = 7


def records(first: int, count: int) -> list[Record]:
    return [Record(offset, 1000 + offset, None, str(offset).encode()) for offset in range(first, first + count)]


def plain(first: int, count: int) -> bytes:
    return batches.encode(batches.make_batch(records(first, count)))


def transactional(first: int, count: int, producer_id: int = PRODUCER) -> bytes:
    batch = batches.make_batch(records(first, count), attributes=TRANSACTIONAL, producer_id=producer_id)
    return batches.encode(batch)


def marker(offset: int, kind: ControlType, producer_id: int = PRODUCER) -> bytes:
    return batches.encode(batches.make_marker(offset, kind, producer_id, 0, 1000))


def offsets(data: bytes, start: int = 0, aborted: list[Aborted] | None = None) -> tuple[list[int], int]:
    fetched = visible(data, start, "t-0", aborted)
    return [record.offset for record in fetched.records], fetched.next_offset


def test_a_batch_may_begin_before_the_offset_that_was_asked_for() -> None:
    assert offsets(plain(0, 10) + plain(10, 5), 7) == ([7, 8, 9, 10, 11, 12, 13, 14], 15)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    whole = plain(0, 10)
    for size in range(len(plain(10, 5))):
        assert offsets(whole + plain(10, 5)[:size]) == (list(range(10)), 10)


def test_markers_are_passed_over_and_never_shown() -> None:
    data = transactional(0, 2) + marker(2, ControlType.COMMIT)
    assert offsets(data, 0, []) == ([0, 1], 3)
    assert offsets(data[len(transactional(0, 2)) :], 2, []) == ([], 3)


def test_aborted_records_are_hidden_and_those_of_others_in_between_are_not() -> None:
    data = transactional(0, 2) + plain(2, 2) + transactional(4, 1, 8) + marker(5, ControlType.ABORT)
    data += transactional(6, 1) + marker(7, ControlType.COMMIT) + marker(8, ControlType.COMMIT, 8)
    assert offsets(data, 0, [Aborted(PRODUCER, 0)]) == ([2, 3, 4, 6], 9)
    assert offsets(data, 0) == ([0, 1, 2, 3, 4, 6], 9)


def test_two_aborted_transactions_of_one_producer_in_one_fetch() -> None:
    data = transactional(0, 1) + marker(1, ControlType.ABORT) + transactional(2, 1) + marker(3, ControlType.ABORT)
    data += transactional(4, 1) + marker(5, ControlType.COMMIT)
    assert offsets(data, 0, [Aborted(PRODUCER, 2), Aborted(PRODUCER, 0)]) == ([4], 6)


def test_nothing_gives_nothing() -> None:
    assert offsets(b"", 42) == ([], 42)
