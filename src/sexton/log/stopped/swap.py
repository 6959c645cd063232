"""Replaces segments in the directory of a stopped broker. The steps, and the reasons for their order, are in
`sexton.compaction.swap`; they are taken as in a running broker (`sexton.log.swap_disk`), on a disk that does not wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sexton.compaction import swap as steps
from sexton.compaction.contract import NewSegment
from sexton.compaction.swap import Contents, RecoveryPlan, SwapRecovery
from sexton.errors import EnvironmentFailure, NotALogError
from sexton.log import swap_disk

T = TypeVar("T")


class Files:
    """What a swap needs of a disk, without an event loop: a flush is over when it returns. Every change to a directory
    is a method of its own, so that a test can crash between any two."""

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def flush_file(self, path: str) -> None:
        _fsync(path, os.O_RDONLY)

    async def flush_directory(self, directory: str) -> None:
        _fsync(directory, os.O_RDONLY | os.O_DIRECTORY)

    def open(self, path: str) -> OpenFile:
        return OpenFile(self, path)

    def list(self, directory: str) -> list[str]:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read_file(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None


class OpenFile:
    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def read(self, position: int, size_bytes: int) -> bytes:
        return os.pread(self._file.fileno(), size_bytes, position)

    async def flush(self) -> None:
        self._files.flush_file(self._path)

    def close(self) -> None:
        self._file.close()


FILES: Final = Files()


def commit(partition_dir: Path, new: Sequence[NewSegment], files: Files = FILES) -> None:
    """Replaces old segments by new ones, which are staged. The caller holds the lock and has called `recover`.

    A SwapRefusedError means that nothing was changed. Any other failure, or the end of the process, leaves a
    directory on which `recover` (or a broker's start) yields exactly the old or exactly the new segments.
    """
    with _environment(partition_dir, "replace segments of"):
        wanted = steps.commit(_contents(partition_dir, files), new)
        _at_once(swap_disk.carry_out(files, str(partition_dir), wanted))


def recover(partition_dir: Path, files: Files = FILES) -> SwapRecovery:
    """Completes or undoes what a crash interrupted, ours or a broker's. The caller holds the lock."""
    return _recover(partition_dir, files, "recover", steps.recover)


def clear_staging(partition_dir: Path, files: Files = FILES) -> SwapRecovery:
    """Removes what a failed job staged, and undoes a swap that was not committed."""
    return _recover(partition_dir, files, "clear what was staged in", steps.clear_staging)


def _recover(partition_dir: Path, files: Files, verb: str, decide: Callable[[Contents], RecoveryPlan]) -> SwapRecovery:
    with _environment(partition_dir, verb):
        plan = decide(_contents(partition_dir, files))
        _at_once(swap_disk.carry_out(files, str(partition_dir), plan.steps))
        return plan.outcome


def _contents(partition_dir: Path, files: Files) -> Contents:
    if not partition_dir.is_dir():
        raise NotALogError("no such directory", str(partition_dir), "Name a partition directory, such as orders-0")
    return swap_disk.contents(files, str(partition_dir))


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, wherever we are called, an event loop included."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the disk of a stopped broker made its caller wait")


def _fsync(path: str, flags: int) -> None:
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
