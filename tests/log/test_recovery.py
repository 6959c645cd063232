"""What a crash leaves behind, byte by byte, and what is damage instead."""

from __future__ import annotations

import random
import shutil
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

import pytest

from sexton.errors import CorruptLogError, NotALogError, UnsupportedFormatError
from sexton.log import flushed
from sexton.log.flushed import FlushedPoint
from sexton.log.log import Log
from sexton.records import indexes
from sexton.records.batch import ControlType, encode, make_marker
from sexton.records.checkpoints import EpochEntry
from sexton.records.producer_snapshot import decode_producer_snapshot
from sexton.types import LeaderEpoch, ProducerId
from tests import logs
from tests.log.helpers import (
    EPOCH,
    NOW_MS,
    end_transaction,
    files,
    lead,
    offsets,
    open_log,
    plain,
    read_all,
    run,
    sequenced,
)
from tests.log.test_changes import at, bases, snapshots

SMALL: dict[str, Any] = {"segment_bytes": 600, "index_interval_bytes": 100}


def log_file(path: Path, base_offset: int) -> Path:
    return path / "orders-0" / f"{base_offset:020d}.log"


async def reopen(path: Path, **settings: Any) -> Log:
    """After a crash."""
    return await open_log(path, is_clean=False, **settings)


def write(path: Path, *batches: bytes, is_closed: bool = False, **settings: Any) -> None:
    async def go() -> None:
        log = await open_log(path, **settings)
        lead(log, *batches)
        await log.flush()
        if is_closed:
            await log.close()

    run(go())


def common_bytes(one: bytes, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# Torn ends


@pytest.mark.parametrize("noise", [b"", b"\0", b"\xff", b"\x02"])
def test_a_log_cut_at_any_byte_keeps_every_whole_batch(tmp_path: Path, noise: bytes) -> None:
    """And what stands in place of the rest, zeros or noise, does not matter."""
    batches = [sequenced(0, is_open=True), plain(b"a" * 30), sequenced(1, 2, is_open=True)]
    write(tmp_path / "whole", *batches)
    whole = log_file(tmp_path / "whole", 0).read_bytes()
    ends = [0]
    for batch in batches:
        ends.append(ends[-1] + len(batch))

    async def go() -> None:
        for size in range(len(whole) + 1):
            path = tmp_path / f"cut {size}"
            shutil.copytree(tmp_path / "whole", path)
            damaged = whole[:size] + noise * (len(whole) - size)
            log_file(path, 0).write_bytes(damaged)
            log = await reopen(path)
            intact = common_bytes(whole, damaged)  # noise may happen to be what was there
            kept_count = sum(end <= intact for end in ends) - 1
            assert offsets(read_all(log)) == [0, 1, 2][:kept_count]
            assert log.size_bytes == log_file(path, 0).stat().st_size == ends[kept_count]
            assert log.flushed_offset == log.end_offset == [0, 1, 2, 4][kept_count]
            assert log.last_stable_offset(log.end_offset) == 0
            lead(log, plain(b"next"))
            assert offsets(read_all(await reopen(path))) == [*[0, 1, 2][:kept_count], log.end_offset - 1]
            shutil.rmtree(path)

    run(go())


@pytest.mark.parametrize("seed", range(40))
def test_random_noise_after_the_last_batch_is_cut_off(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    write(tmp_path, plain(b"a"), plain(b"b"))
    with log_file(tmp_path, 0).open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 16, 17, 61, 62, 500, 5000])))
    assert offsets(read_all(run(reopen(tmp_path)))) == [0, 1]


def test_a_torn_segment_takes_the_later_ones_with_it_if_nothing_says_they_were_flushed(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path, **SMALL)
        lead(log, *[plain(b"a" * 200)] * 6)  # two a segment, and no flush
        data = log_file(tmp_path, 2).read_bytes()
        log_file(tmp_path, 2).write_bytes(data[:-1])
        again = await reopen(tmp_path, **SMALL)
        assert offsets(read_all(again)) == [0, 1, 2]
        assert bases(tmp_path) == [0, 2]

    run(go())


