"""Replacing segments of a partition directory in one step that a crash cannot halve.

There is no system call that replaces five files by three, so the step is a dance of renames, and what makes
it one step is the recovery that reads the names afterwards. We use Kafka's own names and order, because
after a crash the next program to open the directory may be a broker: its loader must come to the same log
as our `recover`.

What the loader does on start, and `recover` too (numbers are its passes):

1. `.deleted` files go. A `.swap` file with the base offset of some `.cleaned` file, or a higher one, was
   not meant yet: it goes, and then all `.cleaned` files go.
2. The `.log.swap` files that are left span a range, from the lowest base offset to the highest next offset
   *in the files*. Every other segment file in that range is taken for what they replace, and goes.
3. Every `.swap` file loses its suffix.

From that, the order of `commit`:

- **`.cleaned` to `.swap`, highest base offset first.** While one file of the lowest segment still ends in
  `.cleaned`, every `.swap` file is void; with the last rename all of them count at once. *That rename is
  the commit.* Within a segment any order has this property, since any kind of file can be the one that
  voids; we rename the `.log` last, so that the commit is the appearance of the lowest `.log.swap`.
- **Old files to `.deleted`.** In any order: all `.log.swap` files are there, so pass 2 deletes what we did
  not reach.
- **`.swap` to final: every `.log` first, lowest base offset first; then the indexes.** A final index beside
  a `.log.swap` would be deleted in pass 2. Kafka would rebuild a lost `.index`, but takes a lost
  `.timeindex` for an old format and a lost `.txnindex` for "nothing was aborted here", which would show
  aborted records to consumers. Lowest first, because the `.log.swap` files that remain must not span one
  that is already final. (Once no `.log.swap` is left there is no range, and an `.index.swap` is simply
  renamed.)
- **Then** the `.deleted` files go, and the producer snapshots of base offsets that no longer exist.

A power failure may also lose or reorder renames that the directory was not flushed after, so it is flushed
wherever the order above matters: before and after the commit, after the old files, and after each `.log`.

Unchanged segments in the span are staged as hard links to themselves. rename() onto another link of the
same file does nothing and says it succeeded, so no rename here may meet an existing name; `commit` makes
sure of that before it starts, and `recover` unlinks instead.

Our recovery differs from the loader's where the loader is careless: it keeps the producer snapshot of a
base offset that continues to exist, and it flushes and orders its own steps, so it may itself crash
anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from sexton.errors import (
    CorruptLogError,
    EnvironmentFailure,
    NotALogError,
    SextonError,
    UnsupportedFormatError,
)
from sexton.records import batch
from sexton.records.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SegmentFile,
    parse_segment_file,
)

REQUIRED_KINDS: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
SEGMENT_KINDS: Final = (*REQUIRED_KINDS, TRANSACTION_INDEX_SUFFIX)
_STRANGER = re.compile(r"([0-9]{20})(\..+)(\.cleaned|\.swap|\.deleted)")
_INDEX_ENTRY = struct.Struct(">ii")  # relative offset, position


class SwapRefusedError(SextonError):
    """The replacement would not survive a crash, or is not the one that was planned. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A new segment, complete in `.cleaned` files. `end_offset` is the next offset after its last batch.

    The end matters because it decides what a recovery deletes, so `commit` compares it with the file.
    """

    base_offset: int
    end_offset: int


class Outcome(Enum):
    NOTHING = "nothing"
    ROLLED_BACK = "rolled back"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done about an interrupted step. NOTHING may still have removed `.deleted` files, which belong
    to a step that was over (a broker leaves them, too, when it stops within file.delete.delay.ms)."""

    outcome: Outcome
    removed: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()


class Files:
    """Every change that this module makes to a directory, so that a test can crash between any two."""

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def fsync_file(self, path: Path) -> None:
        _fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


FILES: Final = Files()


