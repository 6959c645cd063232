"""A folder as an object store, for one machine or a file system that several share. A key is a path below it.

An object is written to a file without a name, flushed, and only then named (`Disk.create_file`): after a crash it is
there whole or not at all, and after `put` has returned it is there. That takes the directory, too, and the directories
above it: this process flushes each once before it puts anything below it, whoever made it. Stores that speak S3 on top
of a folder, and obstore's own folder, flush nothing (docs/decisions).

The folder itself is made with the marker, and never otherwise: a disk that is not mounted must not be taken for an
empty store. A put into a folder that is not there is refused. And a disk may be unmounted at any moment, which leaves
an empty folder: once this process has seen the marker, nothing counts as put, deleted or missing while that is not
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from sexton.errors import DamagedObjectError
from sexton.ports.disk import Disk
from sexton.ports.objects import (
    MARKER_BYTES_MAX,
    Buffer,
    ListedObject,
    ObjectMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)

REFUSALS: Final = {
    errno.EACCES: "Let the user that Sexton runs as write there",
    errno.EPERM: "Let the user that Sexton runs as write there",
    errno.EROFS: "The file system is read-only: repair it, mount it for writing",
    errno.ENOTDIR: "A file is where a directory must be: cloud.store.url must name a folder",
    errno.EISDIR: "A directory is where an object must be: nothing but Sexton may write to the folder",
    errno.ENAMETOOLONG: "Choose a folder with a shorter path",
}
"""Errors that stay until a person acts. All others (full, over quota, I/O errors, out of descriptors) may pass."""

DELETES_AT_ONCE: Final = 64
"""Files that one thread removes in one go: many deletions must not hold up the flushes of others."""


_Objects = list[ListedObject]
_Keys = list[str]
"""Below, `list` is a method."""


class FolderStore:
    """Implements `ports.objects.ObjectStore`."""

    def __init__(self, disk: Disk, directory: str, close_disk: Callable[[], None] | None = None) -> None:
        self._disk = disk
        self._root = directory.rstrip("/") or "/"
        self._close_disk = close_disk
        self._durable: set[str] = set()
        """Directories whose names this process has flushed, with all above them up to the folder."""
        self._marker = ""
        """The path at which this process has seen the marker."""

    @property
    def place(self) -> str:
        return f"file://{self._root}"

    async def put(self, key: str, data: Buffer) -> None:
        path = self._path(key)
        try:
            await self._make_durable(os.path.dirname(path))
            await self._disk.create_file(path, data)
        except FileExistsError:
            await self._flush_name(path)
        except OSError as error:
            raise self._failure(error, key) from error
        await self._check_marked()

    async def _check_marked(self) -> None:
        """Afterwards: what was done while the disk was there has been done, whenever it went."""
        if not self._marker:
            return
        is_marked = [False]

        def look() -> None:
            is_marked[0] = self._disk.exists(self._marker)

        await self._disk.in_thread(look)
        if not is_marked[0]:
            raise self._gone()

    def _gone(self) -> StoreRefusedError:
        self._durable.clear()
        if not self._disk.exists(self._root):
            return StoreRefusedError(
                "the folder is not there", self.place, "Mount its disk, or correct cloud.store.url"
            )
        return StoreRefusedError(
            f"the folder has lost its marker {self._marker.removeprefix(self._root)[1:]}",
            self.place,
            "If its disk was unmounted, mount it; if the marker was removed, `sexton cloud adopt` makes it again",
        )

    @property
    def _is_there(self) -> bool:
        return self._disk.exists(self._marker or self._root)

    async def _flush_name(self, path: str) -> None:
        """The object is there from an earlier put, whose end nobody saw: its name may not have been flushed."""
        try:
            await self._disk.flush_directory(os.path.dirname(path))
        except OSError as error:
            raise self._failure(error, path) from error

    async def get(self, key: str, start: int, size_bytes: int) -> Buffer:
        path, found = self._path(key), [b""]

        def read() -> None:
            found[0] = self._disk.read_part(path, start, size_bytes)

        await self._read(key, read)
        if len(found[0]) != size_bytes:
            raise DamagedObjectError(
                f"{len(found[0])} bytes are there from byte {start}, not {size_bytes}", f"{self.place}/{key}"
            )
        return found[0]

    async def _read(self, key: str, work: Callable[[], None]) -> None:
        try:
            await self._disk.in_thread(work)
        except FileNotFoundError as error:
            if not self._is_there:
                raise self._gone() from error
            raise ObjectMissingError("there is no such object", f"{self.place}/{key}") from None
        except OSError as error:
            raise self._failure(error, key) from error

    async def size_bytes(self, key: str) -> int:
        path, found = self._path(key), [0]

        def look() -> None:
            size_bytes = self._disk.size_of(path)
            if size_bytes is None:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            found[0] = size_bytes

        await self._read(key, look)
        return found[0]

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        gone: _Keys = []
        failures: list[OSError] = []
        for first in range(0, len(keys), DELETES_AT_ONCE):
            removed = await self._remove(keys[first : first + DELETES_AT_ONCE], failures)
            outcomes = await asyncio.gather(*map(self._flush_names, removed), return_exceptions=True)
            for some, outcome in zip(removed.values(), outcomes, strict=True):
                if isinstance(outcome, OSError):
                    failures.append(outcome)
                elif outcome is not None:
                    raise outcome
                else:
                    gone += some
        if failures and not gone:
            raise self._failure(failures[0], keys[0]) from failures[0]
        await self._check_marked()
        return gone

    async def _remove(self, keys: Sequence[str], failures: list[OSError]) -> dict[str, _Keys]:
        """Returns what is gone, by directory: its name is gone for good once that is flushed."""
        removed: dict[str, _Keys] = {}

        def remove() -> None:
            for key in keys:
                path = self._path(key)
                try:
                    self._disk.remove(path)
                except NotADirectoryError:
                    pass  # what lies below a file is not there
                except OSError as error:
                    failures.append(error)
                    continue
                removed.setdefault(os.path.dirname(path), []).append(key)

        try:
            await self._disk.in_thread(remove)
        except OSError as error:
            failures.append(error)
        return removed

    async def _flush_names(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # then it has no names
            await self._disk.flush_directory(directory)

    async def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        """One directory at a time. Temporary files that a crash has left, where the file system has no better way, are
        listed like objects: the scrub finds no row for them."""
        waiting = [prefix.rstrip("/")]
        try:
            if not self._disk.exists(self._root):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._root)
            while waiting:
                objects, directories = await self._scan(waiting.pop())
                waiting += directories
                for one in objects:
                    yield one
        except OSError as error:
            raise self._failure(error, prefix) from error
        await self._check_marked()

    async def _scan(self, directory: str) -> tuple[_Objects, _Keys]:
        objects: _Objects = []
        directories: _Keys = []

        def look() -> None:
            for name in self._disk.list(self._path(directory)):
                key = f"{directory}/{name}".lstrip("/")
                try:
                    size_bytes = self._disk.size_of(self._path(key))
                except FileNotFoundError:
                    continue  # deleted meanwhile
                if size_bytes is None:
                    directories.append(key)
                else:
                    objects.append(ListedObject(key, size_bytes))

        await self._disk.in_thread(look)
        return objects, directories

    async def create_marker(self, key: str, data: bytes) -> bytes:
        path = self._path(key)
        try:
            await self._disk.in_thread(lambda: self._disk.make_directory(self._root))
            await self._make_durable(self._root)
            await self._disk.create_file(path, data)
        except FileExistsError:
            await self._flush_name(path)
        except OSError as error:
            raise self._failure(error, key) from error
        self._marker = path
        found = await self.read_marker(key)
        if found is None:
            raise StoreUnavailableError("the marker was made, and is not there", f"{self.place}/{key}")
        return found

    async def read_marker(self, key: str) -> bytes | None:
        path, found = self._path(key), [b""]

        def read() -> None:
            found[0] = self._disk.read_part(path, 0, MARKER_BYTES_MAX)

        try:
            await self._disk.in_thread(read)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error, key) from error
        self._marker = path
        return found[0]

    async def close(self) -> None:
        if self._close_disk is not None:
            self._close_disk()

    def _path(self, key: str) -> str:
        if not key:
            return self._root
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise ValueError(f"{key!r} is no key of an object")
        return f"{self._root.rstrip('/')}/{key}"

    async def _make_durable(self, directory: str) -> None:
        """Makes a directory of the folder with those above it, and flushes their names, each into its own parent."""
        if directory in self._durable:
            return

        def make() -> None:
            if not self._disk.exists(self._root):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._root)
            self._disk.make_directory(directory)

        await self._disk.in_thread(make)
        missing = [directory]
        while missing[-1] != self._root:
            missing.append(os.path.dirname(missing[-1]))
        missing = [one for one in missing if one not in self._durable]
        await asyncio.gather(*(self._disk.flush_directory(os.path.dirname(one)) for one in missing))
        self._durable.update(missing)

    def _failure(self, error: OSError, key: str) -> StoreUnavailableError | StoreRefusedError:
        what = f"{error.strerror or error}"
        place = f"{self.place}/{key}"
        if error.errno == errno.ENOENT and not self._is_there:
            return self._gone()
        if error.errno == errno.ENOENT:
            self._durable.clear()  # somebody has removed a directory: the next put makes it again
        if error.errno in REFUSALS:
            return StoreRefusedError(what, place, REFUSALS[error.errno])
        remedy = "Make room on its disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "See the kernel's log"
        return StoreUnavailableError(what, place, f"{remedy}; the call will be tried again")
