"""A stretch of a log that is files: one segment, read without leaving a trace.

The broker whose directory it is may be running. So files are opened for reading alone and without touching their access
times, nothing is locked, and what reading brings into the page cache goes again: what the broker had there stays, and
nothing else. A segment may be compacted away between the listing and the reading; then the one that took its place is
read. Segments are copied in pieces, not mapped: a broker may truncate one, and a page that is no longer there kills
whoever touches it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from sexton.errors import CorruptLogError, EnvironmentFailure, SextonError
from sexton.log.stopped.partition import list_segments
from sexton.records.kernels.bounds import whole_batches_end
from sexton.records.kernels.primitives import Bytes, read_i64
from sexton.spark.stretches import PIECE_BYTES, Piece

ATTEMPTS_MAX: Final = 5
"""How often a segment may be replaced while it is opened. A cleaner does that every few seconds at most."""

SWAP_S: Final = 0.05
"""For a moment, while a cleaner renames files, a log lacks a segment."""

TORN_BYTES_MAX: Final = 16 << 20
"""What a follower may append at once, and some more. A batch that claims to reach further has a wrong length."""

PAGE_BYTES: Final = mmap.PAGESIZE
ADVICE_PAGES_MIN: Final = 16
"""Runs of fewer pages stay in the cache: a call for each would cost more than they do."""


@dataclass(frozen=True, slots=True)
class FileStretch:
    """The batches of a segment, or of whatever has taken its place by now, that begin in [from, to)."""

    replica: int
    path: str
    size_bytes: int
    from_offset: int
    to_offset: int
    may_be_torn: bool = False
    """It is appended to, or was when its broker died: a batch that is cut off at its end is taken for the end."""

    def pieces(self) -> Iterator[Piece]:
        for _ in range(ATTEMPTS_MAX):
            try:
                descriptors = _open_all(self)
            except FileNotFoundError:
                time.sleep(SWAP_S)
                continue
            break
        else:
            note, start = f"{self.path} was deleted meanwhile", _log_start(Path(self.path).parent)
            yield Piece(np.zeros(0, dtype=np.uint8), self.path, note=note, log_start_offset=start)
            return
        try:
            for path, descriptor in descriptors:
                yield from _read(path, descriptor, self.to_offset, self.may_be_torn)
        except OSError as error:
            raise unreadable(self.path, error) from error
        finally:
            for _, descriptor in descriptors:
                os.close(descriptor)


def _log_start(directory: Path) -> int:
    try:
        return min((segment.base_offset for segment in list_segments(directory)), default=-1)
    except (SextonError, OSError):
        return -1


def unreadable(path: str, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"cannot be read ({error.strerror})", path, "Check its permissions and the disk")


def open_to_read(path: str | Path) -> int:
    """The access time stays as it is where that is allowed: to the owner, and to root."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _open_all(stretch: FileStretch) -> list[tuple[str, int]]:
    """The segment; if it is gone, those that have its offsets now. None if nothing has them any more."""
    try:
        return [(stretch.path, open_to_read(stretch.path))]
    except FileNotFoundError:
        pass
    except OSError as error:
        raise unreadable(stretch.path, error) from error
    segments = [each for each in list_segments(Path(stretch.path).parent) if each.base_offset < stretch.to_offset]
    at_or_below = [each.base_offset for each in segments if each.base_offset <= stretch.from_offset]
    start = max(at_or_below, default=stretch.from_offset)
    found: list[tuple[str, int]] = []
    try:
        for segment in segments:
            if segment.base_offset >= start:
                found.append((str(segment.path), open_to_read(segment.path)))
    except FileNotFoundError:
        for _, descriptor in found:
            os.close(descriptor)
        raise
    if not found:
        raise FileNotFoundError(stretch.path)
    return found


def _read(path: str, descriptor: int, to_offset: int, may_be_torn: bool) -> Iterator[Piece]:
    with _leaving_no_pages(descriptor):
        position = 0
        carried = 0
        memory = bytearray(PIECE_BYTES)
        while True:
            view = memoryview(memory)
            count = os.preadv(descriptor, [view[carried:]], position + carried)
            data: Bytes = np.frombuffer(memory, dtype=np.uint8)
            filled = carried + count
            end = int(whole_batches_end(data, 0, filled))
            is_over = end > 0 and read_i64(data, 0) >= to_offset
            if is_over or (count == 0 and filled == 0):
                return
            if end == 0 and count:
                if filled == len(memory):
                    needed, left = _batch_bytes(data), os.fstat(descriptor).st_size - position
                    if needed > left:  # perhaps a wrong length, of up to two gigabytes
                        yield _cut_off(path, position, may_be_torn and left <= TORN_BYTES_MAX)
                        return
                    memory = bytearray(memory) + bytearray(needed - len(memory))
                carried = filled
                continue
            yield Piece(data[:end], path, position)
            if count == 0:
                yield _cut_off(path, position + end, may_be_torn and filled - end <= TORN_BYTES_MAX)
                return
            carried = filled - end
            memory[:carried] = memory[end:filled]
            position += end


def _batch_bytes(data: Bytes) -> int:
    return 12 + int.from_bytes(data[8:12].tobytes(), "big")


def _cut_off(path: str, position: int, is_torn: bool) -> Piece:
    if not is_torn:
        raise CorruptLogError(
            "the batch is cut off",
            f"{path} at byte {position}",
            "Restore this partition from another replica (stop the broker, move the directory away and let Kafka copy "
            "it again)",
        )
    note = f"{path} ends in a batch that is cut off, at byte {position}: taken for the end"
    return Piece(np.zeros(0, dtype=np.uint8), path, note=note)


# ---- The page cache ----


@contextmanager
def _leaving_no_pages(descriptor: int) -> Iterator[None]:
    """What was not in the page cache before is not there afterwards."""
    before = resident_pages(descriptor)
    try:
        yield
    finally:
        for start, end in _runs(before):
            os.posix_fadvise(descriptor, start * PAGE_BYTES, (end - start) * PAGE_BYTES, os.POSIX_FADV_DONTNEED)


def _runs(resident: npt.NDArray[np.bool_] | None) -> Iterator[tuple[int, int]]:
    """Of pages that were not there, as far as it is worth a call."""
    if resident is None or resident.all():
        return
    edges = np.flatnonzero(np.diff(np.concatenate([[True], resident, [True]]).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - start >= ADVICE_PAGES_MIN or (start, end) == (0, len(resident)):
            yield start, end


def resident_pages(descriptor: int) -> npt.NDArray[np.bool_] | None:
    """Which of a file's pages are in the page cache. None where that cannot be asked: then all stay."""
    size = os.fstat(descriptor).st_size
    if not size or _mincore is None:
        return None
    pages = -(-size // PAGE_BYTES)
    answer = (ctypes.c_ubyte * pages)()
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapping:
        array: Bytes = np.frombuffer(mapping, dtype=np.uint8)
        failed = _mincore(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(size), answer)
        del array
    return None if failed else (np.frombuffer(bytes(answer), dtype=np.uint8) & 1).astype(np.bool_)


def _find_mincore() -> Callable[[ctypes.c_void_p, ctypes.c_size_t, ctypes.Array[ctypes.c_ubyte]], int] | None:
    """Linux's system call, which Python does not offer."""
    try:
        return cast("Callable[..., int]", ctypes.CDLL(None).mincore)
    except (OSError, AttributeError):
        return None


_mincore = _find_mincore()
