"""How far a log was flushed, and whether it acknowledges more than that. Recovery and the cluster depend on both.

A *flushed point* is a lower bound that outlives the process: everything below its offset was on disk. It belongs to one
log and one history: if the epoch of the record before it has changed, the log was truncated since, and the point is
void.

The *mark* beside a log says that it may have acknowledged records that are not on its disk. It is written, durably,
before the first such acknowledgement, and removed when everything is flushed and the topic flushes first; so a crash is
judged by what was in force then, not by the topic's configs at the next start. It names the page cache that holds the
unflushed records: a process that dies alone loses nothing (docs/decisions, 19).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.log.epochs import epoch_of
from sexton.ports.disk import Disk
from sexton.records.checkpoints import EpochEntry
from sexton.types import NO_EPOCH, LeaderEpoch

MARK_FILE: Final = "acknowledges-unflushed"
logger = logging.getLogger(__name__)

_TITLE: Final = "sexton flushed points 1"


class FlushedPoint(NamedTuple):
    incarnation: uuid.UUID
    offset: int
    epoch: LeaderEpoch
    """Leader epoch of the record before `offset`."""

    def bound(self, history: Sequence[EpochEntry]) -> int:
        """The offset below which a log with this history was flushed; 0 if the point does not belong to that
        history."""
        return self.offset if NO_EPOCH != self.epoch == epoch_of(history, self.offset - 1) else 0


Points = Mapping[tuple[str, int], FlushedPoint]


def encode_points(points: Points) -> bytes:
    lines = [f"{topic} {partition} {' '.join(map(str, point))}" for (topic, partition), point in points.items()]
    body = "".join(f"{line}\n" for line in (_TITLE, *lines)).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_points(data: bytes) -> dict[tuple[str, int], FlushedPoint]:
    """Returns no points if the file is damaged: they help recovery, but it does not depend on them."""
    body, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    title, *lines = body.decode(errors="replace").splitlines()
    if checksum != f"crc32c {crc32c(body):08x}".encode() or title != _TITLE or not data.endswith(b"\n"):
        return {}
    points = {}
    for line in lines:
        topic, partition, incarnation, offset, epoch = line.split(" ")
        points[topic, int(partition)] = FlushedPoint(uuid.UUID(incarnation), int(offset), LeaderEpoch(int(epoch)))
    return points


def is_marked(disk: Disk, directory: str) -> bool:
    return disk.exists(f"{directory}/{MARK_FILE}")


def mark_content(disk: Disk) -> bytes:
    return (disk.page_cache_id() or "").encode()


def is_kept(disk: Disk, directory: str) -> bool:
    """Whether a marked log still has everything that it ever acknowledged: the page cache is the same, and no flush
    failed."""
    content = disk.read_file(f"{directory}/{MARK_FILE}")
    return bool(content) and content == mark_content(disk)


async def mark(disk: Disk, directory: str, *, is_whole: bool) -> None:
    """Writes the mark, durable on return. `is_whole` says that the log lacks nothing as it is now."""
    await disk.replace_file(f"{directory}/{MARK_FILE}", mark_content(disk) if is_whole else b"")


def distrust(disk: Disk, directory: str) -> None:
    """A flush has failed: what the page cache shows may never reach the device. Emptying the mark records that for the
    next process, without a flush: if the machine goes down, the page cache is another one anyway."""
    path = f"{directory}/{MARK_FILE}"
    try:
        if disk.exists(path):
            file = disk.open(path)
            file.truncate(0)
            file.close()
    except OSError as error:
        logger.error("%s: cannot record that a flush failed: %s", path, error)


async def unmark(disk: Disk, directory: str) -> None:
    disk.remove(f"{directory}/{MARK_FILE}")
    await disk.flush_directory(directory)
