"""A partition's directory: its segments, and what the checkpoints say about it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE
from sexton.compaction.watermarks.checkpoint import decode as decode_watermarks
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.errors import EnvironmentFailure, NotALogError, SextonError
from sexton.records import checkpoints, names
from sexton.records.kernels.primitives import Bytes


@dataclass(frozen=True, slots=True)
class Segment:
    base_offset: int
    path: Path
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition as it is on disk. Offsets are None where no checkpoint has them."""

    directory: Path
    topic: str
    partition: int
    segments: tuple[Segment, ...]
    high_watermark: int | None
    log_start_offset: int
    cleaner_offset: int | None
    """The offset up to which it was compacted, according to Kafka's cleaner or a Sexton broker (MCCO)."""
    watermarks: ReplicaWatermarks | None = None
    """Present if the replica belongs to a Sexton broker."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def log_dir(self) -> Path:
        return self.directory.parent


def find_partitions(paths: Iterable[Path]) -> list[Path]:
    """Partition directories that are named directly, and those inside log directories. Each once, in order."""
    found: dict[Path, None] = {}
    for path in paths:
        resolved = _located(path)
        if not resolved.is_dir():
            what = "this is not a directory" if resolved.exists() else "there is no such directory"
            raise NotALogError(what, str(path), "Name a partition directory (topic-0) or a broker's log directory")
        if _is_partition(resolved):
            found[resolved] = None
            continue
        inside = [child for child in sorted(resolved.iterdir()) if child.is_dir() and _is_partition(child)]
        if not inside:
            raise NotALogError(
                "this is neither a partition directory nor a log directory with partitions in it",
                str(path),
                "A partition directory is named after topic and partition (orders-0) and holds .log files",
            )
        found.update(dict.fromkeys(inside))
    return list(found)


def _located(path: Path) -> Path:
    """Resolves links, except that a partition directory which is a link stays where it is: lock and checkpoints are
    beside the link, where the broker looks, not beside its target."""
    if path.name in ("", ".."):
        return path.resolve()
    located = path.parent.resolve() / path.name
    return located if _is_partition(located) else located.resolve()


ReadCheckpoint = Callable[[Path], Mapping[tuple[str, int], int]]


def open_partition(
    directory: Path, read_checkpoint: ReadCheckpoint = checkpoints.read_offset_checkpoint
) -> PartitionLog:
    """Reads names, sizes and checkpoints; opens no segment. Who opens all partitions of a log directory should keep its
    checkpoints, which have a line for each."""
    parsed = names.parse_partition_dir(directory.name)
    key = (parsed.topic, parsed.partition)
    segments = tuple(list_segments(directory))
    if not segments:
        raise NotALogError("there is no .log file in it", str(directory), "An empty partition needs no work")
    log_dir, watermarks = directory.parent, _watermarks(directory)
    # A Sexton broker keeps the log start beside each log, Kafka keeps all of them in one file.
    starts = [
        read_checkpoint(each / checkpoints.LOG_START_OFFSET_CHECKPOINT).get(key, 0) for each in (log_dir, directory)
    ]
    cleaner_offset = read_checkpoint(log_dir / checkpoints.CLEANER_OFFSET_CHECKPOINT).get(key)
    return PartitionLog(
        directory=directory,
        topic=parsed.topic,
        partition=parsed.partition,
        segments=segments,
        high_watermark=read_checkpoint(log_dir / checkpoints.REPLICATION_OFFSET_CHECKPOINT).get(key),
        log_start_offset=max(*starts, segments[0].base_offset),
        cleaner_offset=cleaner_offset if watermarks is None else watermarks.compacted.keys,
        watermarks=watermarks,
    )


def _watermarks(directory: Path) -> ReplicaWatermarks | None:
    """None if they are missing, damaged, or about another log, as for the broker itself."""
    path = directory / WATERMARKS_FILE
    content = checkpoints.read_file(path)
    incarnation = (checkpoints.read_file(directory / names.INCARNATION_FILE) or b"").decode(errors="replace").strip()
    if content is None:
        return None
    try:
        found = decode_watermarks(content, str(path))
    except SextonError:
        return None
    return found if incarnation in ("", str(found.incarnation)) else None


def write_cleaner_offset(log: PartitionLog, offset: int) -> None:
    """Durable before it is reported or acted on (rule 7). Kafka reads it on its next start."""
    path = log.log_dir / checkpoints.CLEANER_OFFSET_CHECKPOINT
    offsets = dict(_checkpoint(log.log_dir, checkpoints.CLEANER_OFFSET_CHECKPOINT))
    offsets[(log.topic, log.partition)] = offset
    checkpoints.write_offset_checkpoint(path, offsets)


READ_BYTES = 4 << 20


@contextmanager
def mapped(path: str | Path, start: int = 0, end: int | None = None) -> Iterator[Bytes]:
    """A file's bytes as an array, of which only ``[start:end]`` may be used. It ends where the file does.

    Files are mapped, which copies nothing, except a log's last segment. Its broker may be running and truncate it, and
    touching a page that is no longer there kills the process (SIGBUS); it is read into memory.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                view: Bytes = np.zeros(0, dtype=np.uint8)
            elif _is_last(Path(path)):
                view = _read(file.fileno(), size, start, size if end is None else min(end, size))
            else:
                # The map is closed when the last array over it is garbage-collected.
                view = np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), dtype=np.uint8)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot be read ({error.strerror})", str(path), "Check its permissions and the disk"
        ) from error
    yield view


def _read(descriptor: int, size: int, start: int, end: int) -> Bytes:
    """Returns an array of ``size`` bytes, or fewer if the file is shorter by now. Only the pages of ``[start:end]``
    take memory."""
    memory = mmap.mmap(-1, size)
    view, array = memoryview(memory), np.frombuffer(memory, dtype=np.uint8)
    while start < end:
        count = os.preadv(descriptor, [view[start : min(start + READ_BYTES, end)]], start)
        if count == 0:
            return array[:start]
        start += count
    return array


def _is_last(path: Path) -> bool:
    """Whether this is the segment that a running broker appends to."""
    return path.name == _last_segment(path.parent, path.parent.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _last_segment(directory: Path, modified_ns: int) -> str:
    """The file name; empty if there is none. The time is that of the directory's last change: a task asks this for each
    slice of a log that may have thousands of segments."""
    return max((segment.path.name for segment in list_segments(directory)), default="")


def list_segments(directory: Path) -> Iterator[Segment]:
    try:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            file = names.parse_segment_file(entry.name)
            if file is not None and file.kind == names.LOG_SUFFIX and not file.state:
                status = entry.stat()
                yield Segment(file.base_offset, Path(entry.path), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot be listed ({error.strerror})",
            str(error.filename or directory),
            "Check its permissions and the disk",
        ) from error


def _is_partition(directory: Path) -> bool:
    try:
        parsed = names.parse_partition_dir(directory.name)
    except NotALogError:
        return False
    if parsed.state is not names.DirState.LIVE or parsed.topic == names.CLUSTER_METADATA_TOPIC:
        return False
    return any(directory.glob("*" + names.LOG_SUFFIX))


def _checkpoint(log_dir: Path, name: str) -> dict[tuple[str, int], int]:
    return checkpoints.read_offset_checkpoint(log_dir / name)
