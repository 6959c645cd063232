"""Where two logs diverge. A leader-epoch history says which epoch wrote each offset.

Each epoch has one leader, which writes each offset once. So two logs with the same epoch at an offset hold the same
record there and everywhere below: they agree exactly up to the first offset at which their histories differ. Histories
are copied whole from the leader (docs/rules.md, traps): one rebuilt from surviving batches lacks the epochs that
compaction emptied.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexton.log.epochs import epoch_of
from sexton.records.checkpoints import EpochEntry
from sexton.types import LeaderEpoch


def common_end(
    ours: Sequence[EpochEntry],
    our_start: int,
    our_end: int,
    theirs: Sequence[EpochEntry],
    their_start: int,
    their_end: int,
) -> int:
    """The offset below which both logs are the same. Below the higher of the two log starts they count as equal: what
    is not there cannot differ."""
    low = max(our_start, their_start)
    high = min(our_end, their_end)
    if high <= low:
        return high
    edges = {entry.start_offset for entry in (*ours, *theirs)}
    for offset in sorted(edge for edge in edges | {low} if low <= edge < high):
        if epoch_of(ours, offset) != epoch_of(theirs, offset):
            return offset
    return high


def end_of_epoch(history: Sequence[EpochEntry], epoch: LeaderEpoch, log_end: int) -> int:
    """The offset at which the log goes beyond what the leader of `epoch` knew: the first offset of a later epoch, or
    the log end."""
    return next((entry.start_offset for entry in history if entry.epoch > epoch), log_end)


def is_prefix(held_end: int, held_last_epoch: LeaderEpoch, history: Sequence[EpochEntry], log_end: int) -> bool:
    """Whether a follower's log of this end and last epoch is a prefix of a log with this history."""
    return held_end <= log_end and epoch_of(history, held_end - 1) == held_last_epoch
