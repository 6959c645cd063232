"""How a task reads a log's bytes, and where it writes.

The pipeline needs three things: ranges of segments to read, a part file to append to, and a new segment joined from
ranges of both. A `Storage` provides them for one partition and is sent to wherever the task runs. `Folder` is a
directory that the task can see; a compactor has another one, through a broker's port. Indexes are written to a `Folder`
alone: a broker makes its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import traceback
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

from sexton.compaction.chunking import Extent, Output
from sexton.errors import EnvironmentFailure, SextonError
from sexton.log.stopped.partition import mapped
from sexton.records import names
from sexton.records.kernels.primitives import Bytes
from sexton.records.ownership import Owner

COPY_STEP_BYTES: Final = 16 * 1024 * 1024

PART_PATTERN: Final = f"*.log.part-*{names.CLEANED_SUFFIX}"
"""Glob pattern of the names of part files."""

Give = Callable[[int], None]
"""Makes the log's owner the owner of an open new file."""


class PartFile(Protocol):
    """A part file. It is created when the first bytes come."""

    @property
    def path(self) -> str: ...

    def append(self, position: int, data: memoryview) -> None:
        """Each piece must begin where the one before it ended."""
        ...

    def close(self) -> None: ...

    def discard(self) -> None: ...


class Storage(Protocol):
    """Raises SextonError for errors that an operator must see; a `Folder` lets OSErrors of a part file through to the
    caller."""

    @property
    def reads_anew(self) -> bool:
        """Whether bytes that were checked once may differ the next time, because they come over a network."""
        ...

    def reading(self, path: str, start: int, end: int) -> AbstractContextManager[Bytes]:
        """Returns a file's bytes at their own positions. Only those from `start` to `end` need be valid."""
        ...

    def new_part(self, base_offset: int, source: Extent | None) -> PartFile:
        """`source` is the one range that the part is made from, if it is only one."""
        ...

    def write_segment(self, output: Output) -> str:
        """Writes the new segment's .log under its ``.cleaned`` name; returns its path."""
        ...

    def remove_parts(self) -> None:
        """Must be called before any swap: a broker's recovery takes a leftover ``.cleaned`` file for a swap that never
        completed.

        Parts are found by name, not by the results of tasks: a task that Spark gave up on may have left one, too.
        """
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """Files in a directory that this process can see. Segments are read at their own paths."""

    directory: str
    like: str = ""
    """A file of the log whose owner and mode new files must have. If empty, they get those of the directory if that is
    permitted: a broker created it, and takes the files over."""
    reads_anew: bool = False

    def reading(self, path: str, start: int, end: int) -> AbstractContextManager[Bytes]:
        return mapped(path, start, end)

    def new_part(self, base_offset: int, source: Extent | None) -> PartFile:
        is_segment = source is not None and _is_whole(source)
        return LocalPart(part_path(self.directory, base_offset), is_segment, self._give)

    def write_segment(self, output: Output) -> str:
        target = Path(self.directory) / names.log_file_name(output.new.base_offset, names.CLEANED_SUFFIX)
        try:
            _write_log(output, self.directory, target, self._give)
        except OSError as error:
            raise disk_failure(error, self.directory) from error
        return str(target)

    def write_index(self, name: str, content: bytes) -> None:
        try:
            with open(Path(self.directory) / name, "wb") as file:
                self._give(file.fileno())
                file.write(content)
        except OSError as error:
            raise disk_failure(error, self.directory) from error

    def remove_parts(self) -> None:
        for path in Path(self.directory).glob(PART_PATTERN):
            path.unlink(missing_ok=True)

    def _give(self, descriptor: int) -> None:
        """Makes the log's owner the owner of a new file."""
        if self.like:
            Owner.of_file(self.like).give(descriptor)
        else:
            with suppress(PermissionError):
                Owner.of_files_in(self.directory).give(descriptor)


class LocalPart:
    def __init__(self, path: str, becomes_segment: bool, give: Give) -> None:
        self.path = path
        self._becomes_segment = becomes_segment
        self._give = give
        self._descriptor = -1

    def append(self, position: int, data: memoryview) -> None:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            self._give(self._descriptor)
        rest = data
        while len(rest):
            rest = rest[os.write(self._descriptor, rest) :]
        if self._becomes_segment:
            _start_writeback(self._descriptor, position, len(data))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def discard(self) -> None:
        self.close()
        Path(self.path).unlink(missing_ok=True)