def test_a_segment_that_does_not_follow_the_one_before_goes_if_nothing_says_it_was_flushed(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path, **SMALL)
        lead(log, *[plain(b"a" * 200)] * 6)
        data = log_file(tmp_path, 2).read_bytes()
        log_file(tmp_path, 2).write_bytes(data[: len(data) // 2])  # a whole batch less
        again = await reopen(tmp_path, **SMALL)
        assert offsets(read_all(again)) == [0, 1, 2]
        lead(again, plain(b"b"))
        assert offsets(read_all(await reopen(tmp_path, **SMALL))) == [0, 1, 2, 3]

    run(go())


def test_a_gap_between_flushed_segments_is_no_loss(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path, **SMALL)
        for offset in (0, 10, 30, 60):
            log.append_as_follower(at(offset, b"a" * 400))
        await log.flush()
        again = await reopen(tmp_path, **SMALL)
        assert offsets(read_all(again)) == [0, 10, 30, 60]

    run(go())


# Only what may be torn is walked


def test_segments_below_the_certificate_are_not_looked_at(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path, **SMALL)
        lead(log, *[plain(b"a" * 200)] * 6)
        await log.flush()
        path = log_file(tmp_path, 0)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        assert (await reopen(tmp_path, **SMALL)).end_offset == 6

    run(go())


def test_after_a_clean_stop_nothing_is_walked_but_the_end(tmp_path: Path) -> None:
    write(tmp_path, *[sequenced(index) for index in range(100)], is_closed=True, index_interval_bytes=100)
    path = log_file(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)

    async def go() -> None:
        log = await open_log(tmp_path, is_clean=True, index_interval_bytes=100)
        assert log.end_offset == log.flushed_offset == 100
        producer = log.producers.get(ProducerId(7))
        assert producer is not None
        assert producer.last_sequence == 99
        lead(log, sequenced(100))

    run(go())


def test_recovery_leaves_certificates_so_that_the_next_one_is_short(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path, **SMALL)
        lead(log, *[sequenced(index, 3) for index in range(0, 60, 3)])
        assert snapshots(tmp_path) == []
        await reopen(tmp_path, **SMALL)
        assert snapshots(tmp_path) == bases(tmp_path)[1:]
        for base in bases(tmp_path)[1:]:
            snapshot = tmp_path / "orders-0" / f"{base:020d}.snapshot"
            (entry,) = decode_producer_snapshot(snapshot.read_bytes(), str(snapshot))
            assert (entry.last_offset, entry.last_sequence) == (base - 1, base - 1)

    run(go())


# Damage


THIRD = FlushedPoint(uuid.UUID(int=1), 3, EPOCH)
"""Three records were on disk when it was kept."""


async def with_history(path: Path, **settings: Any) -> Log:
    log = await open_log(path, **settings)
    await log.begin_epoch(EPOCH)
    return log


def write_with_history(path: Path, *batches: bytes) -> None:
    async def go() -> None:
        lead(await with_history(path), *batches)

    run(go())


def test_a_corrupt_batch_below_the_flushed_point_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    write_with_history(tmp_path, plain(b"a" * 50), plain(b"b" * 50), plain(b"c" * 50))
    path = log_file(tmp_path, 0)
    size = len(plain(b"a" * 50))
    whole = path.read_bytes()
    for at_byte in (size + 8, size + 11, size + 16, size + 17, size + 25, size + 80, 2 * size - 1):
        bad = bytearray(whole)
        bad[at_byte] ^= 0x40
        path.write_bytes(bad)
        before = {file: (tmp_path / "orders-0" / file).read_bytes() for file in files(tmp_path)}
        with pytest.raises(CorruptLogError) as caught:
            run(reopen(tmp_path, flushed_point=THIRD))
        assert str(path) in caught.value.place
        assert f"byte {size}" in caught.value.place
        assert "another replica" in caught.value.remedy
        assert {file: (tmp_path / "orders-0" / file).read_bytes() for file in files(tmp_path)} == before
    path.write_bytes(whole)
    assert run(reopen(tmp_path, flushed_point=THIRD)).end_offset == 3


def test_a_hole_above_the_flushed_point_is_cut_off_with_what_follows_and_leaves_a_doubt(tmp_path: Path) -> None:
    """Pages of an unflushed write reach the device in any order: the third of six is missing."""
    batch = plain(b"a" * 4000)
    write_with_history(tmp_path, *[batch] * 6)
    path = log_file(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + bytes(4096) + whole[12288:])
    log = run(reopen(tmp_path, flushed_point=FlushedPoint(uuid.UUID(int=1), 2, EPOCH)))
    assert offsets(read_all(log)) == [0, 1]
    assert log.is_doubtful
    assert path.stat().st_size == log.size_bytes == 2 * len(batch)
    assert flushed.is_marked(log.disk, log.directory), "the next start must know, too, if this one dies here"
    again = run(reopen(tmp_path))
    assert offsets(read_all(again)) == [0, 1]
    assert not again.is_doubtful


@pytest.mark.parametrize("at_byte", [8, 16, 20, 60, -1], ids=["length", "magic", "CRC", "header", "value"])
def test_a_last_batch_that_is_there_in_its_full_length_and_is_none_leaves_a_doubt(tmp_path: Path, at_byte: int) -> None:
    """It may have been flushed, acknowledged, and have rotted since: others in sync may still have it."""
    write_with_history(tmp_path, plain(b"a" * 50), plain(b"b" * 50))
    path = log_file(tmp_path, 0)
    size = len(plain(b"a" * 50))
    bad = bytearray(path.read_bytes())
    bad[size + at_byte if at_byte >= 0 else at_byte] ^= 0x80
    path.write_bytes(bad)
    log = run(reopen(tmp_path))
    assert log.end_offset == 1
    assert log.is_doubtful
    assert flushed.is_marked(log.disk, log.directory)


@pytest.mark.parametrize(("kept", "zeros"), [(0, 1), (0, 4096), (1, 0), (30, 0), (68, 0)])
def test_a_torn_end_leaves_no_doubt(tmp_path: Path, kept: int, zeros: int) -> None:
    """Part of the last batch, or only the file's new size, came to the device before the power went."""
    write_with_history(tmp_path, plain(b"a"), plain(b"b"))
    path = log_file(tmp_path, 0)
    size = len(plain(b"a"))
    path.write_bytes(path.read_bytes()[: size + kept] + bytes(zeros))
    log = run(reopen(tmp_path))
    assert log.end_offset == 1
    assert not log.is_doubtful
    assert not flushed.is_marked(log.disk, log.directory)


def test_a_flushed_point_of_a_history_that_was_cut_since_says_nothing(tmp_path: Path) -> None:
    """A follower flushed three records, dropped two of them for its next leader, and had not yet flushed that one's."""

    async def go() -> None:
        log = await with_history(tmp_path)
        lead(log, *[plain(b"a" * 50)] * 3)
        await log.flush()
        await log.truncate_to(1)
        await log.replace_epochs([EpochEntry(EPOCH, 0), EpochEntry(LeaderEpoch(EPOCH + 1), 1)])
        lead(log, *[plain(b"b" * 50)] * 3, epoch=EPOCH + 1)
        path = log_file(tmp_path, 0)
        bad = bytearray(path.read_bytes())
        bad[200] ^= 1
        path.write_bytes(bad)
        assert offsets(read_all(await reopen(tmp_path, flushed_point=THIRD))) == [0]

    run(go())


def test_flushed_points_come_back_as_they_were_kept_or_not_at_all() -> None:
    points = {("orders", 0): THIRD, ("a.b_c-1", 17): FlushedPoint(uuid.UUID(int=2**127), 2**40, LeaderEpoch(0))}
    data = flushed.encode_points(points)
    assert flushed.decode_points(data) == points
    assert flushed.decode_points(flushed.encode_points({})) == {}
    for size in range(len(data)):
        assert flushed.decode_points(data[:size]) == {}
        assert flushed.decode_points(data[:size] + bytes([data[size] ^ 1]) + data[size + 1 :]) == {}


def test_damage_below_the_certificate_is_an_error_even_at_the_end(tmp_path: Path) -> None:
    write(tmp_path, plain(b"a"), plain(b"b"), is_closed=True)
    path = log_file(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptLogError, match="up to which the log was flushed"):
        run(reopen(tmp_path))
    path.write_bytes(whole[: len(plain(b"a"))])
    with pytest.raises(CorruptLogError, match="up to which the log was flushed"):
        run(reopen(tmp_path))
    with pytest.raises(CorruptLogError, match="were flushed, but the log ends at 1"):
        run(open_log(tmp_path, is_clean=True))
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptLogError, match="although the log was closed cleanly"):
        run(open_log(tmp_path, is_clean=True))


def test_an_offset_that_comes_twice_is_damage(tmp_path: Path) -> None:
    write_with_history(tmp_path, plain(b"a"), plain(b"b"))
    path = log_file(tmp_path, 0)
    first = path.read_bytes()[: len(plain(b"a"))]
    path.write_bytes(path.read_bytes() + first + encode(logs.data((b"k", b"v"), at=2)))
    with pytest.raises(CorruptLogError, match="comes again"):
        run(reopen(tmp_path, flushed_point=THIRD))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_not_taken_for_torn_writes(tmp_path: Path, magic: int) -> None:
    write(tmp_path, plain(b"a"))
    body = bytes([magic, 0]) + (b"\0" * 8 if magic else b"") + b"\xff\xff\xff\xff" + struct.pack(">i", 40) + b"v" * 40
    with log_file(tmp_path, 0).open("ab") as file:
        file.write(struct.pack(">qiI", 1, len(body) + 4, zlib.crc32(body)) + body)
    with pytest.raises(UnsupportedFormatError):
        run(reopen(tmp_path))


def test_a_directory_of_another_topic_is_refused(tmp_path: Path) -> None:
    write(tmp_path, plain(b"a"))
    metadata = tmp_path / "orders-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAEg")
    with pytest.raises(NotALogError, match="belongs to the topic"):
        run(reopen(tmp_path))