def stage_unchanged(partition_dir: Path, base_offset: int, files: Files = FILES) -> None:
    """Stages a segment as it is, without copying a byte, so that it can stand inside a span that changes."""
    with _environment(partition_dir, "stage a segment of"):
        for file in _select(_scan(partition_dir), bases={base_offset}, kinds=SEGMENT_KINDS, state=""):
            files.link(partition_dir / file.name, partition_dir / _as(file, CLEANED_SUFFIX).name)


def commit(
    partition_dir: Path, new: Sequence[StagedSegment], old_base_offsets: Sequence[int], files: Files = FILES
) -> None:
    """Replaces the old segments by the staged ones. The caller holds the lock and has called `recover`.

    A SwapRefusedError means that nothing was changed. Any other failure, or the end of the process, leaves a
    directory on which `recover` (or a broker's start) yields exactly the old or exactly the new segments.

    Segments staged for a *later* span may be there already. Ones of an earlier span may not: their `.cleaned`
    files would void ours.
    """
    with _environment(partition_dir, "replace segments of"):
        found = _scan(partition_dir)
        _check_segments(partition_dir, found, new, old_base_offsets)
        _check_leftovers(partition_dir, found, new)
        _check_ends(partition_dir, new)

        start, end = new[0].base_offset, new[-1].end_offset
        new_bases = {segment.base_offset for segment in new}
        staged = _select(found, bases=new_bases, kinds=SEGMENT_KINDS, state=CLEANED_SUFFIX)
        for file in staged:
            files.fsync_file(partition_dir / file.name)
        files.fsync_dir(partition_dir)

        *most, last = sorted(staged, key=lambda file: (-file.base_offset, file.kind == LOG_SUFFIX))
        for file in most:
            _rename(files, partition_dir, file, SWAP_SUFFIX)
        files.fsync_dir(partition_dir)
        _rename(files, partition_dir, last, SWAP_SUFFIX)
        files.fsync_dir(partition_dir)

        old = [file for file in found if _is_live_segment_file(file) and start <= file.base_offset < end]
        for file in old:
            _rename(files, partition_dir, file, DELETED_SUFFIX)
        files.fsync_dir(partition_dir)

        _install(files, partition_dir, [_as(file, SWAP_SUFFIX) for file in staged])
        stale = _select(found, set(old_base_offsets) - new_bases, [PRODUCER_SNAPSHOT_SUFFIX], "")
        # Snapshots before the .deleted files, whose names tell a recovery which snapshots are stale.
        _remove(files, partition_dir, stale)
        _remove(files, partition_dir, [_as(file, DELETED_SUFFIX) for file in old])


def recover(partition_dir: Path, files: Files = FILES) -> Recovery:
    """Finishes or undoes what a crash interrupted, ours or a broker's. The caller holds the lock.

    Run it before planning anything on a partition: until then, the names do not say what the log is.
    """
    with _environment(partition_dir, "recover"):
        found = _scan(partition_dir)
        void, cleaned = _void_files(found)
        swap = [file for file in found if file.state == SWAP_SUFFIX and file not in void]
        replaced = _replaced_files(partition_dir, found, swap)

        _remove(files, partition_dir, void)
        _remove(files, partition_dir, cleaned)
        _remove(files, partition_dir, replaced)
        _install(files, partition_dir, swap)

        deleted = [file for file in found if file.state == DELETED_SUFFIX]
        stale = _stale_snapshots(_scan(partition_dir), deleted)
        _remove(files, partition_dir, stale)
        _remove(files, partition_dir, deleted)

        removed = [file.name for file in (*void, *cleaned, *replaced, *stale, *deleted)]
        outcome = Outcome.COMPLETED if swap else Outcome.ROLLED_BACK if cleaned or void else Outcome.NOTHING
        return Recovery(outcome, tuple(removed), tuple(_as(file, "").name for file in swap))


def clear_staging(partition_dir: Path, files: Files = FILES) -> Recovery:
    """Throws away what a failed job staged. Also undoes a commit that did not reach its point of no return:
    removing only the `.cleaned` files would promote the `.swap` files that they void."""
    with _environment(partition_dir, "clear what was staged in"):
        void, cleaned = _void_files(_scan(partition_dir))
        _remove(files, partition_dir, void)
        _remove(files, partition_dir, cleaned)
        outcome = Outcome.ROLLED_BACK if cleaned else Outcome.NOTHING
        return Recovery(outcome, tuple(file.name for file in (*void, *cleaned)))


