"""Segments that roll, logs that are cut at either end, epochs, retention, the end of a log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sexton.log import opening
from sexton.log.types import AbortedTransaction
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import ControlType, encode, make_batch
from sexton.records.checkpoints import EpochEntry, decode_leader_epochs, read_partition_metadata
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch, ProducerId
from tests.epochs import history
from tests.log.helpers import (
    EPOCH,
    NOW_MS,
    TOPIC_ID,
    end_transaction,
    files,
    lead,
    offsets,
    open_log,
    plain,
    read_all,
    records,
    sequenced,
)

SMALL: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 200}


def bases(path: Path) -> list[int]:
    return [int(name.removesuffix(".log")) for name in files(path) if name.endswith(".log")]


def snapshots(path: Path) -> list[int]:
    return [int(name.removesuffix(".snapshot")) for name in files(path) if name.endswith(".snapshot")]


def at(offset: int, *values: bytes, time_ms: int = NOW_MS) -> bytes:
    """As a leader sends it to its followers."""
    made = records(*values, time_ms=time_ms)
    moved = [type(record)(record.offset + offset, record.timestamp_ms, record.key, record.value) for record in made]
    return encode(make_batch(moved, leader_epoch=EPOCH))


# Rolling


async def test_a_segment_rolls_when_the_next_batch_would_not_fit(tmp_path: Path) -> None:
    batch = plain(b"a" * 100)
    log = await open_log(tmp_path, segment_bytes=3 * len(batch))
    lead(log, *[batch] * 7)
    assert bases(tmp_path) == [0, 3, 6]


async def test_a_segment_rolls_when_record_times_are_too_far_apart(tmp_path: Path) -> None:
    log = await open_log(tmp_path, segment_ms=1000)
    for time_ms in (0, 1000, 1001, 1500, 3000):
        lead(log, plain(b"a", time_ms=NOW_MS + time_ms))
    assert bases(tmp_path) == [0, 2, 4]


async def test_without_times_a_segment_rolls_by_the_clock(tmp_path: Path) -> None:
    log = await open_log(tmp_path, segment_ms=1000)
    for now_ms in (0, 1000, 1001, 2000):
        log.append_as_leader(plain(b"a", time_ms=-1), EPOCH, NOW_MS + now_ms)
    assert bases(tmp_path) == [0, 2]


async def test_a_segment_rolls_when_its_index_is_full(tmp_path: Path) -> None:
    log = await open_log(tmp_path, segment_index_bytes=36, index_interval_bytes=0)
    lead(log, *[plain(b"a", time_ms=NOW_MS + index) for index in range(12)])
    assert len(bases(tmp_path)) > 1
    await log.close()
    assert all(size <= 4 for size in [file.stat().st_size // 8 for file in (tmp_path / "orders-0").glob("*.index")])


async def test_a_segment_rolls_when_an_offset_would_not_fit_its_index(tmp_path: Path) -> None:
    far = 2**31
    log = await open_log(tmp_path)
    log.append_as_follower(at(0, b"a") + at(far - 1, b"b") + at(far, b"c") + at(3 * far, b"d"))
    assert bases(tmp_path) == [0, far, 3 * far]
    assert offsets(read_all(log)) == [0, far - 1, far, 3 * far]
    await log.close()
    again = await open_log(tmp_path, is_clean=False)
    assert offsets(read_all(again)) == [0, far - 1, far, 3 * far]


async def test_jitter_shortens_the_time_differently_for_each_segment(tmp_path: Path) -> None:
    log = await open_log(tmp_path, segment_ms=1000, segment_jitter_ms=500, message_timestamp_after_max_ms=10**9)
    lead(log, *[plain(b"a", time_ms=NOW_MS + time_ms) for time_ms in range(0, 20_000, 50)])
    lengths = {two - one for one, two in zip(bases(tmp_path), bases(tmp_path)[1:], strict=False)}
    assert len(lengths) > 1
    assert max(lengths) <= 21


async def test_new_settings_count_from_the_next_append(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a" * 100), plain(b"a" * 100))
    log.reconfigure(TopicConfig(segment_bytes=400, max_message_bytes=50))
    with pytest.raises(KafkaError):
        lead(log, plain(b"a" * 100))
    log.reconfigure(TopicConfig(segment_bytes=400))
    lead(log, plain(b"a" * 100))
    assert bases(tmp_path) == [0, 2]


# Copying


async def test_a_follower_takes_batches_with_gaps_and_ignores_a_cut_off_end(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    log.append_as_follower(at(3, b"a", b"b") + at(10, b"c") + at(11, b"d")[:-1])
    assert log.end_offset == 11
    assert offsets(read_all(log)) == [3, 10]
    log.append_as_follower(at(11, b"d")[:20])
    assert log.end_offset == 11


async def test_a_follower_refuses_offsets_that_it_has_and_batches_that_are_broken(tmp_path: Path) -> None:
    broken = bytearray(at(6, b"a"))
    broken[-1] ^= 1
    log = await open_log(tmp_path)
    log.append_as_follower(at(3, b"a", b"b"))
    for bad, code in (
        (at(4, b"c"), ErrorCode.offset_out_of_range),
        (at(5, b"c") + at(5, b"d"), ErrorCode.offset_out_of_range),
        (at(5, b"c") + broken, ErrorCode.corrupt_message),
        (bytes(200), ErrorCode.corrupt_message),
    ):
        with pytest.raises(KafkaError) as caught:
            log.append_as_follower(bad)
        assert caught.value.code is code
    assert log.end_offset == 5


async def test_a_follower_derives_no_epochs_from_batches(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    log.append_as_follower(at(0, b"a"))
    assert log.epochs.entries == ()


async def test_many_batches_that_fit_one_segment_are_one_write(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    log.append_as_follower(b"".join(at(offset, b"a" * 100) for offset in range(20)))
    assert offsets(read_all(log)) == list(range(20))
    assert len(bases(tmp_path)) == 4


# Flushing


async def test_overlapping_flushes_are_one_and_the_next_covers_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"))
    file = log.segments.active.file
    flush, count, going = file.flush, 0, asyncio.Event()

    async def counted(_: object) -> None:
        nonlocal count
        count += 1
        await going.wait()
        await flush()

    monkeypatch.setattr(type(file), "flush", counted)
    first = [asyncio.create_task(log.flush()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lead(log, plain(b"b"))
    later = [asyncio.create_task(log.flush()) for _ in range(5)]
    cancelled = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    cancelled.cancel()
    going.set()
    await asyncio.gather(*first, *later)
    assert count == 2
    assert log.flushed_offset == log.end_offset == 2
    await log.flush()
    assert count == 2, "nothing to do"


async def test_a_flush_writes_what_closed_segments_need(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *[plain(b"a" * 300)] * 7)
    assert log.flushed_offset == 0
    assert snapshots(tmp_path) == []
    await log.flush()
    assert log.flushed_offset == 7
    assert snapshots(tmp_path) == [2, 4, 6]
    assert [name for name in files(tmp_path) if name.endswith("index")] == [
        f"{base:020d}.{kind}" for base in (0, 2, 4) for kind in ("index", "timeindex")
    ]
    assert not log.needs_flush


# Truncation


async def test_truncation_drops_segments_batches_producers_and_epochs(tmp_path: Path) -> None:
    log = await open_log(tmp_path, segment_bytes=500)
    await log.begin_epoch(LeaderEpoch(1))
    lead(log, *[sequenced(index) for index in range(20)])
    await log.begin_epoch(LeaderEpoch(2))
    lead(log, sequenced(0, is_open=True, pid=8))
    end_transaction(log, ControlType.ABORT, pid=8)
    await log.flush()
    assert len(snapshots(tmp_path)) > 1
    await log.truncate_to(5)
    for opened in (log, await open_log(tmp_path, is_clean=False, segment_bytes=500)):
        assert opened.end_offset == opened.flushed_offset == 5
        assert offsets(read_all(opened)) == [0, 1, 2, 3, 4]
        assert bases(tmp_path) == [0]
        assert snapshots(tmp_path) == []
        assert opened.epochs.entries == history((1, 0))
        assert opened.aborted_transactions(0, 100) == []
        producer = opened.producers.get(ProducerId(7))
        assert producer is not None
        assert producer.last_sequence == 4
        assert opened.producers.get(ProducerId(8)) is None
    lead(log, sequenced(5))
    assert offsets(read_all(log)) == [0, 1, 2, 3, 4, 5]


async def test_truncation_keeps_whole_batches_only(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"), plain(b"b", b"c", b"d"))
    await log.truncate_to(3)
    assert log.end_offset == 1


async def test_truncation_of_an_aborted_transactions_end_opens_it_again(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0, is_open=True))
    end_transaction(log, ControlType.ABORT)
    assert log.aborted_transactions(0, 2) == [AbortedTransaction(7, 0)]
    await log.truncate_to(1)
    assert log.aborted_transactions(0, 2) == []
    assert log.last_stable_offset(1) == 0


async def test_truncation_at_the_end_or_beyond_does_nothing(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"))
    await log.truncate_to(1)
    await log.truncate_to(100)
    assert log.end_offset == 1


@pytest.mark.parametrize("offset", range(13))
async def test_a_truncated_log_is_found_the_same_after_any_restart(tmp_path: Path, offset: int) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *[plain(b"a" * 150, time_ms=NOW_MS + 10 * index) for index in range(12)])
    if offset % 2:
        await log.flush()
    await log.truncate_to(offset)
    assert offsets(read_all(log)) == list(range(offset))
    lead(log, plain(b"new", time_ms=NOW_MS + 999))
    found = log.offset_for_time(NOW_MS + 998, log.end_offset)
    assert found is not None
    assert found.offset == offset
    again = await open_log(tmp_path, is_clean=False, **SMALL)
    assert offsets(read_all(again)) == list(range(offset + 1))
    await again.close()
    again = await open_log(tmp_path, is_clean=True, **SMALL)
    assert offsets(read_all(again)) == list(range(offset + 1))


async def test_a_log_that_restarts_is_empty_there(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    await log.begin_epoch(LeaderEpoch(1))
    lead(log, *[sequenced(index) for index in range(20)])
    await log.flush()
    for offset in (1000, 3):
        await log.restart_at(offset)
        for opened in (log, await open_log(tmp_path, is_clean=False, **SMALL)):
            assert opened.start_offset == opened.end_offset == opened.flushed_offset == offset
            assert opened.epochs.entries == ()
            assert len(opened.producers) == 0
            assert opened.size_bytes == 0
        log.append_as_follower(at(offset + 2, b"a"))
        assert offsets(read_all(log)) == [offset + 2]


async def test_truncation_below_the_log_start_restarts(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, *[plain(b"a")] * 5)
    await log.advance_start(3)
    await log.truncate_to(1)
    assert log.start_offset == log.end_offset == 1


# The start


async def test_the_start_moves_and_segments_below_go(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    await log.begin_epoch(LeaderEpoch(1))
    lead(log, *[plain(b"a" * 300)] * 4, epoch=LeaderEpoch(1))
    await log.begin_epoch(LeaderEpoch(5))
    lead(log, *[plain(b"a" * 300)] * 3, epoch=LeaderEpoch(5))
    await log.flush()
    await log.advance_start(5)
    assert bases(tmp_path) == [4, 6]
    for opened in (log, await open_log(tmp_path, is_clean=False, **SMALL)):
        assert opened.start_offset == 5
        assert opened.end_offset == 7
        assert opened.epochs.entries == history((5, 5))
        assert offsets(read_all(opened)) == [5, 6]
    await log.advance_start(2)
    assert log.start_offset == 5, "never back"


async def test_the_start_cannot_pass_the_end(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"))
    with pytest.raises(KafkaError) as caught:
        await log.advance_start(2)
    assert caught.value.code is ErrorCode.offset_out_of_range


async def test_an_emptied_log_remembers_its_producers_and_its_end(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, sequenced(0), sequenced(1))
    await log.advance_start(2)
    for opened in (log, await open_log(tmp_path, is_clean=False)):
        assert opened.start_offset == opened.end_offset == 2
        assert opened.size_bytes == 0
        producer = opened.producers.get(ProducerId(7))
        assert producer is not None
        assert producer.last_sequence == 1
    lead(log, sequenced(2))
    assert offsets(read_all(log)) == [2]


async def test_a_start_that_kafkas_checkpoint_knows_is_taken(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, *[plain(b"a")] * 5)
    await log.close()
    again = await opening.open_log(
        log.disk,
        log.directory,
        "orders",
        0,
        TOPIC_ID,
        TopicConfig(),
        now_ms=NOW_MS,
        stopped_cleanly=True,
        start_offset=3,
    )
    assert again.start_offset == 3


# Retention


async def test_retention_by_time_takes_whole_segments_and_the_active_one_too(tmp_path: Path) -> None:
    settings = {**SMALL, "retention_ms": 1000}
    log = await open_log(tmp_path, **settings)
    lead(log, *[plain(b"a" * 300, time_ms=NOW_MS + 100 * index) for index in range(5)])
    await log.close()
    for opened in (log, await open_log(tmp_path, is_clean=True, **settings)):
        assert opened.retention_start(5, NOW_MS + 1100) == 0
        assert opened.retention_start(5, NOW_MS + 1101) == 2
        assert opened.retention_start(5, NOW_MS + 1301) == 4
        assert opened.retention_start(5, NOW_MS + 1401) == 5
        assert opened.retention_start(4, NOW_MS + 1401) == 4, "not past the high watermark"
        assert opened.retention_start(3, NOW_MS + 1401) == 2


async def test_retention_by_size_keeps_at_least_that_much(tmp_path: Path) -> None:
    batch = plain(b"a" * 300)
    log = await open_log(tmp_path, **SMALL, retention_ms=-1, retention_bytes=5 * len(batch))
    lead(log, *[batch] * 7)
    assert log.retention_start(7, NOW_MS) == 2


async def test_a_topic_that_is_only_compacted_is_not_retained(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL, cleanup_policy=frozenset({"compact"}))
    lead(log, *[plain(b"a" * 300)] * 7)
    assert log.retention_start(7, NOW_MS * 2) == 0


# Epochs


async def test_epochs_are_durable_when_the_call_returns(tmp_path: Path) -> None:
    def kept() -> tuple[EpochEntry, ...]:
        path = tmp_path / "orders-0" / "leader-epoch-checkpoint"
        return decode_leader_epochs(path.read_bytes(), str(path))

    log = await open_log(tmp_path)
    await log.begin_epoch(LeaderEpoch(4))
    assert kept() == history((4, 0))
    lead(log, plain(b"a"), plain(b"b"))
    await log.begin_epoch(LeaderEpoch(4))
    await log.begin_epoch(LeaderEpoch(6))
    await log.begin_epoch(LeaderEpoch(7))
    assert kept() == history((4, 0), (7, 2)), "epoch 6 wrote nothing"
    taken = history((1, 0), (9, 1), (12, 500))
    await log.replace_epochs(taken)
    assert kept() == taken
    assert log.epochs.entries == taken


async def test_a_history_that_reaches_past_the_log_is_cut_at_the_restart(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a"))
    await log.replace_epochs(history((1, 0), (2, 1), (3, 2)))
    await log.flush()
    again = await open_log(tmp_path, is_clean=False)
    assert again.epochs.entries == history((1, 0), (2, 1))


async def test_only_a_log_without_any_history_takes_it_from_its_batches(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    for epoch in (1, 1, 4, 4, 6):
        lead(log, plain(b"a"), epoch=epoch)
    await log.close()
    again = await open_log(tmp_path, is_clean=True)
    assert again.epochs.entries == history((1, 0), (4, 2), (6, 4))
    await again.replace_epochs([])
    await again.close()
    again = await open_log(tmp_path, is_clean=True)
    assert again.epochs.entries == ()


async def test_where_an_epoch_ended(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await log.replace_epochs(history((2, 10), (5, 20), (6, 25)))
    ends = {epoch: log.epochs.end_offset_of(LeaderEpoch(epoch), 30) for epoch in (-1, 1, 2, 3, 4, 5, 6, 7)}
    assert ends == {
        -1: None,
        1: (1, 10),
        2: (2, 20),
        3: (2, 20),
        4: (2, 20),
        5: (5, 25),
        6: (6, 30),
        7: None,
    }
    assert [log.epochs.epoch_of(offset) for offset in (9, 10, 19, 20, 25, 100)] == [-1, 2, 2, 5, 6, 6]


# The directory


async def test_a_directory_says_which_topic_it_belongs_to(tmp_path: Path) -> None:
    await open_log(tmp_path)
    metadata = read_partition_metadata(tmp_path / "orders-0" / "partition.metadata")
    assert metadata is not None
    assert metadata.topic_id == TOPIC_ID


async def test_deletion_leaves_nothing(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a" * 40_000))
    read = log.read(0, 1 << 20, 1, min_one=True)
    await log.delete()
    assert list(tmp_path.iterdir()) == []
    assert read.parts


async def test_a_directory_to_be_deleted_has_kafkas_name_and_fits(tmp_path: Path) -> None:
    topic = "t" * 249
    log = await open_log(tmp_path)
    log.topic = topic
    names: list[str] = []
    disk = log.disk

    class Watched:
        def rename(self, path: str, new_path: str) -> None:
            names.append(Path(new_path).name)
            disk.rename(path, new_path)

        def __getattr__(self, name: str) -> Any:
            return getattr(disk, name)

    log.disk = Watched()
    await log.delete()
    assert len(names[0]) == 255
    assert names[0].startswith("tttt")
    assert names[0].endswith("-delete")