# What lies beside the log


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("content", [None, b"", b"\1\2\3", b"\0" * 800, b"\x7f" * 96])
def test_missing_or_broken_indexes_are_made_again(tmp_path: Path, content: bytes | None, is_clean: bool) -> None:
    batches = [plain(b"a" * 40, time_ms=NOW_MS + 10 * index) for index in range(30)]
    write(tmp_path, *batches, is_closed=True, **SMALL)
    for index in (tmp_path / "orders-0").glob("*index"):
        index.unlink() if content is None else index.write_bytes(content)

    async def go() -> None:
        log = await open_log(tmp_path, is_clean=is_clean, **SMALL)
        assert offsets(read_all(log, max_bytes=200)) == list(range(30))
        for offset in range(30):
            found = log.offset_for_time(NOW_MS + 10 * offset, 30)
            assert found is not None
            assert found.offset == offset
        await log.close()

    run(go())


def test_the_transaction_index_of_what_may_be_torn_is_made_again(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path, **SMALL)
        lead(log, sequenced(0, is_open=True), *[plain(b"a" * 200)] * 5)
        end_transaction(log, ControlType.ABORT)
        expected = log.aborted_transactions(0, 100)
        await log.close()
        (index,) = (tmp_path / "orders-0").glob("*.txnindex")
        assert len(indexes.decode_transaction_index(index.read_bytes())) == 1
        index.unlink()
        again = await reopen(tmp_path, **SMALL)
        assert again.aborted_transactions(0, 100) == expected == [(7, 0)]

    run(go())


