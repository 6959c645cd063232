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

Unchanged segments in the span may be staged as hard links to themselves. rename() onto another link of the
same file does nothing and says it succeeded, so no rename here may meet an existing name; `commit` makes
sure of that before it starts, and `recover` unlinks instead.

Nothing here touches a disk: what is in the directory comes in, the steps to take come out, one by one and in
order. So the rule is written once, for the directories of a stopped broker (`sexton.log.stopped.swap`) and for the
log of a running one (`sexton.log.swapping`).

Our recovery differs from the loader's where the loader is careless: it keeps the producer snapshot of a
base offset that continues to exist, and it flushes and orders its own steps, so it may itself crash
anywhere.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sexton.compaction.contract import NewSegment
from sexton.errors import SextonError
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


class SwapRefusedError(SextonError):
    """The replacement would not survive a crash, or is not the one that was planned. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a partition's directory, as whoever owns it sees it."""

    place: str
    found: Sequence[SegmentFile]
    """In order of their names."""
    next_offset: Callable[[SegmentFile], int]
    """The offset after the last batch of a `.log` file in any state."""


class Action(Enum):
    RENAME = "rename"
    INSTALL = "install"
    """Rename; but if the target is another name of the very same file, the source goes instead."""
    REMOVE = "remove"
    FLUSH_FILE = "flush file"
    FLUSH_NAMES = "flush names"
    COMMITTED = "committed"
    """Nothing to do: from here on, whoever opens the directory finds the new segments."""


@dataclass(frozen=True, slots=True)
class Step:
    action: Action
    name: str = ""
    target: str = ""