# --- what must be true before a commit ---


def _check_segments(
    partition_dir: Path, found: Collection[SegmentFile], new: Sequence[StagedSegment], old: Sequence[int]
) -> None:
    place = str(partition_dir)
    if not new or not old:
        raise _refused(place, "a replacement needs at least one old and one new segment")
    if any(segment.end_offset <= segment.base_offset for segment in new):
        raise _refused(place, "a staged segment is empty, so a recovery could not tell what it replaces")
    if any(one.end_offset > two.base_offset for one, two in itertools.pairwise(new)):
        raise _refused(place, "the staged segments overlap or are not in offset order")
    if list(old) != sorted(set(old)):
        raise _refused(place, "the segments to replace are not in offset order")
    start, end = new[0].base_offset, new[-1].end_offset
    if start != old[0] or end <= old[-1]:
        raise _refused(
            place,
            f"the staged segments span offsets {start} to {end}, which is not the span of the segments "
            f"{old[0]} to {old[-1]} that they replace; a recovery would keep the rest of those",
        )
    live = {file.base_offset for file in found if file.kind == LOG_SUFFIX and not file.state}
    missing = sorted(set(old) - live)
    if missing:
        raise _refused(place, f"the segments to replace at offsets {missing} do not exist")
    bystanders = sorted(base for base in live - set(old) if start <= base < end)
    if bystanders:
        raise _refused(place, f"the segments at offsets {bystanders} lie in the span but are not to be replaced")
    names = {file.name for file in found}
    staged = [SegmentFile(segment.base_offset, kind, CLEANED_SUFFIX) for segment in new for kind in REQUIRED_KINDS]
    absent = [file.name for file in staged if file.name not in names]
    if absent:
        raise _refused(place, f"{', '.join(absent)} was not staged")


def _check_leftovers(partition_dir: Path, found: Iterable[SegmentFile], new: Sequence[StagedSegment]) -> None:
    """An unfinished step in the same directory would mix with ours when either is recovered."""
    ours = {segment.base_offset for segment in new}
    for file in found:
        earlier = file.state == CLEANED_SUFFIX and file.base_offset < new[-1].end_offset
        stranger = earlier and (file.base_offset not in ours or file.kind not in SEGMENT_KINDS)
        if file.state in (SWAP_SUFFIX, DELETED_SUFFIX) or stranger:
            raise _refused(str(partition_dir), f"{file.name} is left over from another replacement")


def _check_ends(partition_dir: Path, new: Sequence[StagedSegment]) -> None:
    for segment in new:
        end_offset = _next_offset(partition_dir, SegmentFile(segment.base_offset, LOG_SUFFIX, CLEANED_SUFFIX))
        if end_offset != segment.end_offset:
            raise _refused(
                str(partition_dir),
                f"the segment staged at offset {segment.base_offset} ends at {end_offset}, not at {segment.end_offset}",
            )


def _refused(place: str, what: str) -> SwapRefusedError:
    return SwapRefusedError(
        what, place, "Nothing was changed. Run `sexton compact` again: it clears leftovers and plans anew"
    )


# --- what the names say ---


def _void_files(found: Collection[SegmentFile]) -> tuple[list[SegmentFile], list[SegmentFile]]:
    """The `.swap` files that do not count, and the `.cleaned` files that say so. Remove in this order."""
    cleaned = [file for file in found if file.state == CLEANED_SUFFIX]
    if not cleaned:
        return [], []
    lowest = min(file.base_offset for file in cleaned)
    return [file for file in found if file.state == SWAP_SUFFIX and file.base_offset >= lowest], cleaned