def test_an_unreadable_snapshot_is_made_up_for_by_an_older_one_and_the_log(tmp_path: Path) -> None:
    batches = [sequenced(index) for index in range(40)]
    write(tmp_path, *batches, is_closed=True, **SMALL)
    for is_clean in (True, False):
        newest = max((tmp_path / "orders-0").glob("*.snapshot"))
        newest.write_bytes(newest.read_bytes()[:-1] + b"!")
        log = run(open_log(tmp_path, is_clean=is_clean, **SMALL))
        producer = log.producers.get(ProducerId(7))
        assert producer is not None
        assert producer.last_sequence == 39


def test_leftovers_go(tmp_path: Path) -> None:
    write(tmp_path, plain(b"a"))
    directory = tmp_path / "orders-0"
    for name in ("00000000000000000007.index", "00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp"):
        (directory / name).write_bytes(b"x")
    run(reopen(tmp_path))
    assert files(tmp_path) == ["00000000000000000000.log", "leader-epoch-checkpoint", "partition.metadata"]


def test_an_interrupted_compaction_is_undone_or_finished(tmp_path: Path) -> None:
    write(tmp_path, plain(b"a"))
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    whole = log.read_bytes()
    log.with_suffix(".log.cleaned").write_bytes(b"x")
    assert len(read_all(run(reopen(tmp_path)))) == 1
    assert not log.with_suffix(".log.cleaned").exists()
    log.with_suffix(".log.swap").write_bytes(b"x")
    with pytest.raises(CorruptLogError):
        run(reopen(tmp_path))
    log.with_suffix(".log.swap").write_bytes(whole)
    assert len(read_all(run(reopen(tmp_path)))) == 1
    assert not log.with_suffix(".log.swap").exists()


def test_markers_of_a_follower_count_after_a_crash(tmp_path: Path) -> None:
    async def go() -> None:
        log = await open_log(tmp_path)
        log.append_as_follower(encode(logs.in_transaction((b"k", b"v"), at=0, pid=7)))
        await log.flush()
        assert (await reopen(tmp_path)).last_stable_offset(1) == 0
        log.append_as_follower(encode(make_marker(1, ControlType.COMMIT, 7, 0, NOW_MS)))
        again = await reopen(tmp_path)
        assert again.last_stable_offset(2) == 2
        assert EPOCH not in [entry.epoch for entry in again.epochs.entries]

    run(go())


@pytest.mark.parametrize("is_clean", [False, True])
async def test_a_log_does_not_start_at_its_second_segment_because_the_first_is_gone(
    tmp_path: Path, is_clean: bool
) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *(plain(b"a" * 200) for _ in range(6)))
    await log.flush()
    await log.close()
    first, second = bases(tmp_path)[:2]
    log_file(tmp_path, first).unlink()
    told = f"starts at offset 0, but its first segment at {second}: what lies between is missing"
    with pytest.raises(CorruptLogError, match=told):
        await open_log(tmp_path, is_clean=is_clean, keeps_its_start=True, **SMALL)


async def test_a_log_that_starts_where_it_was_moved_to_lacks_nothing(tmp_path: Path) -> None:
    log = await open_log(tmp_path, **SMALL)
    lead(log, *(plain(b"a" * 200) for _ in range(6)))
    await log.advance_start(5)
    await log.close()
    again = await open_log(tmp_path, keeps_its_start=True, **SMALL)
    assert bases(tmp_path)[0] > 0
    assert (again.start_offset, again.end_offset) == (5, 6)
