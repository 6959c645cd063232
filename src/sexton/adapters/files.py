"""The disk port on a real file system.

Appends go to the page cache by position (`pwritev`). Flushes run in threads of their own, so that many files are
flushed at once and the event loop is not blocked.

A descriptor is closed when the last reference to its file is dropped, not before: a slice that is still being sent, or
a flush in progress, holds one. `close` only ends appending. This relies on CPython's reference counts; elsewhere
descriptors would stay open until the next collection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from sexton.log.stopped import locks
from sexton.ports.disk import Buffer

FLUSH_THREADS: Final = 64
"""Number of files that are flushed at once. A file system commits all waiting flushes in one step, so that many take
hardly longer than one; threads are created only when there is work for them."""

PARTS_MAX: Final = 1024
"""Maximum number of buffers in one write on Linux (IOV_MAX)."""

SMALL_READ_BYTES: Final = 1 << 12
"""Size of the first read of a file: most files that are read whole are smaller."""

LARGE_BYTES: Final = 1 << 20
"""The space of a deleted file above this size is freed in a thread."""

FILE_MODE: Final = 0o644
NO_UNNAMED_FILES: Final = (errno.EISDIR, errno.EOPNOTSUPP, errno.EINVAL)
"""What open(2) says where files without a name are unknown to the file system or the kernel."""

_TEMPORARY_SUFFIX: Final = ".tmp"


class _Outcome(asyncio.Future[None]):
    """Future of work in a thread, which cannot be cancelled. A caller that is cancelled while it waits goes on waiting,
    and is cancelled when the work is done."""

    def cancel(self, msg: object = None) -> bool:
        return False


_Asked = tuple[Callable[[], None], _Outcome]
"""Work for a thread, and the future of the caller that waits for it."""


class DiskFile:
    """Implements `ports.disk.File`."""

    __slots__ = ("_disk", "_fd", "_is_closed", "_path", "size_bytes", "unreadable")

    def __init__(self, disk: FileDisk, path: str, fd: int) -> None:
        self._fd, self._disk = fd, disk  # first, so that __del__ finds them whatever happens next
        self._path = path
        self._is_closed = False
        self.unreadable: OSError | None = None
        self.size_bytes = os.fstat(fd).st_size

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        """Descriptor for sendfile. Valid as long as the caller holds this object."""
        return self._fd

    def append(self, parts: Sequence[Buffer]) -> None:
        if self._is_closed:
            raise ValueError(f"{self._path} is closed")
        size = self.size_bytes
        wanted = 0
        for part in parts:
            wanted += len(part)
        try:
            written = os.pwritev(self._fd, parts, size) if len(parts) <= PARTS_MAX else 0
            if written != wanted:
                self._append_rest(parts, written, size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            raise
        self.size_bytes = size + wanted

    def _append_rest(self, parts: Sequence[Buffer], written: int, size: int) -> None:
        """A write may stop half way, above all when the disk is about to be full; only the next one returns the
        reason."""
        position = 0
        for part in parts:
            view = memoryview(part).cast("B")
            skipped = max(0, written - position)
            position += len(view)
            view = view[skipped:]
            while len(view):
                view = view[os.pwrite(self._fd, view, size + position - len(view)) :]

    def read(self, position: int, size_bytes: int) -> bytes:
        return _read_at(self._fd, position, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        if self._is_closed:
            raise ValueError(f"{self._path} is closed")
        if size_bytes < self.size_bytes:
            os.ftruncate(self._fd, size_bytes)
            self.size_bytes = size_bytes

    async def flush(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self._path} is closed")
        await self._disk.in_thread(self._synchronize)

    async def read_back(self) -> None:
        await self.flush()
        await self._disk.in_thread(self._drop_pages)
        self.size_bytes = os.fstat(self._fd).st_size

    def _drop_pages(self) -> None:
        """Drops pages that count as clean, also those that count so by mistake; the next read goes to the device."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _synchronize(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        self._is_closed = True

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.close_descriptor(self._fd)


BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class FileDisk:
    """Implements `ports.disk.Disk`. One per process is enough; `close` it when the event loop is done."""

    def __init__(self, flush_threads: int = FLUSH_THREADS) -> None:
        self._threads = ThreadPoolExecutor(flush_threads, thread_name_prefix="disk")
        self._threads_count = flush_threads
        self._asked: list[_Asked] = []
        self._temporary_count = itertools.count()
        self._flushes: dict[str, asyncio.Task[None]] = {}
        """Flushes of directories in progress."""
        self._next_flushes: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Waits for work in progress."""
        self._threads.shutdown()

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Runs the work in a thread. The work of one turn of the event loop is distributed at its end: handing it over
        costs more than most of the work, and a broker that starts has a thousand files to replace at once."""
        loop = asyncio.get_running_loop()
        done = _Outcome(loop=loop)
        if not self._asked:
            loop.call_soon(self._share_out, loop)
        self._asked.append((work, done))
        await _heard(done)

    def _share_out(self, loop: asyncio.AbstractEventLoop) -> None:
        asked, self._asked = self._asked, []
        count = min(len(asked), self._threads_count)
        for number in range(count):
            self._threads.submit(_work_through, asked[number::count], loop)

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, FILE_MODE)
        return DiskFile(self, path, fd)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def read_file(self, path: str) -> bytes | None:
        """Uses system calls: Python's own file objects take twice as many, and a broker that starts reads thousands of
        small files."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            data = os.read(fd, SMALL_READ_BYTES)
            if len(data) == SMALL_READ_BYTES:
                data += os.read(fd, os.fstat(fd).st_size)
                while more := os.read(fd, SMALL_READ_BYTES):
                    data += more
            return data
        finally:
            os.close(fd)

    def read_part(self, path: str, position: int, size_bytes: int) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_at(fd, position, size_bytes)
        finally:
            os.close(fd)

    def size_of(self, path: str) -> int | None:
        found = os.stat(path)
        return None if stat.S_ISDIR(found.st_mode) else found.st_size

    async def replace_file(self, path: str, content: bytes) -> None:
        directory, name = os.path.split(path)
        await self.replace_files(directory, [(name, content)])

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Replaces all of them in one thread: a topic may have a thousand partitions, each of which begins with a few
        files."""
        temporary_suffix = f".{next(self._temporary_count)}{_TEMPORARY_SUFFIX}"
        await self.in_thread(lambda: _replace(directory, files, temporary_suffix))

    async def create_file(self, path: str, content: Buffer) -> None:
        temporary = f"{path}.{os.getpid()}.{next(self._temporary_count)}{_TEMPORARY_SUFFIX}"
        await self.in_thread(lambda: _create(path, content, temporary))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def remove(self, path: str) -> None:
        """Removes the name now. Freeing a segment's space takes a file system long enough for clients to notice, so it
        is left to the close of the last descriptor, in a thread."""
        fd = -1
        with contextlib.suppress(OSError):  # without a descriptor, freeing the space blocks
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        finally:
            if fd >= 0:
                self.close_descriptor(fd)

    def close_descriptor(self, fd: int) -> None:
        status = os.fstat(fd)
        if status.st_nlink == 0 and status.st_size > LARGE_BYTES:
            with contextlib.suppress(RuntimeError):  # the threads have ended: at exit the close may be left out
                self._threads.submit(os.close, fd)
                return
        os.close(fd)

    def remove_tree(self, directory: str) -> None:
        for folder, _, names in os.walk(directory):
            for name in names:
                self.remove(f"{folder}/{name}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)

    async def flush_directory(self, directory: str) -> None:
        """Flushes one directory only once at a time: all callers that come during a flush share the next. A thousand
        partitions that are created at once need their log directory flushed a few times, not a thousand."""
        flush = self._next_flushes.get(directory)
        if flush is None or flush.done():
            under_way = self._flushes.get(directory)
            flush = self._next_flushes[directory] = asyncio.ensure_future(self._flush_names(directory, under_way))
        done = _Outcome(loop=asyncio.get_running_loop())
        flush.add_done_callback(lambda ended: _tell([(done, _failure_of(ended))]))
        await _heard(done)

    async def _flush_names(self, directory: str, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        flush = self._flushes[directory] = self._next_flushes.pop(directory)  # later callers get the next flush
        try:
            await self.in_thread(lambda: _synchronize_directory(directory))
        finally:
            if self._flushes.get(directory) is flush:
                del self._flushes[directory]

    def free_bytes(self, directory: str) -> tuple[int, int]:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def page_cache_id(self) -> str | None:
        """Linux's boot id. In a container it is that of the machine."""
        try:
            return Path(BOOT_ID).read_text().strip() or None
        except OSError:
            return None

    def lock(self, directory: str) -> AbstractContextManager[None]:
        return locks.hold(Path(directory))


def _read_at(fd: int, position: int, size_bytes: int) -> bytes:
    data = os.pread(fd, size_bytes, position)
    if len(data) == size_bytes or not data:
        return data
    parts = [data]
    left = size_bytes - len(data)
    while left and data:
        data = os.pread(fd, left, position + size_bytes - left)
        left -= len(data)
        parts.append(data)
    return b"".join(parts)


def _work_through(asked: Sequence[_Asked], loop: asyncio.AbstractEventLoop) -> None:
    """Runs in a thread."""
    ended: list[tuple[_Outcome, BaseException | None]] = []
    for work, done in asked:
        try:
            work()
            ended.append((done, None))
        except Exception as error:
            ended.append((done, error))
    with contextlib.suppress(RuntimeError):  # the event loop has been closed, and with it all callers
        loop.call_soon_threadsafe(_tell, ended)


def _failure_of(ended: asyncio.Future[None]) -> BaseException | None:
    """A flush that was cancelled before it began has flushed nothing."""
    return asyncio.CancelledError() if ended.cancelled() else ended.exception()


async def _heard(done: _Outcome) -> None:
    """Waits to the end. A kernel reports only once that it could not write, and only the waiting caller can take note
    of it: a caller that is cancelled meanwhile gets that error first, and is cancelled at its next await."""
    try:
        await done
    except asyncio.CancelledError:
        error = done.exception()
        task = asyncio.current_task()
        if error is None or task is None:
            raise
        task.cancel()
        raise error from None


def _tell(ended: Sequence[tuple[_Outcome, BaseException | None]]) -> None:
    for done, error in ended:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _replace(directory: str, files: Sequence[tuple[str, bytes]], temporary_suffix: str) -> None:
    """Names that were not flushed may reach the disk in any order: the last is renamed only after the others are
    flushed."""
    for number, (name, content) in enumerate(files):
        if 0 < number == len(files) - 1:
            _synchronize_directory(directory)
        path = f"{directory}/{name}"
        temporary = path + temporary_suffix
        try:
            _write(temporary, content)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    _synchronize_directory(directory)


def _write(path: str, content: Buffer) -> None:
    """Writes a new file and flushes its content, not its name."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        _fill(fd, content)
    finally:
        os.close(fd)


def _fill(fd: int, content: Buffer) -> None:
    view = memoryview(content)
    while len(view):
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def _create(path: str, content: Buffer, temporary: str) -> None:
    """The name comes last, to a file that is flushed. A file without a name is gone with the process that made it;
    where the file system has none (O_TMPFILE), a crash may leave the temporary name."""
    directory = os.path.dirname(path)
    try:
        fd = os.open(directory, os.O_WRONLY | getattr(os, "O_TMPFILE", os.O_DIRECTORY) | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno not in NO_UNNAMED_FILES:
            raise
        try:
            _write(temporary, content)
            os.link(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    else:
        try:
            _fill(fd, content)
            # Python follows the symbolic link only if it is given a directory, which an absolute path does not need.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        finally:
            os.close(fd)
    _synchronize_directory(directory)


def _synchronize_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