class SwapRecovery(Enum):
    """What was done about an interrupted step. NOTHING may still have removed `.deleted` files, which belong to a step
    that was over (a broker leaves them, too, when it stops within file.delete.delay.ms)."""

    NOTHING = "nothing"
    ROLLED_BACK = "rolled back"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Decided as a whole before the first step: what cannot be read stops a recovery before it deletes anything."""

    outcome: SwapRecovery
    steps: tuple[Step, ...] = field(default=())


def parse(name: str) -> SegmentFile | None:
    """Also a stranger such as `<offset>.log.part3.cleaned`: the loader looks at how a name starts and ends, so even
    such a file voids the `.swap` files above it, and must not be overlooked."""
    if stranger := _STRANGER.fullmatch(name):
        return SegmentFile(int(stranger[1]), stranger[2], stranger[3])
    return parse_segment_file(name)


def commit(contents: Contents, new: Sequence[NewSegment]) -> Iterator[Step]:
    """Replaces old segments by new ones, which are complete in `.cleaned` files: all that they replace by all of them,
    in one step. Raises SwapRefusedError before the first step, or never.

    The end of the process between any two steps leaves a directory on which `recover` (or a broker's start) yields
    exactly the old or exactly the new segments.

    Segments staged for a *later* span may be there already. Ones of an earlier span may not: their `.cleaned`
    files would void ours.
    """
    old_base_offsets = [base for segment in new for base in segment.old_base_offsets]
    _check_segments(contents, new, old_base_offsets)
    _check_leftovers(contents, new)
    _check_ends(contents, new)
    return _commit(contents.found, new, old_base_offsets)


def _commit(found: Sequence[SegmentFile], new: Sequence[NewSegment], old_bases: Sequence[int]) -> Iterator[Step]:
    start, end = new[0].base_offset, new[-1].end_offset
    new_bases = {segment.base_offset for segment in new}
    staged = select(found, bases=new_bases, kinds=SEGMENT_KINDS, state=CLEANED_SUFFIX)
    for file in staged:
        yield Step(Action.FLUSH_FILE, file.name)
    yield _FLUSH_NAMES

    *most, last = sorted(staged, key=lambda file: (-file.base_offset, file.kind == LOG_SUFFIX))
    for file in most:
        yield _rename(file, SWAP_SUFFIX)
    yield _FLUSH_NAMES
    yield _rename(last, SWAP_SUFFIX)
    yield _FLUSH_NAMES
    yield Step(Action.COMMITTED)

    old = [file for file in found if _is_live_segment_file(file) and start <= file.base_offset < end]
    for file in old:
        yield _rename(file, DELETED_SUFFIX)
    yield _FLUSH_NAMES

    yield from _install([_as(file, SWAP_SUFFIX) for file in staged])
    stale = select(found, set(old_bases) - new_bases, [PRODUCER_SNAPSHOT_SUFFIX], "")
    # Snapshots before the .deleted files, whose names tell a recovery which snapshots are stale.
    yield from _remove(stale)
    yield from _remove([_as(file, DELETED_SUFFIX) for file in old])


def recover(contents: Contents) -> RecoveryPlan:
    """Finishes or undoes what a crash interrupted, ours or a broker's.

    Run it before planning anything on a partition: until then, the names do not say what the log is.
    """
    found = contents.found
    void, cleaned = _void_files(found)
    swap = [file for file in found if file.state == SWAP_SUFFIX and file not in void]
    replaced = _replaced_files(contents, swap)
    deleted = [file for file in found if file.state == DELETED_SUFFIX]
    installed = [_as(file, "") for file in swap]
    gone = {*void, *cleaned, *replaced, *swap}
    stale = _stale_snapshots([*(file for file in found if file not in gone), *installed], deleted)

    outcome = SwapRecovery.COMPLETED if swap else SwapRecovery.ROLLED_BACK if cleaned or void else SwapRecovery.NOTHING
    steps = [*_remove(void), *_remove(cleaned), *_remove(replaced), *_install(swap), *_remove(stale), *_remove(deleted)]
    return RecoveryPlan(outcome, tuple(steps))


def clear_staging(contents: Contents) -> RecoveryPlan:
    """Throws away what a failed job staged. Also undoes a commit that did not reach its point of no return:
    removing only the `.cleaned` files would promote the `.swap` files that they void."""
    void, cleaned = _void_files(contents.found)
    outcome = SwapRecovery.ROLLED_BACK if cleaned else SwapRecovery.NOTHING
    return RecoveryPlan(outcome, (*_remove(void), *_remove(cleaned)))


# --- what must be true before a commit ---


def _check_segments(contents: Contents, new: Sequence[NewSegment], old: Sequence[int]) -> None:
    place, found = contents.place, contents.found
    if not new or not old:
        raise refused(place, "a replacement needs at least one old and one new segment")
    if any(segment.end_offset <= segment.base_offset for segment in new):
        raise refused(place, "a staged segment is empty, so a recovery could not tell what it replaces")
    if any(one.end_offset > two.base_offset for one, two in itertools.pairwise(new)):
        raise refused(place, "the staged segments overlap or are not in offset order")
    if list(old) != sorted(set(old)):
        raise refused(place, "the segments to replace are not in offset order")
    start, end = new[0].base_offset, new[-1].end_offset
    if start != old[0] or end <= old[-1]:
        raise refused(
            place,
            f"the staged segments span offsets {start} to {end}, which is not the span of the segments "
            f"{old[0]} to {old[-1]} that they replace; a recovery would keep the rest of those",
        )
    live = {file.base_offset for file in found if file.kind == LOG_SUFFIX and not file.state}
    missing = sorted(set(old) - live)
    if missing:
        raise refused(place, f"the segments to replace at offsets {missing} do not exist")
    bystanders = sorted(base for base in live - set(old) if start <= base < end)
    if bystanders:
        raise refused(place, f"the segments at offsets {bystanders} lie in the span but are not to be replaced")
    names = {file.name for file in found}
    staged = [SegmentFile(segment.base_offset, kind, CLEANED_SUFFIX) for segment in new for kind in REQUIRED_KINDS]
    absent = [file.name for file in staged if file.name not in names]
    if absent:
        raise refused(place, f"{', '.join(absent)} was not staged")


def _check_leftovers(contents: Contents, new: Sequence[NewSegment]) -> None:
    """An unfinished step in the same directory would mix with ours when either is recovered."""
    ours = {segment.base_offset for segment in new}
    for file in contents.found:
        earlier = file.state == CLEANED_SUFFIX and file.base_offset < new[-1].end_offset
        stranger = earlier and (file.base_offset not in ours or file.kind not in SEGMENT_KINDS)
        if file.state in (SWAP_SUFFIX, DELETED_SUFFIX) or stranger:
            raise refused(contents.place, f"{file.name} is left over from another replacement")


def _check_ends(contents: Contents, new: Sequence[NewSegment]) -> None:
    """A segment's end decides what a recovery deletes."""
    for segment in new:
        end_offset = contents.next_offset(SegmentFile(segment.base_offset, LOG_SUFFIX, CLEANED_SUFFIX))
        if end_offset != segment.end_offset:
            raise refused(
                contents.place,
                f"the segment staged at offset {segment.base_offset} ends at {end_offset}, not at {segment.end_offset}",
            )


def refused(place: str, what: str) -> SwapRefusedError:
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


def _replaced_files(contents: Contents, swap: Iterable[SegmentFile]) -> list[SegmentFile]:
    """What the range of the finished `.log.swap` files covers, except snapshots that stay true."""
    logs = [file for file in swap if file.kind == LOG_SUFFIX]
    if not logs:
        return []
    start = min(file.base_offset for file in logs)
    end = max(contents.next_offset(file) for file in logs)
    continuing = {file.base_offset for file in logs}
    inside = [file for file in contents.found if not file.state and start <= file.base_offset < end]
    stale = [file for file in inside if not _is_live_segment_file(file) and file.base_offset not in continuing]
    return [*stale, *filter(_is_live_segment_file, inside)]


def _stale_snapshots(found: Collection[SegmentFile], deleted: Iterable[SegmentFile]) -> list[SegmentFile]:
    """Snapshots of deleted segments. Not the last one if it is above every segment: a broker's shutdown
    leaves one at the end of the log, and that one is the producers' current state."""
    live = {file.base_offset for file in found if file.kind == LOG_SUFFIX and not file.state}
    gone = {file.base_offset for file in deleted if file.kind in SEGMENT_KINDS} - live
    stale = select(found, gone, [PRODUCER_SNAPSHOT_SUFFIX], "")
    last = max((file.base_offset for file in found if file.kind == PRODUCER_SNAPSHOT_SUFFIX), default=0)
    return [file for file in stale if file.base_offset != last or last < max(live, default=0)]


# --- small steps ---

_FLUSH_NAMES: Final = Step(Action.FLUSH_NAMES)


def _install(swap: Iterable[SegmentFile]) -> Iterator[Step]:
    """`.swap` to final in the order that the module's docstring gives reasons for."""
    ordered = sorted(swap, key=lambda file: (file.base_offset, file.kind))
    for file in ordered:
        if file.kind == LOG_SUFFIX:
            yield _put(file)
            yield _FLUSH_NAMES
    indexes = [file for file in ordered if file.kind != LOG_SUFFIX]
    for file in indexes:
        yield _put(file)
    if indexes:
        yield _FLUSH_NAMES


def _put(file: SegmentFile) -> Step:
    return Step(Action.INSTALL, file.name, _as(file, "").name)


def _rename(file: SegmentFile, state: str) -> Step:
    return Step(Action.RENAME, file.name, _as(file, state).name)


def _remove(doomed: Collection[SegmentFile]) -> Iterator[Step]:
    for file in doomed:
        yield Step(Action.REMOVE, file.name)
    if doomed:
        yield _FLUSH_NAMES


def select(
    found: Iterable[SegmentFile], bases: Collection[int], kinds: Collection[str], state: str
) -> list[SegmentFile]:
    return [file for file in found if file.base_offset in bases and file.kind in kinds and file.state == state]


def _is_live_segment_file(file: SegmentFile) -> bool:
    return not file.state and file.kind in SEGMENT_KINDS


def _as(file: SegmentFile, state: str) -> SegmentFile:
    return SegmentFile(file.base_offset, file.kind, state)
