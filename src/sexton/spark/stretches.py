"""A stretch is a piece of one replica that one task reads, wherever the bytes come from: files, or answers to Fetch.

A task gets whole batches in pieces of a few megabytes and indexes them (`fold_pass`), so it never holds more than one
piece, however long its stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sexton.records.kernels.primitives import Bytes

PIECE_BYTES = 8 << 20
"""What a piece should have. It must have whole batches, so one that is larger makes a larger piece."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Adjacent whole batches, in offset order. May be empty, when it only has something to tell."""

    data: Bytes
    """A NumPy array of uint8. Valid until the next piece is asked for."""
    place: str
    """For errors: a file, or a broker and partition."""
    position: int = 0
    """Of the piece's first byte in its file."""
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of transactions that the broker says were aborted, of a Fetch answer."""
    note: str = ""
    """What a person should know: a batch that was cut off, a segment that had vanished."""
    high_watermark: int = -1
    last_stable_offset: int = -1
    """Of a Fetch answer; -1 where there is none. The last one of a stretch counts."""
    log_start_offset: int = -1
    """Where the log began when this was read; -1 where nobody says. The highest of a stretch counts."""


class Stretch(Protocol):
    """Must be picklable: it is made in the driver and read in a task, perhaps on another machine, perhaps twice.
    Whatever cannot be read raises a SextonError, and the partition is unknown."""

    @property
    def replica(self) -> int:
        """The replica's number in the job."""
        ...

    @property
    def from_offset(self) -> int:
        """Batches that end below it are left out, should they come."""
        ...

    @property
    def to_offset(self) -> int:
        """Batches that begin at or above it are left out. INT64_MAX: to the end, whatever it is by then."""
        ...

    @property
    def size_bytes(self) -> int:
        """About how much there is to read, for dividing the work."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """All batches of the stretch, without a gap of its own making; there may be others around them."""
        ...


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Some of a stretch."""

    whole: Stretch
    from_offset: int
    to_offset: int

    @property
    def replica(self) -> int:
        return self.whole.replica

    @property
    def size_bytes(self) -> int:
        return self.whole.size_bytes

    def pieces(self) -> Iterator[Piece]:
        return self.whole.pieces()
