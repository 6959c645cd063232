"""Which leader epoch wrote which offsets of a log.

An entry (epoch, start offset) says that records from that offset on, up to the next entry's, were written by that
epoch's leader. A leader extends its own history when it takes over; a follower copies its leader's whole. It is never
derived from batches, because compaction may empty an epoch that still tells two logs apart (docs/rules.md, traps). The
one exception is a directory that has no history at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from sexton.records.checkpoints import EpochEntry
from sexton.records.header import Head
from sexton.types import NO_EPOCH, LeaderEpoch


class EpochHistory:
    """Entries in order of epoch and of start offset, both strictly rising. In memory; `Log` makes changes durable."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[EpochEntry] = ()) -> None:
        self.entries: tuple[EpochEntry, ...] = tuple(entries)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def epoch_of(self, offset: int) -> LeaderEpoch:
        return epoch_of(self.entries, offset)

    def contradiction(self, head: Head) -> str:
        """What is wrong with the leader epoch of a batch; "" if nothing is, or nothing is known. The CRC does not cover
        it, so that damage there shows only here."""
        entries = self.entries
        if entries and entries[-1].epoch == head.leader_epoch and entries[-1].start_offset <= head.base_offset:
            return ""  # nearly always
        epoch = epoch_of(entries, head.base_offset)
        if epoch in (NO_EPOCH, head.leader_epoch) or head.leader_epoch == NO_EPOCH:
            return ""
        return f"the batch names leader epoch {head.leader_epoch}, and offset {head.base_offset} was written in {epoch}"

    def end_offset_of(self, epoch: LeaderEpoch, log_end_offset: int) -> tuple[LeaderEpoch, int] | None:
        """Kafka's OffsetForLeaderEpoch: the largest known epoch up to the requested one, and the offset at which it
        ends.

        For an epoch from before the history, only its end is known: the start offset of the first entry. None for an
        epoch newer than any in the history.
        """
        if epoch == NO_EPOCH:
            return None
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        index = bisect_right(self.entries, epoch, key=_epoch)
        if index == len(self.entries):
            return None
        known = self.entries[index - 1].epoch if index else epoch
        return known, self.entries[index].start_offset

    def begin(self, epoch: LeaderEpoch, start_offset: int) -> bool:
        """Records that `epoch` writes from `start_offset` on. Returns False if that was known.

        Epochs that began there or later wrote nothing, so they are removed: no two entries share an offset.
        """
        if self.entries and self.latest_epoch == epoch and self.entries[-1].start_offset <= start_offset:
            return False
        kept = [entry for entry in self.entries if entry.epoch < epoch and entry.start_offset < start_offset]
        self.entries = (*kept, EpochEntry(epoch, start_offset))
        return True

    def replace(self, entries: Iterable[EpochEntry]) -> None:
        self.entries = tuple(entries)

    def cut_end(self, offset: int) -> bool:
        """Removes epochs that began at `offset` or later. Returns False if there were none."""
        index = bisect_left(self.entries, offset, key=_start)
        if index == len(self.entries):
            return False
        self.entries = self.entries[:index]
        return True

    def cut_start(self, offset: int) -> bool:
        """Removes what lies below the log start. The epoch that wrote the record at the log start begins there from now
        on."""
        index = bisect_right(self.entries, offset, key=_start)
        if index == 0 or (self.entries[index - 1].start_offset == offset and index == 1):
            return False
        self.entries = (EpochEntry(self.entries[index - 1].epoch, offset), *self.entries[index:])
        return True


def epoch_of(entries: Sequence[EpochEntry], offset: int) -> LeaderEpoch:
    """Leader epoch of the record at `offset`; NO_EPOCH before the first entry."""
    if entries and entries[-1].start_offset <= offset:
        return entries[-1].epoch  # nearly always: the end of a log
    index = bisect_right(entries, offset, key=_start)
    return entries[index - 1].epoch if index else NO_EPOCH


def _start(entry: EpochEntry) -> int:
    return entry.start_offset


def _epoch(entry: EpochEntry) -> LeaderEpoch:
    return entry.epoch
