"""Carries out the steps of a swap (`sexton.compaction.swap`) on the disk port, or on as much of it as it takes: so
there is one way to take them, for running brokers and for stopped ones (`stopped/swap.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from sexton.compaction import swap
from sexton.compaction.swap import Action, Contents, Step, SwapRecovery
from sexton.errors import CorruptLogError
from sexton.log.batches import SCAN_BYTES, Readable, Walk
from sexton.ports.disk import Disk
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH
from sexton.records.names import CLEANED_SUFFIX, DELETED_SUFFIX, OFFSET_INDEX_SUFFIX, SWAP_SUFFIX, SegmentFile

INDEX_ENTRY_BYTES: Final = 8

STAGING_PREFIX: Final = "staged-"
"""Prefix of the directories, inside a partition's directory, into which compactors write new segments. A Kafka broker
ignores directories there."""

_UNSETTLED: Final = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)


class SwapFile(Readable, Protocol):
    @property
    def size_bytes(self) -> int: ...

    async def flush(self) -> None: ...

    def close(self) -> None: ...


class SwapDisk(Protocol):
    """What a swap needs of the disk port."""

    def open(self, path: str) -> SwapFile: ...

    def list(self, directory: str) -> list[str]: ...

    def exists(self, path: str) -> bool: ...

    def read_file(self, path: str) -> bytes | None: ...

    def rename(self, path: str, new_path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    async def flush_directory(self, directory: str) -> None: ...


def staging_path(directory: str, staging_id: str) -> str:
    return f"{directory}/{STAGING_PREFIX}{staging_id}"


def contents(disk: SwapDisk, directory: str) -> Contents:
    parsed = [swap.parse(name) for name in disk.list(directory)]
    found = [file for file in parsed if file is not None]
    return Contents(directory, found, lambda log: _next_offset(disk, directory, log))


async def carry_out(
    disk: SwapDisk, directory: str, steps: Iterable[Step], committed: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Calls `committed` when the swap cannot be undone any more, before an old file is removed."""
    for step in steps:
        path = f"{directory}/{step.name}"
        match step.action:
            case Action.RENAME | Action.INSTALL:
                disk.rename(path, f"{directory}/{step.target}")
                if disk.exists(path):
                    disk.remove(path)  # it was another link to the target's file: such a rename does nothing
            case Action.REMOVE:
                disk.remove(path)
            case Action.FLUSH_FILE:
                file = disk.open(path)
                try:
                    await file.flush()
                finally:
                    file.close()
            case Action.FLUSH_NAMES:
                await disk.flush_directory(directory)
            case Action.COMMITTED:
                if committed is not None:
                    await committed()


def has_no_swap_in_progress(names: Iterable[str]) -> bool:
    """Whether these names, all names of a directory, show no replacement of segments in progress."""
    return not any(name.endswith(_UNSETTLED) or name.startswith(STAGING_PREFIX) for name in names)


async def recover(disk: SwapDisk, directory: str) -> SwapRecovery:
    """Completes or undoes an interrupted swap."""
    plan = swap.recover(contents(disk, directory))
    await carry_out(disk, directory, plan.steps)
    return plan.outcome


def remove_staged(disk: Disk, directory: str) -> None:
    """Removes what compactors had begun to write when the log was last open; they will not come back for it."""
    for name in disk.list(directory):
        if name.startswith(STAGING_PREFIX):
            disk.remove_tree(f"{directory}/{name}")


def _next_offset(disk: SwapDisk, directory: str, log: SegmentFile) -> int:
    """Scans from the last entry of the index on, or from the start if the index is wrong."""
    file = disk.open(f"{directory}/{log.name}")
    try:
        index = disk.read_file(f"{directory}/{SegmentFile(log.base_offset, OFFSET_INDEX_SUFFIX, log.state).name}")
        entry = (index or b"")[-INDEX_ENTRY_BYTES:]
        position = int.from_bytes(entry[4:], "big", signed=True) if len(entry) == INDEX_ENTRY_BYTES else 0
        for start in (position, 0):
            if 0 <= start < max(1, file.size_bytes):
                walk = Walk(file, start, file.size_bytes, check_crc=False, chunk_bytes=SCAN_BYTES)
                ends = [head.last_offset + 1 for head in walk]
                if walk.fault is None:
                    return ends[-1] if ends else log.base_offset
        raise CorruptLogError(walk.fault or "", f"{directory}/{log.name}", WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
    finally:
        file.close()
