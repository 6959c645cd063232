"""What the judge reads of operations' `ext`, as arrays.

Each spelling is read once: by a kernel if it is as we write it, by `json` otherwise. Where members commit offsets in
transactions no two are alike, so there may be one for each operation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sexton.checker.kernels.arrays import Bools, Ints, Longs, Rows
from sexton.checker.kernels.columns import unique
from sexton.history.flat import FlatHistory
from sexton.history.kernels.json_value import FALSE, TRUE, after_value
from sexton.history.kernels.tables import Bytes
from sexton.history.kernels.texts import Texts, intern
from sexton.history.kernels.tokens import after_byte, ascii_bytes, expect, integer, same, text_end
from sexton.history.op import UNKNOWN, Ext
from sexton.jit import kernel

GROUP, GENERATION, HAS_GENERATION, RESET, BEGINS_ANEW, REPLICA = range(6)
"""Columns of what was read."""

_GROUP: Final = ascii_bytes(Ext.GROUP)
_GENERATION: Final = ascii_bytes(Ext.GENERATION)
_RESET: Final = ascii_bytes(Ext.RESET)
_SEEK_TO_BEGINNING: Final = ascii_bytes(Ext.SEEK_TO_BEGINNING)
_REPLICA: Final = ascii_bytes(Ext.REPLICA)
_OFFSETS: Final = ascii_bytes(Ext.OFFSETS)

_OFFSET_BYTES_MIN: Final = len('"1":2')


@dataclass(frozen=True)
class Exts:
    """By call."""

    groups: Sequence[str]
    """Names, sorted."""
    group: Ints
    """Or UNKNOWN: so are generation and replica."""
    generation: Longs
    has_generation: Bools
    is_reset: Bools
    begins_anew: Bools
    replica: Ints

    def of(self, calls: Longs) -> Exts:
        """Of some calls."""
        return Exts(
            groups=self.groups,
            group=self.group[calls],
            generation=self.generation[calls],
            has_generation=self.has_generation[calls],
            is_reset=self.is_reset[calls],
            begins_anew=self.begins_anew[calls],
            replica=self.replica[calls],
        )


SENT: Final = np.dtype([("op", np.int64), ("offset", np.int64), ("log", np.int32)], align=True)
"""Offsets that transactions sent for their groups: a row for each log."""


def exts_of(flat: FlatHistory, calls: Rows) -> Exts:
    number = flat.ops["ext"][calls["row"]]
    used = unique(number)
    fields, _, names = _read([flat.strings[it] for it in used.tolist()])
    place = np.searchsorted(used, number)
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.full(len(names) + 1, UNKNOWN, np.int32)
    rank[order] = np.arange(len(names))
    return Exts(
        groups=[names[it] for it in order],
        group=rank[fields[:, GROUP]][place],
        generation=fields[:, GENERATION][place],
        has_generation=(fields[:, HAS_GENERATION] != 0)[place],
        is_reset=(fields[:, RESET] != 0)[place],
        begins_anew=(fields[:, BEGINS_ANEW] != 0)[place],
        replica=fields[:, REPLICA].astype(np.int32)[place],
    )


def sent_of(flat: FlatHistory) -> Rows:
    """Of a history, or of a piece of one."""
    used = unique(flat.ops["ext"])
    _, offsets, _ = _read([flat.strings[it] for it in used.tolist()])
    place = np.searchsorted(used, flat.ops["ext"])
    starts, ends = (np.searchsorted(offsets[:, 0], place, side) for side in ("left", "right"))
    counts = ends - starts
    rows = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    rows += np.arange(len(rows))
    sent = np.zeros(len(rows), SENT)
    sent["op"], sent["log"], sent["offset"] = np.repeat(flat.ops["index"], counts), offsets[rows, 1], offsets[rows, 2]
    return sent


def _read(texts: Sequence[str]) -> tuple[Longs, Longs, list[str]]:
    """Returns a row of fields for each text; row, log and offset of each that has been sent; and names of groups."""
    data = np.frombuffer(("\n".join(texts) + "\n").encode(), np.uint8)
    sizes = [1 + (len(text) if text.isascii() else len(text.encode())) for text in texts]
    starts = np.append(0, np.cumsum(sizes, dtype=np.int64))
    fields = np.zeros((len(texts), 6), np.int64)
    room = 1 << (2 * len(texts)).bit_length()
    groups = Texts(np.full(2 * room, -1, np.int32), np.zeros((len(texts) + 1, 2), np.int64))
    offsets = np.empty((len(data) // _OFFSET_BYTES_MIN + 1, 3), np.int64)
    is_left = np.zeros(len(texts), np.bool_)
    count = _scan(data, starts, groups, fields, offsets, is_left)
    offsets = offsets[:count].copy()
    places = groups.places[1 : 1 + groups.places[0, 0]].tolist()
    names = {data[start:end].tobytes().decode(): number for number, (start, end) in enumerate(places)}
    more: list[tuple[int, int, int]] = []
    for row in np.flatnonzero(is_left).tolist():
        ext: dict[str, Any] = json.loads(texts[row]) if texts[row] else {}
        group = str(ext.get(Ext.GROUP, ""))
        fields[row] = (
            names.setdefault(group, len(names)) if group else UNKNOWN,
            int(ext.get(Ext.GENERATION, UNKNOWN)),
            Ext.GENERATION in ext,
            bool(ext.get(Ext.RESET)),
            bool(ext.get(Ext.SEEK_TO_BEGINNING)),
            int(ext.get(Ext.REPLICA, UNKNOWN)),
        )
        more += [(row, int(log), int(offset)) for log, offset in ext.get(Ext.OFFSETS, {}).items()]
    if more:
        offsets = np.concatenate([offsets, np.array(more, np.int64)])
        offsets = offsets[np.argsort(offsets[:, 0], kind="stable")]
    return fields, offsets, list(names)


@kernel
def _scan(data: Bytes, starts: Longs, groups: Texts, fields: Longs, offsets: Longs, is_left: Bools) -> int:
    """Returns how many rows of `offsets` are in use. A text that is not as we write it is left out, and marked."""
    count = 0
    for row in range(len(fields)):
        after = _ext(data, starts[row], starts[row + 1] - 1, groups, fields[row], offsets, count, row)
        is_left[row] = after < 0
        count = max(after, count)
    return count


@kernel
def _ext(data: Bytes, start: int, end: int, groups: Texts, fields: Longs, offsets: Longs, count: int, row: int) -> int:
    """Returns how many rows of `offsets` are in use then, or -1."""
    fields[:] = 0
    fields[GROUP] = UNKNOWN
    fields[GENERATION] = UNKNOWN
    fields[REPLICA] = UNKNOWN
    if start == end:
        return count
    position = after_byte(data, start, 123)
    met = np.zeros(6, np.bool_)
    while position >= 0:
        first = after_byte(data, position, 34)
        last = text_end(data, first)
        if last < 0:
            return -1
        field = _field(data, first, last)
        if field >= 0 and met[field]:
            return -1
        met[max(field, 0)] |= field >= 0
        position = after_byte(data, last + 1, 58)
        if field < 0:
            position = after_value(data, position)
        elif field == 0:
            first = after_byte(data, position, 34)
            last = text_end(data, first)
            if last <= first:
                return -1
            fields[GROUP] = intern(data, first, last, groups)
            position = last + 1
        elif field == 1:
            fields[GENERATION], position = integer(data, position)
            fields[HAS_GENERATION] = 1
        elif field == 2:
            fields[REPLICA], position = integer(data, position)
        elif field == 3:
            fields[RESET], position = _boolean(data, position)
        elif field == 4:
            fields[BEGINS_ANEW], position = _boolean(data, position)
        else:
            position, count = _offsets(data, position, offsets, count, row)
        if position < 0:
            return -1
        if data[position] == 125:
            return count if position + 1 == end else -1
        position = after_byte(data, position, 44)
    return -1


@kernel
def _field(data: Bytes, first: int, last: int) -> int:
    if same(data, first, last, _GROUP):
        return 0
    if same(data, first, last, _GENERATION):
        return 1
    if same(data, first, last, _REPLICA):
        return 2
    if same(data, first, last, _RESET):
        return 3
    if same(data, first, last, _SEEK_TO_BEGINNING):
        return 4
    if same(data, first, last, _OFFSETS):
        return 5
    return -1


@kernel
def _boolean(data: Bytes, position: int) -> tuple[int, int]:
    after = expect(data, position, TRUE)
    return (1, after) if after >= 0 else (0, expect(data, position, FALSE))


@kernel
def _offsets(data: Bytes, position: int, offsets: Longs, count: int, row: int) -> tuple[int, int]:
    position = after_byte(data, position, 123)
    if position >= 0 and data[position] == 125:
        return position + 1, count
    first = count
    while position >= 0:
        log, position = integer(data, after_byte(data, position, 34))
        offset, position = integer(data, after_byte(data, after_byte(data, position, 34), 58))
        for other in range(first, count):
            if offsets[other, 1] == log:
                position = -1
        if position < 0:
            return -1, count
        offsets[count, 0] = row
        offsets[count, 1] = log
        offsets[count, 2] = offset
        count += 1
        if data[position] == 125:
            return position + 1, count
        position = after_byte(data, position, 44)
    return -1, count
