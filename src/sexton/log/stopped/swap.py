"""Replaces segments in the directory of a stopped broker. The steps, and the reasons for their order, are in
`sexton.compaction.swap`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sexton.compaction import swap as steps
from sexton.compaction.swap import (
    Action,
    Contents,
    Outcome,
    Recovery,
    RecoveryPlan,
    StagedSegment,
    Step,
    SwapRefusedError,
)
from sexton.errors import CorruptLogError, EnvironmentFailure, NotALogError, UnsupportedFormatError
from sexton.records import batch
from sexton.records.names import OFFSET_INDEX_SUFFIX, SegmentFile

__all__ = [
    "FILES",
    "Files",
    "Outcome",
    "Recovery",
    "StagedSegment",
    "SwapRefusedError",
    "clear_staging",
    "commit",
    "recover",
]

_INDEX_ENTRY = struct.Struct(">ii")  # relative offset, position


class Files:
    """Every change that this module makes to a directory, so that a test can crash between any two."""

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def fsync_file(self, path: Path) -> None:
        _fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


FILES: Final = Files()


def commit(
    partition_dir: Path, new: Sequence[StagedSegment], old_base_offsets: Sequence[int], files: Files = FILES
) -> None:
    """Replaces the old segments by the staged ones. The caller holds the lock and has called `recover`.

    A SwapRefusedError means that nothing was changed. Any other failure, or the end of the process, leaves a
    directory on which `recover` (or a broker's start) yields exactly the old or exactly the new segments.
    """
    with _environment(partition_dir, "replace segments of"):
        _carry_out(files, partition_dir, steps.commit(_contents(partition_dir), new, old_base_offsets))


def recover(partition_dir: Path, files: Files = FILES) -> Recovery:
    """Completes or undoes what a crash interrupted, ours or a broker's. The caller holds the lock."""
    return _recover(partition_dir, files, "recover", steps.recover)


def clear_staging(partition_dir: Path, files: Files = FILES) -> Recovery:
    """Removes what a failed job staged, and undoes a swap that was not committed."""
    return _recover(partition_dir, files, "clear what was staged in", steps.clear_staging)


def _recover(partition_dir: Path, files: Files, verb: str, decide: Callable[[Contents], RecoveryPlan]) -> Recovery:
    with _environment(partition_dir, verb):
        plan = decide(_contents(partition_dir))
        _carry_out(files, partition_dir, plan.steps)
        return plan.recovery


def _carry_out(files: Files, partition_dir: Path, steps: Iterable[Step]) -> None:
    for step in steps:
        path = partition_dir / step.name
        match step.action:
            case Action.RENAME:
                files.rename(path, partition_dir / step.target)
            case Action.INSTALL:
                _install(files, path, partition_dir / step.target)
            case Action.REMOVE:
                files.unlink(path)
            case Action.FLUSH_FILE:
                files.fsync_file(path)
            case Action.FLUSH_NAMES:
                files.fsync_dir(partition_dir)


def _install(files: Files, source: Path, target: Path) -> None:
    if target.exists() and source.samefile(target):
        files.unlink(source)
    else:
        files.rename(source, target)


# --- what is there ---


def _contents(partition_dir: Path) -> Contents:
    return Contents(str(partition_dir), _scan(partition_dir), lambda log: _next_offset(partition_dir, log))


def _scan(partition_dir: Path) -> list[SegmentFile]:
    if not partition_dir.is_dir():
        raise NotALogError("no such directory", str(partition_dir), "Name a partition directory, such as orders-0")
    with os.scandir(partition_dir) as entries:
        parsed = [steps.parse(entry.name) for entry in entries if entry.is_file()]
    return sorted((file for file in parsed if file is not None), key=lambda file: file.name)


def _next_offset(partition_dir: Path, log: SegmentFile) -> int:
    """The offset after the last batch of a `.log` file in any state, found from its index's last entry on."""
    path = partition_dir / log.name
    position = _last_indexed_position(partition_dir / SegmentFile(log.base_offset, OFFSET_INDEX_SUFFIX, log.state).name)
    if position:
        with contextlib.suppress(CorruptLogError, UnsupportedFormatError):
            return _scan_next_offset(path, position, log.base_offset)
    return _scan_next_offset(path, 0, log.base_offset)


def _last_indexed_position(index: Path) -> int:
    try:
        with index.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END) // _INDEX_ENTRY.size * _INDEX_ENTRY.size
            file.seek(max(0, size_bytes - _INDEX_ENTRY.size))
            entry = file.read(_INDEX_ENTRY.size)
    except FileNotFoundError:
        return 0
    return max(0, int(_INDEX_ENTRY.unpack(entry)[1])) if len(entry) == _INDEX_ENTRY.size else 0


def _scan_next_offset(path: Path, position: int, base_offset: int) -> int:
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        return base_offset
    if position >= size_bytes:
        raise CorruptLogError(f"the index points to byte {position}, past the end", str(path))
    next_offset = base_offset
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        while position < size_bytes:
            header = batch.decode_header(view, position, str(path))
            next_offset = header.next_offset
            position += header.size_bytes
    return next_offset


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _environment(partition_dir: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(
            f"could not {verb} the partition: {error.strerror or error}",
            error.filename if isinstance(error.filename, str) else str(partition_dir),
            "No record is lost. Repair the disk, then run this again or start the broker: either finishes "
            "the step or undoes it",
        ) from error
