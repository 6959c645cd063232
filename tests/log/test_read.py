"""Reading by offset and by time, in the active segment and in closed ones, in memory and from files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sexton.log.log import Log
from sexton.log.types import Read, TimedOffset
from sexton.ports.disk import FileSlice
from sexton.ports.network import SENDFILE_BYTES_MIN
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, decode_all, encode, make_batch
from sexton.types import LeaderEpoch
from tests import logs
from tests.log.helpers import EPOCH, NOW_MS, content, lead, offsets, open_log, plain, read_all

SMALL: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 200}


async def test_an_empty_log_reads_empty(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    assert log.read(0, 1000, 0, min_one=True) == Read([], 0, 0, 0)


async def test_offsets_outside_the_log_are_out_of_range(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"), plain(b"b"), plain(b"c"))
    await log.advance_start(1)
    for offset, end_offset in ((0, 3), (4, 3), (3, 2), (-1, 3)):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 1000, end_offset, min_one=True)
        assert caught.value.code is ErrorCode.offset_out_of_range
    assert log.read(3, 1000, 3, min_one=True).size_bytes == 0


async def test_nothing_at_or_beyond_the_end_is_returned(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"), plain(b"b"), plain(b"c"))
    read = log.read(0, 1000, 2, min_one=True)
    assert offsets(list(decode_all(content(read.parts)))) == [0, 1]
    assert (read.first_offset, read.next_offset) == (0, 2)


async def test_a_batch_that_the_end_falls_into_is_left_out(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"), plain(b"b", b"c", b"d"))
    read = log.read(0, 1000, 3, min_one=True)
    assert offsets(list(decode_all(content(read.parts)))) == [0]


async def test_an_offset_inside_a_batch_brings_the_whole_batch(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"), plain(b"b", b"c", b"d"))
    read = log.read(2, 1000, 4, min_one=True)
    assert offsets(list(decode_all(content(read.parts)))) == [1]


async def test_only_whole_batches_and_at_least_one_if_asked(tmp_path: Path) -> None:
    batch = plain(b"a" * 100)
    log = await open_log(tmp_path)
    lead(log, *[batch] * 4)
    for max_bytes in range(4 * len(batch) + 2):
        whole_count = min(4, max_bytes // len(batch))
        read = log.read(0, max_bytes, 4, min_one=False)
        assert read.size_bytes == whole_count * len(batch)
        assert read.next_offset == whole_count
        read = log.read(0, max_bytes, 4, min_one=True)
        assert read.size_bytes == max(1, whole_count) * len(batch)
        assert read.next_offset == max(1, whole_count)


async def test_large_reads_leave_as_slices_of_the_file_and_small_ones_as_bytes(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a" * SENDFILE_BYTES_MIN), plain(b"b"))
    (large,) = log.read(0, 1 << 20, 2, min_one=True).parts
    assert isinstance(large, FileSlice)
    assert len(list(decode_all(content([large])))) == 2
    (small,) = log.read(1, 1 << 20, 2, min_one=True).parts
    assert isinstance(small, bytes)


async def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a" * 40_000))
    read = log.read(0, 1 << 20, 1, min_one=True)
    await log.flush()
    await log.advance_start(1)
    assert not list((tmp_path / "orders-0").glob("*0000.log"))
    assert len(list(decode_all(content(read.parts)))) == 1


async def test_one_read_goes_over_several_segments(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *[plain(b"a" * 300)] * 6)
    assert len(list((tmp_path / "orders-0").glob("*.log"))) == 3
    read = log.read(0, 1 << 20, 6, min_one=True)
    assert len(read.parts) == 3
    assert offsets(list(decode_all(content(read.parts)))) == [0, 1, 2, 3, 4, 5]


def expected_read(batches: list[Batch], sizes: list[int], offset: int, max_bytes: int, end_offset: int) -> list[int]:
    """What a read with `min_one` returns, said plainly: the first batch that ends above the offset and those after it,
    as long as they end at or below the end, and fit."""
    found: list[int] = []
    left = max_bytes
    for batch, size in zip(batches, sizes, strict=True):
        if batch.next_offset <= offset:
            continue
        if batch.next_offset > end_offset or (found and size > left):
            break
        found.append(batch.base_offset)
        left -= size
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_any_read_of_any_log_returns_what_it_should(tmp_path: Path, seed: int) -> None:
    """Fresh in memory, after a restart, and through closed segments whose index has been dropped and is read again."""
    rng = random.Random(seed)
    made = logs.random_log(rng)
    sizes = [len(logs.encode_as_broker(batch)) for batch in made.batches]
    settings: dict[str, Any] = {
        "segment_bytes": rng.choice([700, 3000, 1 << 20]),
        "index_interval_bytes": rng.choice([0, 100, 4096]),
    }

    def check(log: Log) -> None:
        ends = [batch.next_offset for batch in made.batches]
        for _ in range(300):
            offset = rng.choice([*ends, log.start_offset, rng.randrange(log.start_offset, log.end_offset + 1)])
            end_offset = rng.choice([end for end in (*ends, log.end_offset) if end >= offset])
            max_bytes = rng.choice([1, 100, 1000, 10_000, 1 << 20])
            read = log.read(min(offset, end_offset), max_bytes, end_offset, min_one=True)
            found = offsets(list(decode_all(content(read.parts))))
            assert found == expected_read(made.batches, sizes, read.first_offset, max_bytes, end_offset)
            unread = [batch for batch in made.batches if batch.next_offset > read.next_offset]
            assert not found or unread == made.batches[len(made.batches) - len(unread) :]
            assert not found or made.batches[len(made.batches) - len(unread) - 1].base_offset == found[-1]

    log = await open_log(tmp_path, **settings)
    await log.restart_at(made.bases[0])
    for batch in made.batches:
        log.append_as_follower(logs.encode_as_broker(batch))
    check(log)
    await log.close()
    log = await open_log(tmp_path, is_clean=True, **settings)
    check(log)
    assert offsets(read_all(log, max_bytes=3000)) == offsets(made.batches)
    for index in (tmp_path / "orders-0").glob("*index"):
        index.unlink() if rng.random() < 0.5 else index.write_bytes(b"\1" * rng.randrange(40))
    log = await open_log(tmp_path, is_clean=True, **settings)
    check(log)


# Times


async def test_the_first_record_of_a_time_or_later_is_found(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    for second in range(30):
        lead(log, plain(b"a" * 50, b"b", time_ms=NOW_MS + 1000 * second), epoch=second)
    for second in range(30):
        time_ms = NOW_MS + 1000 * second
        assert log.offset_for_time(time_ms, 60) == TimedOffset(time_ms, 2 * second, LeaderEpoch(second))
        assert log.offset_for_time(time_ms + 1, 60) == TimedOffset(time_ms + 1, 2 * second + 1, LeaderEpoch(second))
        assert log.offset_for_time(time_ms - 500, 60) == TimedOffset(time_ms, 2 * second, LeaderEpoch(second))
    assert log.offset_for_time(NOW_MS + 29_002, 60) is None
    assert log.offset_for_time(NOW_MS + 29_000, 58) is None, "the end comes first"
    assert log.offset_for_time(0, 60) == TimedOffset(NOW_MS, 0, LeaderEpoch(0))


@pytest.mark.parametrize("seed", range(6))
async def test_times_are_found_in_any_order_of_times(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    batches: list[bytes] = []
    flat: list[TimedOffset] = []
    for index in range(60):
        times = [NOW_MS + rng.randrange(5000) for _ in range(rng.choice([1, 3]))]
        made = logs.data(*[(b"k", b"v" * rng.randrange(60))] * len(times), at=len(flat))
        timed = [type(r)(r.offset, t, r.key, r.value) for r, t in zip(made.records, times, strict=True)]
        flat += [TimedOffset(record.timestamp_ms, record.offset, LeaderEpoch(index)) for record in timed]
        batches.append(encode(make_batch(timed, leader_epoch=index)))

    def check(log: Log) -> None:
        for time_ms in range(NOW_MS - 10, NOW_MS + 5010, 7):
            for end_offset in (len(flat), 40):
                after = [one for one in flat if one.timestamp_ms >= time_ms]
                expected = after[0] if after and after[0].offset < end_offset else None
                assert log.offset_for_time(time_ms, end_offset) == expected
        for end_offset in [end for end in ends if end]:
            newest = max(flat[:end_offset], key=lambda one: (one.timestamp_ms, -one.offset))
            assert log.offset_of_max_timestamp(end_offset) == newest
        assert log.offset_of_max_timestamp(0) is None

    ends = [flat.index(one) for one in flat if one.offset == 0 or one.leader_epoch != flat[one.offset - 1].leader_epoch]

    log = await open_log(tmp_path, **SMALL)
    log.append_as_follower(b"".join(batches))
    check(log)
    await log.close()
    check(await open_log(tmp_path, is_clean=True, **SMALL))
    for path in (tmp_path / "orders-0").glob("*.timeindex"):
        path.write_bytes(b"")
    check(await open_log(tmp_path, is_clean=True, **SMALL))


async def test_log_append_time_is_found_without_looking_into_records(tmp_path: Path) -> None:
    log = await open_log(tmp_path, message_timestamp_type="LogAppendTime")
    for second in range(5):
        log.append_as_leader(plain(b"a", b"b", attributes=4), EPOCH, NOW_MS + 1000 * second)
    assert log.offset_for_time(NOW_MS + 1500, 10) == TimedOffset(NOW_MS + 2000, 4, EPOCH)
    assert log.offset_of_max_timestamp(10) == TimedOffset(NOW_MS + 4000, 8, EPOCH)


async def test_records_below_the_log_start_are_not_found_by_time(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a", b"b", b"c"), plain(b"d", time_ms=NOW_MS))
    await log.advance_start(2)
    assert log.offset_for_time(0, 4) == TimedOffset(NOW_MS + 2, 2, EPOCH)
    await log.advance_start(3)
    assert log.offset_of_max_timestamp(4) == TimedOffset(NOW_MS, 3, EPOCH)


async def test_readers_that_are_behind_keep_only_a_few_segments_open(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *[plain(b"a" * 300, time_ms=NOW_MS + index) for index in range(60)])
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    await log.flush()
    for round_offset in range(60):
        log.read(round_offset, 700, 60, min_one=True)
    for index in range(60):
        log.offset_for_time(NOW_MS + index, 60)
    log.aborted_transactions(0, 60)
    log.retention_start(60, NOW_MS)
    assert sum(segment.is_loaded for segment in log.segments.all) <= 5
    assert len(list(Path("/proc/self/fd").iterdir())) < open_before - 20
    assert offsets(read_all(log, max_bytes=700)) == list(range(60))
