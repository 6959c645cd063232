"""A store for programs that wait: Spark's tasks read ranges, and write large objects part by part.

Memory follows the part, not the object, and nothing is written to a local disk on the way. A store that does not answer
is asked a few times; then the task fails, and the job with it: never fewer bytes than were asked for (T9).

A `BlockingStore` is its URL, so it travels to wherever a task runs. Credentials are found there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sexton import extras
from sexton.adapters.objects.connecting import connect
from sexton.adapters.objects.remote import AWAY_REMEDY, StoreTimeouts, diagnose
from sexton.adapters.objects.urls import FolderUrl, RemoteUrl, parse
from sexton.errors import DamagedObjectError, SextonError
from sexton.ports.object_names import MARKER_KEY
from sexton.ports.objects import Buffer, ObjectMissingError, StoreUnavailableError
from sexton.ports.retrying import pause_ms

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

PART_BYTES: Final = 8 << 20
"""Of a multi-part upload. S3 takes at most 10,000 parts: 80 GB."""

PARTS_AT_ONCE: Final = 2
ATTEMPTS_MAX: Final = 8
"""About ten seconds altogether."""

TIMEOUTS: Final = StoreTimeouts(put_ms=60_000, get_ms=60_000)
"""A task waits for large requests, and has nothing else to do."""

FILE_MODE: Final = 0o644


class Upload(Protocol):
    """One object on its way. It is there when `finish` has returned, and not before."""

    def write(self, data: Buffer) -> None: ...

    def finish(self) -> None: ...

    def abort(self) -> None:
        """What was sent is not an object. Does nothing after `finish`."""
        ...


@dataclass(frozen=True, slots=True)
class BlockingStore:
    url: str

    @property
    def place(self) -> str:
        found = parse(self.url)
        return f"file://{found.path}" if isinstance(found, FolderUrl) else found.place

    def read(self, key: str, start: int, size_bytes: int) -> Buffer:
        """Exactly that many bytes. Raises ObjectMissingError, DamagedObjectError, StoreUnavailableError,
        StoreRefusedError."""
        place = f"{self.place}/{key}"
        data = patiently(lambda: self._read(key, start, size_bytes, place))
        if len(data) != size_bytes:
            raise DamagedObjectError(f"{len(data)} bytes came from byte {start}, not {size_bytes}", place)
        return data

    def _read(self, key: str, start: int, size_bytes: int, place: str) -> Buffer:
        found = parse(self.url)
        if isinstance(found, FolderUrl):
            return _read_file(f"{found.path}/{key}", start, size_bytes, place)
        from obstore import get_range

        store = _opened(self.url)
        return memoryview(_told(lambda: get_range(store, key, start=start, length=size_bytes), place))

    def size_bytes(self, key: str) -> int:
        found, place = parse(self.url), f"{self.place}/{key}"
        if isinstance(found, FolderUrl):
            try:
                return os.stat(f"{found.path}/{key}").st_size
            except FileNotFoundError:
                raise ObjectMissingError("there is no such object", place) from None
        from obstore import head

        store = _opened(self.url)
        return int(patiently(lambda: _told(lambda: head(store, key), place))["size"])

    def keys(self, prefix: str) -> list[str]:
        """Of the object with that key, or of all below that prefix."""
        found = parse(self.url)
        if isinstance(found, FolderUrl):
            if os.path.isfile(f"{found.path}/{prefix}"):
                return [prefix]
            walked = os.walk(f"{found.path}/{prefix}".rstrip("/"))
            return sorted(os.path.relpath(f"{at}/{name}", found.path) for at, _, names in walked for name in names)
        from obstore import list as list_objects

        store = _opened(self.url)
        place = f"{self.place}/{prefix}"
        try:
            self.size_bytes(prefix)
            return [prefix]
        except ObjectMissingError:
            return sorted(_told(lambda: [one["path"] for some in list_objects(store, prefix) for one in some], place))

    def upload(self, key: str) -> Upload:
        found, place = parse(self.url), f"{self.place}/{key}"
        if isinstance(found, FolderUrl):
            return _FolderUpload(found.path, key, place)
        return _RemoteUpload(_opened(self.url), key, place)


@lru_cache(maxsize=8)
def _opened(url: str) -> ObjectStore:
    """Kept by a worker process from task to task."""
    found = parse(url)
    assert isinstance(found, RemoteUrl)
    extras.need("cloud", f"a store at {found.scheme}://", " where Spark's tasks run")
    return connect(found, TIMEOUTS)


def patiently(call: Callable[[], T]) -> T:
    rng = random.Random()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return call()
        except StoreUnavailableError as error:
            if attempt == ATTEMPTS_MAX:
                raise
            time.sleep(pause_ms(error, attempt, rng) / 1000)
    raise AssertionError("the last attempt returns or raises")


def _told(call: Callable[[], T], place: str) -> T:
    from obstore.exceptions import BaseError

    try:
        return call()
    except (BaseError, OSError) as error:
        raise diagnose(error, place) from error


def _read_file(path: str, start: int, size_bytes: int, place: str) -> Buffer:
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            parts: list[bytes] = []
            left = size_bytes
            while left and (some := file.read(left)):
                parts.append(some)
                left -= len(some)
            return parts[0] if len(parts) == 1 else b"".join(parts)
    except FileNotFoundError:
        raise ObjectMissingError("there is no such object", place) from None
    except OSError as error:
        raise StoreUnavailableError(f"{error.strerror or error}", place, AWAY_REMEDY) from error


class _RemoteUpload:
    """Parts are sent as they fill up. One that was cut off leaves parts, which the bucket's own rule removes."""

    def __init__(self, store: ObjectStore, key: str, place: str) -> None:
        from obstore import open_writer

        self._place = place
        self._writer: Any = open_writer(store, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    def write(self, data: Buffer) -> None:
        _told(lambda: self._writer.write(data), self._place)

    def finish(self) -> None:
        writer, self._writer = self._writer, None
        _told(writer.close, self._place)

    def abort(self) -> None:
        """Dropped without being closed: the upload is never completed."""
        self._writer = None


class _FolderUpload:
    """A file without a name until it is whole and flushed; then it gets its name, and that is flushed."""

    def __init__(self, root: str, key: str, place: str) -> None:
        self._path, self._place = f"{root}/{key}", place
        self._marker = f"{root}/{MARKER_KEY}"
        directory = os.path.dirname(self._path)
        try:
            self._check_marked()
        except OSError as error:
            raise self._failure(error) from error
        try:
            _make_durable(root, directory)
            self._fd = os.open(directory, os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC, FILE_MODE)
            self._temporary = ""
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EOPNOTSUPP, errno.ENOENT) or not os.path.isdir(directory):
                raise self._failure(error) from error
            self._temporary = f"{self._path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
            self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise self._failure(error) from error

    def finish(self) -> None:
        try:
            os.fsync(self._fd)
            with contextlib.suppress(FileExistsError):
                if self._temporary:
                    os.link(self._temporary, self._path)
                else:
                    os.link(f"/proc/self/fd/{self._fd}", self._path, src_dir_fd=self._fd, follow_symlinks=True)
            flush_directory(os.path.dirname(self._path))
            self._check_marked()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self.abort()

    def _check_marked(self) -> None:
        """A disk that is not mounted, or not any more, has left an empty folder, or none."""
        if not os.path.exists(self._marker):
            raise FileNotFoundError(errno.ENOENT, "the store's marker is not there: is its disk mounted?", self._marker)

    def abort(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)

    def _failure(self, error: OSError) -> SextonError:
        return StoreUnavailableError(f"{error.strerror or error}", self._place, AWAY_REMEDY)


_durable: Final[set[str]] = set()
"""Directories whose names this process has flushed, with all above them up to the folder."""


def _make_durable(root: str, directory: str) -> None:
    """As `FolderStore.put` does: each is flushed into its parent once, whoever made it. Another task may have made it a
    moment ago, and have died before it was flushed."""
    missing = []
    while directory != root and not (directory in _durable and os.path.isdir(directory)):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one)
    for one in missing:
        flush_directory(os.path.dirname(one))
    _durable.update(missing)


def flush_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
