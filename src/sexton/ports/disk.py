"""Files and directories, with the two promises that matter: what was flushed survives a crash, what was not may not.

Paths are absolute strings. Every call may raise `OSError` (full, read-only, out of descriptors, gone); the caller
decides what that means. Plain methods return at once (page cache); those that wait for the device are coroutines. Their
work is never stopped half way: a caller that is cancelled while it waits gets an error of the work first.

After a crash each file has what was flushed. Any pages that were appended since may be there, in no order: missing ones
read as zeros or as noise, and the file may end before, among or after them. Each directory has its names as of some
moment since `flush_directory`. Flushed data may still be damaged one day: readers check a CRC.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

PASSING_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that an operator can fix while a file is used: what it holds is as it was."""


class File(Protocol):
    """A file that grows at its end. Reads and the one appender's writes may interleave freely."""

    unreadable: OSError | None
    """The device's error when a `FileSlice` of this file was to be sent: only the connection learned of it, and ended.
    Whoever makes the next slice raises it, or every connection that is sent these bytes would end, again and again."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int:
        """Kept in memory: reading it costs no system call."""
        ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Appends everything, or raises OSError and truncates the file to its former size."""
        ...

    def read(self, position: int, size_bytes: int) -> bytes:
        """Returns fewer bytes than asked for only at the end of the file."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    async def flush(self) -> None:
        """When this returns, everything that had been appended when it was called survives a crash.

        After an OSError it is unknown what the device holds: the caller must stop trusting the file.
        """
        ...

    async def read_back(self) -> None:
        """When this returns, reads return what the device holds, and that survives a crash.

        Flushing again does not achieve that: a kernel that could not write pages may keep them as if it had, for this
        process and the next, and reports the failure only once.
        """
        ...

    def close(self) -> None:
        """Closes once the last `FileSlice` in flight is gone. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of a file that is sent to the network without passing through Python (sendfile)."""

    file: File
    position: int
    size_bytes: int

    def read(self, start: int, size_bytes: int) -> bytes:
        """The bytes from `start` of the slice on, for a connection. Raises OSError if they are not all there. That is
        remembered as the file's, unless the file was truncated since: then the slice is one of a former state."""
        file, position = self.file, self.position + start
        try:
            content = file.read(position, size_bytes)
            if len(content) < size_bytes:
                raise OSError(errno.EIO, f"{file.path} ends before byte {position + size_bytes}")
        except OSError as error:
            if error.errno not in PASSING_ERRORS and position + size_bytes <= file.size_bytes:
                file.unreadable = error
            raise
        return content


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...

    def list(self, directory: str) -> list[str]:
        """Returns the names, sorted. A directory that does not exist has none."""
        ...

    def exists(self, path: str) -> bool: ...

    def read_file(self, path: str) -> bytes | None:
        """Returns the whole file; None if there is none."""
        ...

    def read_part(self, path: str, position: int, size_bytes: int) -> bytes:
        """Reads without opening the file for writing: also from a disk that has become read-only. Returns fewer bytes
        only at the end of the file."""
        ...

    def size_of(self, path: str) -> int | None:
        """Returns None for a directory. Raises FileNotFoundError if there is neither."""
        ...

    async def replace_file(self, path: str, content: bytes) -> None:
        """After a crash the file has its old content or the new one; once this has returned, the new one."""
        ...

    async def create_file(self, path: str, content: Buffer) -> None:
        """After a crash the whole file is there, or none; once this has returned, it is there. Its directory must
        exist, and its name must have been flushed. Raises FileExistsError, and leaves the file that is there alone."""
        ...

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Does the same for several files of one directory, by name, with few flushes of their names: after a crash,
        the last of them is new only if all others are."""
        ...

    def make_directory(self, path: str) -> None:
        """Creates the directory with its parents. It may exist already."""
        ...

    def rename(self, path: str, new_path: str) -> None: ...

    def remove(self, path: str) -> None:
        """Removes a file, which may be gone already."""
        ...

    def remove_tree(self, directory: str) -> None: ...

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Runs plain methods of this disk that would keep the event loop waiting: reads of what is not in the page
        cache, many files at once. The work must touch nothing else that the caller uses meanwhile."""
        ...

    async def flush_directory(self, directory: str) -> None:
        """When this returns, the names in the directory survive a crash."""
        ...

    def free_bytes(self, directory: str) -> tuple[int, int]:
        """Returns (free, total) bytes of the volume."""
        ...

    def page_cache_id(self) -> str | None:
        """As long as this id is the same, everything that any process has appended is there, flushed or not, unless a
        flush failed. None if unknown."""
        ...

    def lock(self, directory: str) -> AbstractContextManager[None]:
        """Takes Kafka's own `.lock`. Raises LogInUseError if another process holds it."""
        ...
