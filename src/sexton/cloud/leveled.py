"""L1 as a leader knows it: pages of extents, of one compaction epoch. How old they may be is `views`' concern."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from sexton.ports.cloud import CloudPartitionRow, Extent, ExtentsPage, Level
from sexton.types import CompactionEpoch

PAGE_EXTENTS: Final = 1_000
PAGES_MAX: Final = 8
"""Pages of one partition in memory: 8,000 extents are half a terabyte."""


class LeveledMap:
    """Pages are dropped with the epoch that they were read in. Extents that are added by a leveling begin where the
    last page ends, so growing invalidates nothing."""

    def __init__(self, row: CloudPartitionRow) -> None:
        self.compaction_epoch: CompactionEpoch = row.compaction_epoch
        self.size_bytes = row.l1_bytes
        self._pages: OrderedDict[int, Sequence[Extent]] = OrderedDict()

    def note(self, row: CloudPartitionRow) -> None:
        """News may come late: an answer that was overtaken says nothing."""
        if row.compaction_epoch < self.compaction_epoch:
            return
        if row.compaction_epoch > self.compaction_epoch:
            self._pages.clear()
        self.compaction_epoch = row.compaction_epoch
        self.size_bytes = row.l1_bytes

    def add(self, page: ExtentsPage) -> None:
        self.note(page.row)
        found = [extent for extent in page.extents if extent.level is Level.L1]
        if found and page.row.compaction_epoch == self.compaction_epoch:
            self._pages[found[0].base_offset] = found
            while len(self._pages) > PAGES_MAX:
                self._pages.popitem(last=False)

    def at(self, offset: int) -> Extent | None:
        """None if the page must be read first."""
        for base_offset, extents in self._pages.items():
            if base_offset <= offset < extents[-1].end_offset:
                self._pages.move_to_end(base_offset)
                return extents[bisect_right(extents, offset, key=_end)]
        return None


def _end(extent: Extent) -> int:
    return extent.end_offset