def _replaced_files(
    partition_dir: Path, found: Iterable[SegmentFile], swap: Iterable[SegmentFile]
) -> list[SegmentFile]:
    """What the range of the finished `.log.swap` files covers, except snapshots that stay true."""
    logs = [file for file in swap if file.kind == LOG_SUFFIX]
    if not logs:
        return []
    start = min(file.base_offset for file in logs)
    end = max(_next_offset(partition_dir, file) for file in logs)
    continuing = {file.base_offset for file in logs}
    inside = [file for file in found if not file.state and start <= file.base_offset < end]
    stale = [file for file in inside if not _is_live_segment_file(file) and file.base_offset not in continuing]
    return [*stale, *filter(_is_live_segment_file, inside)]


def _stale_snapshots(found: Collection[SegmentFile], deleted: Iterable[SegmentFile]) -> list[SegmentFile]:
    """Snapshots of deleted segments. Not the last one if it is above every segment: a broker's shutdown
    leaves one at the end of the log, and that one is the producers' current state."""
    live = {file.base_offset for file in found if file.kind == LOG_SUFFIX and not file.state}
    gone = {file.base_offset for file in deleted if file.kind in SEGMENT_KINDS} - live
    stale = _select(found, gone, [PRODUCER_SNAPSHOT_SUFFIX], "")
    last = max((file.base_offset for file in found if file.kind == PRODUCER_SNAPSHOT_SUFFIX), default=0)
    return [file for file in stale if file.base_offset != last or last < max(live, default=0)]


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


# --- small steps ---


def _install(files: Files, partition_dir: Path, swap: Iterable[SegmentFile]) -> None:
    """`.swap` to final in the order that the module's docstring gives reasons for."""
    ordered = sorted(swap, key=lambda file: (file.base_offset, file.kind))
    for file in ordered:
        if file.kind == LOG_SUFFIX:
            _put(files, partition_dir, file)
            files.fsync_dir(partition_dir)
    indexes = [file for file in ordered if file.kind != LOG_SUFFIX]
    for file in indexes:
        _put(files, partition_dir, file)
    if indexes:
        files.fsync_dir(partition_dir)


def _put(files: Files, partition_dir: Path, file: SegmentFile) -> None:
    source, target = partition_dir / file.name, partition_dir / _as(file, "").name
    if target.exists() and source.samefile(target):
        files.unlink(source)
    else:
        files.rename(source, target)


def _rename(files: Files, partition_dir: Path, file: SegmentFile, state: str) -> None:
    files.rename(partition_dir / file.name, partition_dir / _as(file, state).name)


def _remove(files: Files, partition_dir: Path, doomed: Collection[SegmentFile]) -> None:
    for file in doomed:
        files.unlink(partition_dir / file.name)
    if doomed:
        files.fsync_dir(partition_dir)


def _scan(partition_dir: Path) -> list[SegmentFile]:
    if not partition_dir.is_dir():
        raise NotALogError("no such directory", str(partition_dir), "Name a partition directory, such as orders-0")
    with os.scandir(partition_dir) as entries:
        parsed = [_parse(entry.name) for entry in entries if entry.is_file()]
    return sorted((file for file in parsed if file is not None), key=lambda file: file.name)


def _parse(name: str) -> SegmentFile | None:
    """Also a stranger such as `<offset>.log.part3.cleaned`: the loader looks at how a name starts and ends, so even
    such a file voids the `.swap` files above it, and must not be overlooked."""
    if stranger := _STRANGER.fullmatch(name):
        return SegmentFile(int(stranger[1]), stranger[2], stranger[3])
    return parse_segment_file(name)


def _select(
    found: Iterable[SegmentFile], bases: Collection[int], kinds: Collection[str], state: str
) -> list[SegmentFile]:
    return [file for file in found if file.base_offset in bases and file.kind in kinds and file.state == state]


def _is_live_segment_file(file: SegmentFile) -> bool:
    return not file.state and file.kind in SEGMENT_KINDS


def _as(file: SegmentFile, state: str) -> SegmentFile:
    return SegmentFile(file.base_offset, file.kind, state)


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
