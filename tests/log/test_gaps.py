"""Segments with nothing between them: what compaction left of a log, copied by a follower. That nothing is missing is
known from snapshots, which come and go."""

from __future__ import annotations

import errno
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.files import FileDisk
from sexton.compaction.acceptance import SwapTerms
from sexton.compaction.contract import NewSegment
from sexton.log.flushed import FlushedPoint
from sexton.log.log import Log
from sexton.log.swap_disk import staging_path
from sexton.protocol.errors import KafkaError
from sexton.records import names
from tests.epochs import history
from tests.log.helpers import EPOCH, offsets, open_log, read_all, run
from tests.log.stepping import SteppingDisk
from tests.log.test_changes import at

SETTINGS: dict[str, Any] = {"segment_bytes": 300}
COPIED = [0, 1, 10, 11, 20, 21, 30, 31]
"""Two to a segment."""


async def copied(path: Path) -> Log:
    log = await open_log(path, **SETTINGS)
    await log.replace_epochs(history((EPOCH, 0)))
    log.append_as_follower(b"".join(at(offset, b"a" * 60) for offset in COPIED))
    await log.flush()
    return log


def snapshots(path: Path) -> list[Path]:
    return sorted((path / "orders-0").glob("*.snapshot"))


@pytest.mark.parametrize("content", [b"", b"damaged"])
async def test_a_snapshot_that_cannot_be_read_takes_no_records_with_it(tmp_path: Path, content: bytes) -> None:
    log = await copied(tmp_path)
    assert len(log.summaries()) == 4
    snapshots(tmp_path)[-1].write_bytes(content)
    again = await open_log(tmp_path, **SETTINGS)
    assert offsets(read_all(again)) == COPIED
    assert again.end_offset == 32


async def test_a_snapshot_that_is_lost_takes_no_flushed_records_with_it(tmp_path: Path) -> None:
    log = await copied(tmp_path)
    point = FlushedPoint(uuid.UUID(int=0), log.flushed_offset, EPOCH)
    snapshots(tmp_path)[-1].unlink()
    again = await open_log(tmp_path, flushed_point=point, **SETTINGS)
    assert offsets(read_all(again)) == COPIED


async def adopted(log: Log, bound: int) -> None:
    """What the log holds is swapped in for what it holds: snapshots below the bound go."""
    closed = log.segments.closed(bound)
    last = closed.segments[-1]
    staging = staging_path(log.directory, "adopted")
    log.disk.make_directory(staging)
    path = f"{staging}/{names.log_file_name(last.base_offset, names.CLEANED_SUFFIX)}"
    file = log.disk.open(path, create=True)
    file.append([last.file.read(0, last.size_bytes)])
    file.close()
    replacements = [NewSegment(last.base_offset, -1, (last.base_offset,))]
    await log.swap(closed, staging, replacements, SwapTerms(bound, bound, 0, is_adopted=True))


def test_a_log_that_has_adopted_a_compaction_and_is_cut_then_keeps_the_rest(tmp_path: Path) -> None:
    """A swap takes away the snapshots below its bound, a truncation those above the log's new end; wherever a crash
    interrupts it, the log is the one before or the one after."""
    steps_count = 0
    while run(_is_interrupted_at(tmp_path / str(steps_count), steps_count)):
        steps_count += 1
    assert steps_count > 5


async def _is_interrupted_at(path: Path, step: int) -> bool:
    await adopted(await copied(path), bound=21)
    left = step

    def crash(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, "the process is dead")

    log = await open_log(path, disk=SteppingDisk(FileDisk(), lambda _: None), **SETTINGS)
    log.disk.on_step = crash  # type: ignore[attr-defined]
    with suppress(KafkaError):
        await log.truncate_to(22)
    again = await open_log(path, **SETTINGS)
    assert offsets(read_all(again)) in (COPIED, COPIED[:6]), f"a crash at step {step}"
    assert left < 0 or again.end_offset == 22
    return left < 0
