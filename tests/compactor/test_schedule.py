"""What a compactor takes first, and how it keeps the large from starving the small and the other way round."""

from __future__ import annotations

import uuid
from dataclasses import replace

from sexton.compaction.rate import ByteRate
from sexton.compactor.schedule import AHEAD_MS_MAX, Lane, Limits, choose
from sexton.ports.work_queue import WorkKey, WorkRow

TOPIC = uuid.UUID(int=1)
LIMITS = Limits(large_bytes=1000, job_bytes_max=2000, job_partitions_max=3)
NOW_MS = 1_000_000


def row(partition: int, *, ratio: float = 0.6, size_bytes: int = 100, **fields: int) -> WorkRow:
    made = WorkRow(
        key=WorkKey(1, TOPIC, partition),
        topic="t",
        why="",
        dirty_ratio_ppm=int(ratio * 1e6),
        dirty_bytes=size_bytes,
        total_bytes=size_bytes,
        overdue_ms=0,
        is_requested=False,
        since_ms=NOW_MS,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def chosen(rows: list[WorkRow], lane: Lane = Lane.SMALL, skipped: tuple[WorkKey, ...] = ()) -> list[int]:
    return [one.key.partition for one in choose(rows, lane, LIMITS, skipped)]


def test_the_most_urgent_comes_first() -> None:
    rows = [
        row(0),
        row(1, ratio=0.9),
        row(2, overdue_ms=5),
        row(3, is_requested=True),
    ]
    assert chosen(rows) == [3, 2, 1]


def test_waiting_counts() -> None:
    assert chosen([row(0, ratio=1.0), row(1, ratio=0.5, since_ms=NOW_MS - 60_000)]) == [1, 0]


def test_whatever_is_due_is_done_in_bounded_time_however_much_is_overdue() -> None:
    """Each minute brings as much overdue and requested work as a job can take."""
    plain, waiting, taken_after_ms = row(0, ratio=0.0), [], None
    for minute in range(60):
        now_ms = NOW_MS + minute * 60_000
        waiting += [
            row(3 * minute + number, ratio=1.0, overdue_ms=3_600_000, is_requested=True, since_ms=now_ms)
            for number in (1, 2, 3)
        ]
        job = choose([plain, *waiting], Lane.SMALL, LIMITS)
        assert len(job) == 3
        if plain in job:
            taken_after_ms = now_ms - NOW_MS
            break
        waiting = [one for one in waiting if one not in job]
    assert taken_after_ms is not None
    assert taken_after_ms <= AHEAD_MS_MAX + 60_000


def test_one_that_may_have_little_company_stops_a_job_or_is_alone_in_it() -> None:
    rows = [row(number) for number in range(4)]
    assert [one.key.partition for one in choose(rows, Lane.SMALL, LIMITS, (), {rows[1].key: 1})] == [0]
    assert [one.key.partition for one in choose(rows[1:], Lane.SMALL, LIMITS, (), {rows[1].key: 1})] == [1]
    assert [one.key.partition for one in choose(rows, Lane.SMALL, LIMITS, (), {rows[0].key: 2})] == [0, 1]


def test_large_and_small_have_lanes_of_their_own() -> None:
    rows = [row(0, size_bytes=5000), row(1), row(2, size_bytes=1000)]
    assert chosen(rows) == [1]
    assert chosen(rows, Lane.LARGE) == [0], "one that is more than a job takes is alone in it"
    assert chosen(rows[1:], Lane.LARGE) == [2]


def test_a_job_takes_no_more_than_its_limits() -> None:
    rows = [row(number, size_bytes=900, ratio=0.9 - number / 100) for number in range(5)]
    assert chosen(rows) == [0, 1]
    assert chosen([row(number) for number in range(5)]) == [0, 1, 2]


def test_what_failed_is_left_alone_for_a_while() -> None:
    rows = [row(0), row(1)]
    assert chosen(rows, skipped=(rows[0].key,)) == [1]
    assert chosen([]) == []


def test_bytes_are_read_no_faster_than_allowed_on_average() -> None:
    rate = ByteRate(1000)
    assert rate.wait_ms(5000, 0) == 0
    assert rate.wait_ms(1000, 0) == 5000
    assert rate.wait_ms(1000, 5500) == 500
    assert rate.wait_ms(1000, 60_000) == 0
    assert ByteRate(None).wait_ms(1 << 40, 0) == 0
