"""The disk port on a real file system."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters import files
from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.errors import LogInUseError
from sexton.log import flushed


@pytest.fixture
def disk() -> Iterator[FileDisk]:
    made = FileDisk()
    yield made
    made.close()


def test_what_is_appended_can_be_read_at_any_place(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"one", bytearray(b"two"), memoryview(b"three"), b""])
    file.append([])
    file.append([b"4"])
    assert file.size_bytes == 12
    assert file.read(0, 100) == b"onetwothree4"
    assert file.read(3, 3) == b"two"
    assert file.read(12, 5) == b""
    assert disk.open(str(tmp_path / "a")).size_bytes == 12


def test_more_parts_than_one_system_call_takes(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"ab"] * 3000)
    assert file.read(0, 10_000) == b"ab" * 3000


def test_a_write_that_stops_half_way_is_carried_on(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev, pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, [b"".join(parts)[:4]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: pwrite(fd, part[:2], at))
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"one", b"two", b"three"])
    file.append([b"four"])
    assert file.read(0, 100) == b"onetwothreefour"


def test_a_failed_append_leaves_the_file_as_it_was(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"old"])
    pwritev = os.pwritev

    def full(fd: int, parts: Any, at: int) -> int:
        return pwritev(fd, [b"ha"], at)

    def no_room(fd: int, part: Any, at: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        patch.setattr(os, "pwrite", no_room)
        with pytest.raises(OSError, match="full"):
            file.append([b"half"])
    assert file.size_bytes == 3
    assert (tmp_path / "a").read_bytes() == b"old"
    file.append([b"new"])
    assert (tmp_path / "a").read_bytes() == b"oldnew"


def test_a_real_limit_on_file_size_takes_the_append_back(tmp_path: Path) -> None:
    """In a process of its own, for the limit is the process's."""
    code = (
        "import resource, signal, sys\n"
        "from sexton.adapters.files import FileDisk\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = FileDisk().open(sys.argv[1], create=True)\n"
        "file.append([b'a' * 900])\n"
        "try:\n"
        "    file.append([b'b' * 200])\n"
        "except OSError:\n"
        "    print(file.size_bytes)\n"
    )
    path = tmp_path / "a"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "900\n"
    assert path.read_bytes() == b"a" * 900


def test_truncation_only_shortens(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"abcdef"])
    file.truncate(10)
    assert file.size_bytes == 6
    file.truncate(2)
    file.append([b"x"])
    assert (tmp_path / "a").read_bytes() == b"abx"


def test_a_file_that_does_not_exist_is_made_only_if_asked(disk: FileDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "a"))
    assert disk.read_file(str(tmp_path / "a")) is None
    assert not disk.exists(str(tmp_path / "a"))
    disk.open(str(tmp_path / "a"), create=True)
    assert disk.read_file(str(tmp_path / "a")) == b""
    assert disk.exists(str(tmp_path / "a"))


async def test_flushes_run_in_parallel_and_report_errors(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    made = [disk.open(str(tmp_path / str(index)), create=True) for index in range(20)]

    await asyncio.gather(*(file.flush() for file in made))
    assert sorted(flushed) == sorted(file.fileno() for file in made)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="broken"):
        await made[0].flush()


