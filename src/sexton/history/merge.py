"""A history that was written in pieces, one by each process that took part: they are put together by time.

All pieces have the clock of one machine, and in each time never goes back, so whatever ended before something else
began comes first. The numbers that operations have in their pieces are replaced by their places in the whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from heapq import merge
from pathlib import Path
from typing import Final

from sexton.errors import CorruptHistoryError

PIECES: Final = "piece-*.jsonl"

_INDEX: Final = b'{"index":'
_TIME: Final = b'"time":'


def pieces_in(directory: Path) -> Sequence[Path]:
    return sorted(directory.glob(PIECES))


def merge_pieces(directory: Path, target: Path) -> int:
    """Replaces the pieces by one history, and returns how many operations it has. A line that was cut off, because its
    writer was killed, is left out."""
    pieces = pieces_in(directory)
    temporary = target.with_name(f"{target.name}.new")
    count = 0
    with temporary.open("wb") as file:
        for _, rest in merge(*map(_lines, pieces), key=_time):
            file.write(b"%b%d,%b" % (_INDEX, count, rest))
            count += 1
    os.replace(temporary, target)
    for piece in pieces:
        piece.unlink()
    return count


def _time(line: tuple[int, bytes]) -> int:
    return line[0]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """When, and the line without its index."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            rest = line[line.find(b",") + 1 :]
            end = rest.find(b",")
            if not line.startswith(_INDEX) or not rest.startswith(_TIME):
                raise CorruptHistoryError(
                    "it has no index and time", f"{path}, line {number}", "Judge an undamaged copy"
                )
            yield int(rest[len(_TIME) : end]), rest