def part_path(directory: str, base_offset: int) -> str:
    """Returns a name that no other attempt uses: one that Spark has given up on may still be writing."""
    return f"{directory}/{base_offset:020d}.log.part-{uuid.uuid4().hex}{names.CLEANED_SUFFIX}"


def disk_failure(error: OSError, directory: str) -> EnvironmentFailure:
    remedy = "Nothing was changed. Check the disk and try again"
    if error.errno in (errno.EPERM, errno.EACCES):
        remedy = "Nothing was changed. Run as the user whose files these are, or as root, also where Spark's tasks run"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Nothing was changed. Free as much space as the compacted partition will need, then try again"
    if error.errno == errno.ENOENT and error.filename:
        return EnvironmentFailure(
            "it is gone: its topic was deleted, or it was replaced or expired meanwhile",
            str(error.filename),
            "Nothing was changed. If the partition is still there, the next pass plans on what is there then",
        )
    return EnvironmentFailure(f"staging the compacted log failed ({error.strerror})", directory, remedy)


class PassFailedError(SextonError):
    """A bug in the work on one partition. The others go on; the cause may be in that partition's bytes."""


def failure_of(error: Exception, place: str) -> SextonError:
    """Turns any exception of a task into a failure of its own partition: a job has hundreds of them."""
    if isinstance(error, SextonError):
        return error
    if isinstance(error, OSError):
        return disk_failure(error, place)
    if isinstance(error, MemoryError):
        return EnvironmentFailure("there is not enough memory", place, "Nothing was changed. Give Spark more of it")
    line = traceback.extract_tb(error.__traceback__)[-1]
    return PassFailedError(
        f"{type(error).__name__} in {line.name} ({Path(line.filename).name}:{line.lineno}): {error}",
        place,
        "Nothing was changed. This is a bug: please report it with this line",
    )


def _write_log(output: Output, directory: str, target: Path, give: Give) -> None:
    """Writes and flushes the log: uses a task's part file as it is, or copies several ranges.

    Spark may run this again, also while it is running: a part file that is gone has become the segment.
    """
    part = Path(output.extents[0].path)
    if len(output.extents) == 1 and part.match(PART_PATTERN):
        try:
            if _is_whole(output.extents[0]):
                _flush(part)
                os.rename(part, target)
                return
        except FileNotFoundError:
            if not target.exists() or target.stat().st_size != output.size_bytes:
                raise
            return
    part = Path(part_path(directory, output.new.base_offset))
    _concatenate(output, part, give)
    os.rename(part, target)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_whole(extent: Extent) -> bool:
    return extent.start == 0 and extent.end == os.path.getsize(extent.path)


def _concatenate(output: Output, target: Path, give: Give) -> None:
    with open(target, "wb") as out:
        give(out.fileno())
        sources: dict[str, int] = {}
        try:
            for extent in output.extents:
                if extent.path not in sources:
                    sources[extent.path] = os.open(extent.path, os.O_RDONLY)
                _copy_range(sources[extent.path], extent.start, extent.end, out.fileno())
        finally:
            for descriptor in sources.values():
                os.close(descriptor)
        os.fsync(out.fileno())


def _copy_range(source: int, start: int, end: int, target: int) -> None:
    """Copies inside the kernel; across file systems that cannot, sendfile still avoids user memory."""
    while start < end:
        count = min(end - start, COPY_STEP_BYTES)
        try:
            copied = os.copy_file_range(source, target, count, offset_src=start)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            copied = os.sendfile(target, source, start, count)
        if copied == 0:
            raise OSError(errno.EIO, "a source file became shorter")
        _start_writeback(target, os.lseek(target, 0, os.SEEK_CUR) - copied, copied)
        start += copied


def _start_writeback(descriptor: int, start: int, size_bytes: int) -> None:
    """Starts writing to disk now, so that the flush before the commit has little left to do. A hint: it may fail."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, start, size_bytes, SYNC_FILE_RANGE_WRITE)


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux's system call, which Python does not offer."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return cast("Callable[[int, int, int, int], int]", function)


SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = _find_sync_file_range()
