"""The map of a cloud partition: which extent has this offset.

Extents tile what is committed (C5), so the map is a list in order, which grows at its end with each commit and loses
its front as the log start moves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise

from sexton.compaction.eligibility import SegmentSummary
from sexton.ports.cloud import Extent
from sexton.ports.object_names import object_id_time_ms


class ExtentMap:
    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._extents = list(extents)
        self.size_bytes = sum(extent.size_bytes for extent in self._extents)
        self.check_invariants()

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    @property
    def base_offset(self) -> int | None:
        """Where the first extent begins; None if there is none."""
        return self._extents[0].base_offset if self._extents else None

    def add(self, extent: Extent) -> None:
        """Appends what was just committed."""
        end = self._extents[-1].end_offset if self._extents else extent.base_offset
        assert end == extent.base_offset < extent.end_offset, f"C5: {extent} cannot follow an end at {end}"
        self._extents.append(extent)
        self.size_bytes += extent.size_bytes

    def trim(self, start_offset: int) -> list[Extent]:
        """Removes and returns the extents wholly below an offset. One that has the offset stays."""
        index = bisect_right(self._extents, start_offset, key=_end)
        removed = self._extents[:index]
        del self._extents[:index]
        self.size_bytes -= sum(extent.size_bytes for extent in removed)
        return removed

    def since(self, offset: int) -> Iterator[Extent]:
        """The extent that has the offset, and those after it."""
        return islice(self._extents, bisect_right(self._extents, offset, key=_end), None)

    def at(self, offset: int) -> Extent | None:
        return next((one for one in self.since(offset) if one.base_offset <= offset), None)

    def check_invariants(self) -> None:
        for one, other in pairwise(self._extents):
            assert one.end_offset == other.base_offset, f"C5: extents end at {one.end_offset}, go on at {other}"


def _end(extent: Extent) -> int:
    return extent.end_offset


def summaries_of(extents: Iterable[Extent]) -> Sequence[SegmentSummary]:
    """An extent is to a cloud partition what a segment is to a local one."""
    return [SegmentSummary(one.base_offset, one.size_bytes, one.first_timestamp_ms, _newest_ms(one)) for one in extents]


def _newest_ms(extent: Extent) -> int:
    """The timestamp that retention uses. If no batch has one, the time at which the object was made."""
    if extent.max_timestamp_ms >= 0 or extent.object_id is None:
        return extent.max_timestamp_ms
    return object_id_time_ms(extent.object_id)
