"""Logs on a real disk, batches as clients send them, and what is in a log, read with the reference codec."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sexton.adapters.files import FileDisk
from sexton.log import opening
from sexton.log.flushed import FlushedPoint
from sexton.log.log import Log
from sexton.ports.disk import FileSlice
from sexton.ports.network import Part
from sexton.records.batch import Batch, ControlType, Record, decode_all, encode, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch

T = TypeVar("T")

TOPIC_ID = uuid.UUID(int=0x1234)
NOW_MS = 1_700_000_000_000
EPOCH = LeaderEpoch(3)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


async def open_log(
    path: Path,
    *,
    is_clean: bool = False,
    now_ms: int = NOW_MS,
    disk: Any = None,
    flushed_point: FlushedPoint | None = None,
    keeps_its_start: bool = False,
    **settings: Any,
) -> Log:
    config = TopicConfig(**settings)
    directory = str(path / "orders-0")
    return await opening.open_log(
        disk or FileDisk(),
        directory,
        "orders",
        0,
        TOPIC_ID,
        config,
        now_ms=now_ms,
        stopped_cleanly=is_clean,
        flushed_point=flushed_point,
        keeps_its_start=keeps_its_start,
    )


def with_log(path: Path, work: Callable[[Log], Coroutine[Any, Any, T]], **settings: Any) -> T:
    """One log, opened as if for the first time."""

    async def go() -> T:
        return await work(await open_log(path, **settings))

    return run(go())


def records(*values: bytes | None, time_ms: int = NOW_MS, key: bytes | None = b"key") -> list[Record]:
    return [Record(index, time_ms + index, key, value) for index, value in enumerate(values)]


def plain(*values: bytes | None, time_ms: int = NOW_MS, key: bytes | None = b"key", **fields: int) -> bytes:
    """A batch as a producer sends it."""
    return encode(make_batch(records(*values, time_ms=time_ms, key=key), **{"leader_epoch": -1, **fields}))


def sequenced(sequence: int, count: int = 1, *, pid: int = 7, epoch: int = 0, is_open: bool = False) -> bytes:
    """Of an idempotent producer, or a transactional one."""
    attributes = TRANSACTIONAL if is_open else 0
    return plain(*[b"v"] * count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, attributes=attributes)


def marker(control_type: ControlType, *, pid: int = 7, epoch: int = 0) -> bytes:
    return encode(make_marker(0, control_type, pid, epoch, NOW_MS, leader_epoch=-1))


def lead(log: Log, *batches: bytes, epoch: int = EPOCH, now_ms: int = NOW_MS) -> list[int]:
    """Appended as a client's; the first offset of each."""
    return [log.append_as_leader(batch, LeaderEpoch(epoch), now_ms).first_offset for batch in batches]


def end_transaction(log: Log, control_type: ControlType, *, pid: int = 7, epoch: int = 0) -> int:
    return log.append_as_leader(
        marker(control_type, pid=pid, epoch=epoch), EPOCH, NOW_MS, from_client=False
    ).first_offset


def content(parts: Sequence[Part]) -> bytes:
    return b"".join(
        part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else bytes(part) for part in parts
    )


def read_all(log: Log, *, max_bytes: int = 1 << 20, from_offset: int | None = None) -> list[Batch]:
    """By reading on from each read's next offset."""
    batches: list[Batch] = []
    offset = log.start_offset if from_offset is None else from_offset
    while offset < log.end_offset:
        read = log.read(offset, max_bytes, log.end_offset, min_one=True)
        data = content(read.parts)
        assert len(data) == read.size_bytes
        assert read.next_offset > offset
        batches += decode_all(data)
        offset = read.next_offset
    return batches


def offsets(batches: Sequence[Batch]) -> list[int]:
    return [batch.base_offset for batch in batches]


def files(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "orders-0").iterdir())
