"""A replica's watermarks on its disk: one small file beside the log, replaced as a whole.

    sexton watermarks 1
    incarnation 3f2c...
    generation 0
    mcco 1200
    mxfo 1200
    mtro 900
    mxro 900
    planned 1300
    fence 0
    epoch 7
    crc32c 9a0b1c2d

The last line is the checksum of all bytes before it. A file counts as missing if it is damaged, was written by a later
version, or belongs to another incarnation. If it is missing beside a log with records, the replica knows nothing of its
past, and the fetch fence decides what that means (`ReplicaWatermarks.of_unknown_past`). A new log gets its file before
its first record, so a missing file is a lost one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from sexton.compaction.watermarks.replica import UNKNOWN_EPOCH, Pair, ReplicaWatermarks
from sexton.errors import CorruptLogError, SextonError, UnsupportedFormatError
from sexton.ports.disk import Disk
from sexton.types import OFFSET_MAX, LeaderEpoch

logger = logging.getLogger(__name__)

WATERMARKS_FILE: Final = "compaction-watermarks"
VERSION: Final = 1
_TITLE: Final = "sexton watermarks"
_FIELDS: Final = ("generation", "mcco", "mxfo", "mtro", "mxro", "planned", "fence")
_EPOCH: Final = "epoch"
"""Not in files of earlier builds, which ignore it."""


def encode(watermarks: ReplicaWatermarks) -> bytes:
    numbers = (
        watermarks.generation,
        *watermarks.compacted,
        *watermarks.removable,
        watermarks.planned_high_watermark,
        watermarks.fence_below,
    )
    lines = [f"{_TITLE} {VERSION}", f"incarnation {watermarks.incarnation}"]
    lines += [f"{name} {number}" for name, number in zip(_FIELDS, numbers, strict=True)]
    lines += [f"{_EPOCH} {watermarks.epoch}"]
    body = "".join(f"{line}\n" for line in lines).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode(data: bytes, place: str) -> ReplicaWatermarks:
    """Raises CorruptLogError or UnsupportedFormatError."""
    body, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    if checksum != f"crc32c {crc32c(body):08x}".encode() or not data.endswith(b"\n"):
        raise _corrupt("its checksum does not match", place)
    title, *lines = body.decode(errors="replace").splitlines()
    name, _, version = title.rpartition(" ")
    if name != _TITLE or not version.isdecimal():
        raise _corrupt("it does not begin as it should", place)
    if int(version) > VERSION:
        raise UnsupportedFormatError(
            f"it has version {version}, and this build knows versions up to {VERSION}",
            place,
            "A newer Sexton has written it: run that one",
        )
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    try:
        incarnation = uuid.UUID(found["incarnation"])
        generation, mcco, mxfo, mtro, mxro, planned, fence = (int(found[name]) for name in _FIELDS)
        epoch = LeaderEpoch(int(found.get(_EPOCH, UNKNOWN_EPOCH)))
    except (KeyError, ValueError) as error:
        raise _corrupt(f"a line is missing or makes no sense ({error})", place) from error
    if not all(0 <= number <= OFFSET_MAX for number in (generation, mcco, mxfo, mtro, mxro, planned, fence)):
        raise _corrupt("a number in it is no offset", place)
    return ReplicaWatermarks(
        incarnation=incarnation,
        generation=generation,
        compacted=Pair(mcco, mxfo),
        removable=Pair(mtro, mxro),
        planned_high_watermark=planned,
        fence_below=fence,
        epoch=epoch,
    )


def _corrupt(what: str, place: str) -> CorruptLogError:
    return CorruptLogError(what, place, "The replica compacts again from its start; remove the file if this repeats")


class Kept:
    """A replica's watermarks as they are on disk. Only `value` is reported or acted on: durable first (rule 7)."""

    def __init__(self, disk: Disk, directory: str, value: ReplicaWatermarks) -> None:
        self._disk = disk
        self._path = f"{directory}/{WATERMARKS_FILE}"
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False
        self.value = value

    @staticmethod
    async def open(disk: Disk, directory: str, incarnation: uuid.UUID, log_start: int, log_end: int) -> Kept:
        """Reads the watermarks of the log in this directory. On return the file exists."""
        path = f"{directory}/{WATERMARKS_FILE}"
        data = disk.read_file(path)
        value: ReplicaWatermarks | None = None
        if data is not None:
            try:
                value = decode(data, path)
            except SextonError as error:
                logger.error("%s. It is unknown how far this replica is compacted: it counts as not compacted", error)
            if value is not None and value.incarnation != incarnation:
                logger.warning("%s belongs to another log (%s): treated as missing", path, value.incarnation)
                value = None
        if value is not None:
            return Kept(disk, directory, value)
        if log_start == log_end:
            value = ReplicaWatermarks(incarnation)
        else:
            value = ReplicaWatermarks.of_unknown_past(incarnation, log_end)
        kept = Kept(disk, directory, value)
        await disk.replace_file(path, encode(value))
        return kept

    async def keep(self, change: Callable[[ReplicaWatermarks], ReplicaWatermarks]) -> bool:
        """Makes a change durable, then visible in `value`. Returns False if it changes nothing, or the log is
        deleted."""
        async with self._one_at_a_time:
            changed = change(self.value)
            if changed == self.value or self._is_closed:
                return False
            await self._disk.replace_file(self._path, encode(changed))
            self.value = changed
            return True

    async def close(self) -> None:
        """Called before the log is deleted: a later write would end up beside the next log of that name."""
        async with self._one_at_a_time:
            self._is_closed = True
