"""A disk that fails: what a caller is told, and that nothing half-done is ever seen."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.files import FileDisk
from sexton.errors import CorruptLogError
from sexton.log.health import Health
from sexton.log.log import Log
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import LeaderEpoch
from tests.epochs import history
from tests.log.helpers import EPOCH, NOW_MS, files, lead, offsets, open_log, plain, read_all, sequenced
from tests.log.test_changes import at


class FailingFile:
    def __init__(self, disk: FailingDisk, file: Any) -> None:
        self._disk, self._file = disk, file

    def append(self, parts: Any) -> None:
        self._disk.strike("append", self._file.path)
        self._file.append(parts)

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)
        self._disk.has_cut = True

    def read(self, *args: Any) -> Any:
        self._disk.strike("read", self._file.path)
        return self._file.read(*args)

    async def flush(self) -> None:
        await self._disk.flushing.wait()
        self._disk.strike("flush", self._file.path)
        await self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FailingDisk:
    """A real disk that fails whatever `fails` says: of a call and a path."""

    def __init__(self) -> None:
        self._disk = FileDisk()
        self.fails: Callable[[str, str], int] = lambda call, path: 0
        self.has_cut = False
        self.flushing = asyncio.Event()
        """Until it is set, flushes are under way."""
        self.flushing.set()

    def strike(self, call: str, path: str) -> None:
        number = self.fails(call, path)
        if number:
            raise OSError(number, os.strerror(number), path)

    def open(self, path: str, *, create: bool = False) -> Any:
        self.strike("create" if create else "open", path)
        return FailingFile(self, self._disk.open(path, create=create))

    async def replace_file(self, path: str, content: bytes) -> None:
        self.strike("replace", path)
        await self._disk.replace_file(path, content)

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        for name, content in files:
            await self.replace_file(f"{directory}/{name}", content)

    async def flush_directory(self, directory: str) -> None:
        self.strike("flush_directory", directory)
        await self._disk.flush_directory(directory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def storage_error(log: Log, batch: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(batch, EPOCH, NOW_MS)
    assert caught.value.code is ErrorCode.kafka_storage_error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("call", ["append", "create"])
async def test_a_full_disk_takes_the_append_back_and_the_next_may_succeed(
    tmp_path: Path, number: int, call: str
) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk, segment_bytes=300)
    lead(log, sequenced(0), sequenced(1))
    disk.fails = lambda called, path: number if called == call and path.endswith(".log") else 0
    for _ in range(3):
        if call == "append":
            storage_error(log, sequenced(2, 3))
        else:
            storage_error(log, plain(b"a" * 150))
    assert log.failure is None
    assert log.end_offset == 2
    assert offsets(read_all(log)) == [0, 1]
    disk.fails = lambda called, path: 0
    lead(log, sequenced(2), plain(b"a" * 150))
    await log.flush()
    again = await open_log(tmp_path, is_clean=False, segment_bytes=300)
    assert offsets(read_all(again)) == [0, 1, 2, 3]


async def test_a_broken_disk_ends_appending(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk)
    lead(log, plain(b"a"))
    disk.fails = lambda call, path: errno.EIO if call == "append" else 0
    storage_error(log, plain(b"b"))
    disk.fails = lambda call, path: 0
    assert isinstance(log.failure, OSError)
    storage_error(log, plain(b"b"))
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(plain(b"b"))
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert "start the broker again" in caught.value.message
    assert offsets(read_all(log)) == [0]
    await log.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failed_flush_is_never_forgotten(tmp_path: Path, number: int) -> None:
    """Whatever reason it gives: the pages may be marked clean, and a second flush would succeed without them."""

    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk)
    lead(log, plain(b"a"))
    disk.fails = lambda call, path: number if call == "flush" else 0
    with pytest.raises(KafkaError) as caught:
        await log.flush()
    assert caught.value.code is ErrorCode.kafka_storage_error
    disk.fails = lambda call, path: 0
    with pytest.raises(KafkaError):
        await log.flush()
    assert log.flushed_offset == 0
    storage_error(log, plain(b"b"))


@pytest.mark.parametrize(
    "change", [Log.flush, lambda log: log.truncate_to(3), lambda log: log.advance_start(3), Log.close]
)
async def test_whoever_waited_for_a_flush_that_failed_does_not_flush_again(
    tmp_path: Path, change: Callable[[Log], Awaitable[None]]
) -> None:
    """The second one would succeed without the pages that the first has lost: they would count as flushed, be vouched
    for by a snapshot, and the log look as if it had been closed in good order."""

    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk, segment_bytes=300)
    lead(log, *[plain(b"a" * 100)] * 4)
    disk.flushing.clear()
    errors = [errno.EIO]
    disk.fails = lambda call, path: errors.pop() if call == "flush" and errors else 0
    first = asyncio.ensure_future(log.flush())
    for _ in range(5):
        await asyncio.sleep(0)  # until it waits for the device
    lead(log, plain(b"b"))
    second = asyncio.ensure_future(change(log))
    for _ in range(5):
        await asyncio.sleep(0)  # until it waits for the first
    assert log.failure is None
    disk.flushing.set()
    with pytest.raises(KafkaError):
        await first
    with pytest.raises(KafkaError) as caught:
        await second
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert log.flushed_offset == 0
    assert log.start_offset == 0
    assert not any(name.endswith(".snapshot") for name in files(tmp_path))


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot"])
async def test_no_room_for_an_index_delays_the_flush_and_no_more(tmp_path: Path, kind: str) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk, segment_bytes=300)
    lead(log, *[plain(b"a" * 100)] * 4)
    disk.fails = lambda call, path: errno.ENOSPC if call in ("append", "replace") and path.endswith(kind) else 0
    with pytest.raises(KafkaError):
        await log.flush()
    assert log.failure is None
    assert log.flushed_offset < log.end_offset
    disk.fails = lambda call, path: 0
    await log.flush()
    assert log.flushed_offset == log.end_offset == 4


async def test_a_history_that_could_not_be_written_is_not_believed(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk)
    await log.begin_epoch(LeaderEpoch(1))
    disk.fails = lambda call, path: errno.ENOSPC if call == "replace" else 0
    with pytest.raises(KafkaError):
        await log.begin_epoch(LeaderEpoch(2))
    with pytest.raises(KafkaError):
        await log.replace_epochs(history((9, 0)))
    assert log.epochs.entries == history((1, 0))


async def test_a_start_that_could_not_be_written_is_not_acted_on(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk, segment_bytes=300)
    lead(log, *[plain(b"a" * 100)] * 4)
    disk.fails = lambda call, path: errno.ENOSPC if call == "replace" else 0
    with pytest.raises(KafkaError):
        await log.advance_start(3)
    assert log.start_offset == 0
    assert offsets(read_all(log)) == [0, 1, 2, 3]


async def test_a_follower_keeps_the_whole_batches_that_were_written_before_the_disk_was_full(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk, segment_bytes=300)
    disk.fails = lambda call, path: errno.ENOSPC if call == "create" and "0001." in path else 0
    with pytest.raises(KafkaError):
        log.append_as_follower(at(0, b"a" * 100) + at(1, b"b" * 100) + at(2, b"c"))
    assert offsets(read_all(log)) == [0]
    disk.fails = lambda call, path: 0
    log.append_as_follower(at(1, b"b" * 100) + at(2, b"c"))
    assert offsets(read_all(log)) == [0, 1, 2]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_a_cut_that_fails_halfway_leaves_no_claim_to_what_is_gone(tmp_path: Path, number: int) -> None:
    """A replica that leads commits what its log says that it holds. Seed 1333."""
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk)
    lead(log, *[plain(b"a")] * 4)
    await log.flush()
    disk.fails = lambda call, path: number if call == "read" and disk.has_cut else 0
    with pytest.raises(KafkaError):
        await log.truncate_to(2)
    disk.fails = lambda call, path: 0
    assert (log.end_offset, log.flushed_offset) == (2, 2)
    assert log.failure is not None, "whatever the reason: index and file may differ"
    storage_error(log, plain(b"b"))
    assert offsets(read_all(await open_log(tmp_path, is_clean=False))) == [0, 1]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_a_log_that_cannot_start_over_holds_nothing(tmp_path: Path, number: int) -> None:
    disk = FailingDisk()
    log = await open_log(tmp_path, disk=disk)
    lead(log, *[plain(b"a")] * 4)
    await log.flush()
    disk.fails = lambda call, path: number if call == "create" else 0
    with pytest.raises(KafkaError):
        await log.restart_at(7)
    disk.fails = lambda call, path: 0
    assert (log.start_offset, log.end_offset, log.flushed_offset) == (0, 0, 0)
    storage_error(log, plain(b"b"))
    with pytest.raises(KafkaError) as caught:
        log.read(4, 1000, 4, min_one=True)
    assert caught.value.code is ErrorCode.kafka_storage_error, (
        "a consumer that is told that its offset is gone resets it"
    )
    again = await open_log(tmp_path, is_clean=False)
    assert (again.start_offset, again.end_offset) == (7, 7)


async def test_where_the_place_to_cut_at_is_damaged_nothing_is_cut(tmp_path: Path) -> None:
    """Else the next attempt would find nothing to do, and what follows would be written behind what is still there."""
    log = await open_log(tmp_path, segment_bytes=300)
    lead(log, *[plain(b"a" * 50)] * 6)
    await log.flush()
    await log.close()
    log = await open_log(tmp_path, segment_bytes=300)
    path = next(one for one in sorted(tmp_path.rglob("*.log")) if one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[8:12] = bytes(4)  # the length of the first batch
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(KafkaError):
            await log.truncate_to(1)
        assert log.damage is not None
        assert log.end_offset == 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_clients_are_told_no_paths_and_the_brokers_log_is(code: int) -> None:
    health = Health("t-0")
    told = health.storage_error(OSError(code, os.strerror(code), "/data/t-0/0.log"))
    with pytest.raises(KafkaError) as cut, health.cutting():
        raise OSError(code, os.strerror(code), "/data/t-0/0.log")
    with pytest.raises(KafkaError) as unusable:
        health.check_usable()
    for error in (told, cut.value, unusable.value):
        assert os.strerror(code) in error.message
        assert "/data" not in error.message
        assert "/data/t-0/0.log" in str(error)
    damaged = health.unreadable(CorruptLogError("a bad checksum", "/data/t-0/0.log at 61"))
    assert "/data" not in damaged.message
    assert "/data/t-0/0.log at 61" in str(damaged)
