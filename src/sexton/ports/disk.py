"""Files and directories, with the two promises that matter: what was flushed survives a crash, what was not may not.

Paths are absolute strings. Every call may raise `OSError` (full, read-only, out of descriptors, gone); what that means
is for the caller to say. Plain methods return at once (page cache); those that wait for the device are coroutines.
What they wait for is never left half way: who is cancelled while waiting hears of a failure first.

A crash keeps, of each file, what was flushed; of what was appended since, any pages, in no order: those that are
missing read as zeros or as noise, and the file may end before, among or after them. Of each directory it keeps the
names as of some moment since `flush_directory`. What was flushed may be damaged all the same, one day: who reads it
checks a CRC.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """A file that grows at its end. Readers and the one appender may interleave freely."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int:
        """Kept in memory: asking costs no system call."""
        ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """All of it, or an OSError and the file cut back to the size before."""
        ...

    def read(self, position: int, size_bytes: int) -> bytes:
        """Fewer bytes than asked for only at the end of the file."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    async def flush(self) -> None:
        """On return, everything that had been appended when `flush` was called survives a crash.

        An OSError here means that nobody knows what the device holds: the caller must stop trusting the file."""
        ...

    async def read_back(self) -> None:
        """On return, reading gives what the device holds, and what it gives survives a crash.

        Flushing again does not do that: a kernel that could not write pages may keep them as if it had, for this
        process and the next, and reports the failure only once."""
        ...

    def close(self) -> None:
        """Closes once the last `FileSlice` in flight is gone. Twice is fine."""
        ...


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A stretch of a file that is to leave through the network without passing through Python (sendfile)."""

    file: File
    position: int
    size_bytes: int


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...

    def list(self, directory: str) -> list[str]:
        """Names, sorted. A directory that does not exist has none."""
        ...

    def exists(self, path: str) -> bool: ...

    def read_file(self, path: str) -> bytes | None:
        """The whole file; None if there is none."""
        ...

    async def replace_file(self, path: str, content: bytes) -> None:
        """After a crash the file has its old content or the new one; on return, the new one for good."""
        ...

    async def replace_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """The same for several files of one directory, by name, with few flushes of their names: after a crash, the
        last of them is new only if all others are."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents. It may exist already."""
        ...

    def rename(self, path: str, new_path: str) -> None: ...

    def remove(self, path: str) -> None:
        """A file; one that is already gone is fine."""
        ...

    def remove_tree(self, directory: str) -> None: ...

    async def flush_directory(self, directory: str) -> None:
        """On return, the names in it survive a crash."""
        ...

    def free_bytes(self, directory: str) -> tuple[int, int]:
        """(free, total) of the volume."""
        ...

    def page_cache_id(self) -> str | None:
        """As long as it is the same, what any process has appended is there, flushed or not, unless a flush failed.
        None if nobody can tell."""
        ...

    def lock(self, directory: str) -> AbstractContextManager[None]:
        """Kafka's own `.lock`. Raises LogInUseError if another process holds it."""
        ...