def test_a_closed_file_can_still_be_read_by_who_holds_it(disk: FileDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.append([b"abc"])
    fd = file.fileno()
    file.close()
    file.close()
    (tmp_path / "a").unlink()
    assert file.read(0, 3) == b"abc"
    with pytest.raises(ValueError, match="closed"):
        file.append([b"d"])
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_is_replaced_whole_and_nothing_else_is_left(disk: FileDisk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    async def go() -> None:
        await disk.replace_file(str(path), b"new")
        assert path.read_bytes() == b"new"
        await asyncio.gather(*(disk.replace_file(str(tmp_path / name), b"x") for name in "bcd"))

    asyncio.run(go())
    assert disk.list(str(tmp_path)) == ["a", "b", "c", "d"]


def test_a_replacement_that_fails_leaves_the_old_file(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def broken(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="full"):
        asyncio.run(disk.replace_file(str(path), b"new"))
    assert path.read_bytes() == b"old"
    assert disk.list(str(tmp_path)) == ["a"]


def test_of_several_files_the_last_gets_its_name_when_those_of_the_others_are_durable(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").write_bytes(b"old")
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flush(fd: int) -> None:
        steps.append("names" if os.path.isdir(f"/proc/self/fd/{fd}") else "content")
        fsync(fd)

    def rename(path: str, new_path: str) -> None:
        steps.append(os.path.basename(new_path))
        replace(path, new_path)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", rename)
    asyncio.run(disk.replace_files(str(tmp_path), [("a", b"1"), ("b", b"2"), ("c", b"3")]))
    assert steps == ["content", "a", "content", "b", "names", "content", "c", "names"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2", "c": b"3"}


def test_of_several_files_those_after_a_failure_stay_as_they_were(disk: FileDisk, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        asyncio.run(disk.replace_files(str(tmp_path), [("a", b"1"), ("b", b"2"), ("c", b"3")]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_who_flushes_a_directory_while_others_do_shares_the_next_flush(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()
    seen: list[list[str]] = []
    fsync = os.fsync

    def flush(fd: int) -> None:
        seen.append(sorted(os.listdir(tmp_path)))
        may_go.wait(10)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", flush)

    async def go() -> None:
        async def make(name: str) -> None:
            disk.make_directory(str(tmp_path / name))
            await disk.flush_directory(str(tmp_path))

        first = asyncio.create_task(make("0"))
        while not seen:
            await asyncio.sleep(0.001)
        later = [asyncio.create_task(make(str(number))) for number in range(1, 50)]
        cancelled = later.pop()
        await asyncio.sleep(0)
        cancelled.cancel()
        assert not first.done()
        may_go.set()
        await asyncio.gather(first, *later)
        await disk.flush_directory(str(tmp_path))

    asyncio.run(go())
    assert [len(names) for names in seen] == [1, 50, 50], (
        "each name was there before the flush that its maker waited for"
    )


def test_a_failed_flush_of_a_directory_is_told_to_all_who_waited_for_it(disk: FileDisk, tmp_path: Path) -> None:
    async def go() -> list[BaseException | None]:
        missing = str(tmp_path / "missing")
        told = await asyncio.gather(*(disk.flush_directory(missing) for _ in range(3)), return_exceptions=True)
        disk.make_directory(missing)
        await disk.flush_directory(missing)
        return told

    assert [type(error) for error in asyncio.run(go())] == [FileNotFoundError] * 3


def test_names(disk: FileDisk, tmp_path: Path) -> None:
    assert disk.list(str(tmp_path / "none")) == []
    disk.make_directory(str(tmp_path / "x" / "y"))
    disk.make_directory(str(tmp_path / "x" / "y"))
    (tmp_path / "x" / "y" / "b").write_bytes(b"")
    (tmp_path / "x" / "y" / "a").write_bytes(b"")
    assert disk.list(str(tmp_path / "x" / "y")) == ["a", "b"]
    disk.rename(str(tmp_path / "x" / "y" / "b"), str(tmp_path / "x" / "c"))
    disk.remove(str(tmp_path / "x" / "c"))
    disk.remove(str(tmp_path / "x" / "c"))
    asyncio.run(disk.flush_directory(str(tmp_path / "x")))
    disk.remove_tree(str(tmp_path / "x"))
    disk.remove_tree(str(tmp_path / "x"))
    assert disk.list(str(tmp_path)) == []
    free, total = disk.free_bytes(str(tmp_path))
    assert 0 < free <= total


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("with_all_of_it", [False, True])
def test_the_space_of_a_large_file_comes_back_and_not_in_the_caller_s_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_all_of_it: bool, is_held: bool
) -> None:
    """Giving back a gigabyte takes long enough for clients to notice; a large topic, long enough to lose the lease."""
    path = tmp_path / "topic-0" / "a"
    path.parent.mkdir()
    path.write_bytes(bytes(2 << 20))
    closed_by: dict[int, threading.Thread] = {}
    close = os.close

    def noted(fd: int) -> None:
        if os.fstat(fd).st_size > 1 << 20:
            closed_by[fd] = threading.current_thread()
        close(fd)

    disk = FileDisk()
    file = disk.open(str(path)) if is_held else None
    monkeypatch.setattr(os, "close", noted)
    if with_all_of_it:
        disk.remove_tree(str(path.parent))
        assert not path.parent.exists()
    else:
        disk.remove(str(path))
        assert not path.exists()
    if file is not None:
        assert file.read(0, 1 << 22) == bytes(2 << 20)
        del file
    disk.close()
    assert len(closed_by) == 1 + is_held
    assert threading.current_thread() not in closed_by.values()


def test_what_is_dropped_after_the_disk_was_closed_is_closed_all_the_same(disk: FileDisk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(2 << 20))
    file = disk.open(str(path))
    fd = file.fileno()
    disk.remove(str(path))
    disk.close()
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_is_removed_when_no_descriptor_is_free(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(2 << 20))

    def refused(*_: Any) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", refused)
    disk.remove(str(tmp_path / "a"))
    disk.remove(str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_the_lock_is_kafkas_own(disk: FileDisk, tmp_path: Path) -> None:
    with disk.lock(str(tmp_path)), pytest.raises(LogInUseError), disk.lock(str(tmp_path)):
        pass
    with disk.lock(str(tmp_path)):
        assert (tmp_path / ".lock").exists()


def test_descriptors_come_back(disk: FileDisk, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        for index in range(600):
            disk.open(str(tmp_path / str(index)), create=True).append([b"x"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clocks_tell_milliseconds() -> None:
    clock = SystemClock()
    assert 1_600_000_000_000 < clock.now_ms() < 10_000_000_000_000
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first > 0


def test_parts_fit_the_system() -> None:
    assert os.sysconf("SC_IOV_MAX") >= files.PARTS_MAX


def test_a_mark_is_believed_until_the_machine_starts_again_and_never_if_nobody_can_tell(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id, place = tmp_path / "boot_id", str(tmp_path)
    monkeypatch.setattr(files, "BOOT_ID", str(boot_id))
    boot_id.write_text("one\n")
    asyncio.run(flushed.mark(disk, place, is_whole=True))
    assert flushed.is_kept(FileDisk(), place)
    boot_id.write_text("two\n")
    assert not flushed.is_kept(disk, place)
    boot_id.unlink()
    asyncio.run(flushed.mark(disk, place, is_whole=True))
    assert not flushed.is_kept(disk, place)
    assert flushed.is_marked(disk, place)


def test_after_a_flush_that_failed_a_mark_stays_and_is_not_believed(disk: FileDisk, tmp_path: Path) -> None:
    flushed.distrust(disk, str(tmp_path))
    assert not flushed.is_marked(disk, str(tmp_path))
    asyncio.run(flushed.mark(disk, str(tmp_path), is_whole=True))
    assert flushed.is_kept(disk, str(tmp_path)) == Path(files.BOOT_ID).exists()
    flushed.distrust(disk, str(tmp_path))
    assert flushed.is_marked(disk, str(tmp_path))
    assert not flushed.is_kept(disk, str(tmp_path))


async def test_an_event_loop_that_ends_ends_those_who_wait_for_a_directory(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two flushes one is under way and one has not begun, and everything is cancelled at once."""
    fsync, is_under_way, may_end = os.fsync, threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        is_under_way.set()
        assert may_end.wait(30)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    waiting = [asyncio.ensure_future(disk.flush_directory(str(tmp_path)))]
    await asyncio.to_thread(is_under_way.wait, 30)
    waiting.append(asyncio.ensure_future(disk.flush_directory(str(tmp_path))))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    may_end.set()
    await asyncio.wait(waiting, timeout=30)
    assert all(task.cancelled() for task in waiting)
