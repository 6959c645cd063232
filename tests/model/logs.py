"""Records and logs of the model.

A record (a batch of one record, a marker, or an emptied batch) is one integer, a log a tuple of them in offset order:

    offset << 12 | leader epoch << 8 | kind << 4 | key << 2 | delete horizon

There is one transactional producer. Its batches are `T_` while they are transactional and `S_` once a compaction has
settled them. A value is told apart by offset and epoch, so none needs to be written down. A delete horizon is absent,
running or passed: time is one step that lets all running ones pass, and the clock itself is not part of any state.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

VALUE, TOMBSTONE, T_VALUE, T_TOMBSTONE, S_VALUE, S_TOMBSTONE, COMMIT, ABORT = range(8)
EMPTY, T_EMPTY, S_EMPTY, C_EMPTY = range(8, 12)
"""Batches that stay with nothing in them: plain, transactional (Kafka's cleaner leaves such), settled, control."""
KINDS = (
    *("value", "tombstone", "t-value", "t-tombstone", "s-value", "s-tombstone", "COMMIT", "ABORT"),
    *("empty", "t-empty", "s-empty", "control-empty"),
)
KEYS = "ab"
NO_HORIZON, RUNNING, PASSED = range(3)

EMPTIES = frozenset({EMPTY, T_EMPTY, S_EMPTY, C_EMPTY})
TRANSACTIONAL = frozenset({T_VALUE, T_TOMBSTONE, T_EMPTY})
SETTLED = frozenset({S_VALUE, S_TOMBSTONE, S_EMPTY})
MARKERS = frozenset({COMMIT, ABORT})
TOMBSTONES = frozenset({TOMBSTONE, T_TOMBSTONE, S_TOMBSTONE})
DATA = frozenset({VALUE, TOMBSTONE, T_VALUE, T_TOMBSTONE, S_VALUE, S_TOMBSTONE})

Records = tuple[int, ...]


def record(offset: int, epoch: int, kind: int, key: int = 0, horizon: int = NO_HORIZON) -> int:
    return offset << 12 | epoch << 8 | kind << 4 | key << 2 | horizon


def offset_of(one: int) -> int:
    return one >> 12


def epoch_of(one: int) -> int:
    return one >> 8 & 15


def kind_of(one: int) -> int:
    return one >> 4 & 15


def key_of(one: int) -> int:
    return one >> 2 & 3


def horizon_of(one: int) -> int:
    return one & 3


class Log(NamedTuple):
    start: int
    end: int
    records: Records


NO_LOG = Log(0, 0, ())


def below(records: Records, offset: int) -> Records:
    limit = offset << 12
    if not records or records[-1] < limit:
        return records
    return tuple(one for one in records if one < limit)


def from_on(records: Records, offset: int) -> Records:
    limit = offset << 12
    if not records or records[0] >= limit:
        return records
    return tuple(one for one in records if one >= limit)


def after_time(records: Records) -> Records:
    """Every delete horizon that was running has passed."""
    if not any(one & 3 == RUNNING for one in records):
        return records
    return tuple(one + 1 if one & 3 == RUNNING else one for one in records)


class Txn(NamedTuple):
    """How the transactions of a log went, as a replica sees it that takes the log in, batch by batch."""

    aborted: frozenset[int]
    """Offsets of records whose transaction was aborted."""
    ended: dict[int, int]
    """Offset of a transactional record -> offset of the marker that ended its transaction."""
    first_open: int
    """Offset of the first record of the open transaction, -1 if none is open."""


@cache
def transactions(records: Records, settled_ends: bool = False) -> Txn:
    """`settled_ends` is the mistake of a replica for which a settled batch of a producer ends its open transaction."""
    open_offsets: list[int] = []
    aborted: set[int] = set()
    ended: dict[int, int] = {}
    for one in records:
        kind = kind_of(one)
        if kind in TRANSACTIONAL:
            open_offsets.append(offset_of(one))
        elif kind in MARKERS:
            for offset in open_offsets:
                ended[offset] = offset_of(one)
            if kind == ABORT:
                aborted.update(open_offsets)
            open_offsets = []
        elif settled_ends and kind in SETTLED:
            open_offsets = []
    return Txn(frozenset(aborted), ended, open_offsets[0] if open_offsets else -1)


class View(NamedTuple):
    """What consumers get of a log up to a high watermark."""

    stable: int
    fold: tuple[int, ...]
    """Per key: offset and epoch of its value, or 0 if it has none."""


def value_of(one: int) -> int:
    """Tells a value from every other and from none."""
    return 0 if kind_of(one) in TOMBSTONES else (one >> 8) + 1


def fold(records: Iterable[int], hidden: frozenset[int]) -> tuple[int, ...]:
    values = [0] * len(KEYS)
    for one in records:
        if kind_of(one) in DATA and offset_of(one) not in hidden:
            values[key_of(one)] = value_of(one)
    return tuple(values)


@cache
def view(records: Records, start: int, high_watermark: int, settled_ends: bool = False) -> View:
    seen = from_on(below(records, high_watermark), start)
    txn = transactions(seen, settled_ends)
    stable = high_watermark if txn.first_open < 0 else txn.first_open
    return View(stable, fold(below(seen, stable), txn.aborted))


@cache
def is_clean(records: Records, offset: int) -> bool:
    """What MCCO says: at most one value or tombstone per key below the offset."""
    keys = [key_of(one) for one in below(records, offset) if kind_of(one) in DATA]
    return len(keys) == len(set(keys))


@cache
def newest_committed(truth: Records, high_watermark: int) -> dict[int, int]:
    """By key, the newest record that is committed at this high watermark, its transaction included."""
    seen = below(truth, high_watermark)
    txn = transactions(seen)
    decided = (
        one
        for one in seen
        if kind_of(one) in DATA
        and offset_of(one) not in txn.aborted
        and (kind_of(one) not in TRANSACTIONAL or offset_of(one) in txn.ended)
    )
    return {key_of(one): one for one in decided}


@cache
def is_clean_but_for_values(records: Records, offset: int, truth: Records, planned: int) -> bool:
    """What MCCO says with deferral: of what a tombstone below the offset deletes nothing is left, unless a newer value
    hides it. Newer, up to the high watermark at which what this log holds was compacted."""
    deleted_below = {
        key: offset_of(one)
        for key, one in newest_committed(truth, planned).items()
        if kind_of(one) in TOMBSTONES and offset_of(one) < offset
    }
    return not any(kind_of(one) in DATA and offset_of(one) < deleted_below.get(key_of(one), 0) for one in records)


@cache
def is_transaction_free(records: Records, offset: int) -> bool:
    """What MXFO says."""
    return not any(kind_of(one) in TRANSACTIONAL for one in below(records, offset))


def show_record(one: int) -> str:
    kind = kind_of(one)
    key = f" {KEYS[key_of(one)]}" if kind in DATA else ""
    return f"{offset_of(one)}:{KINDS[kind]}{key}" + ("", " (horizon running)", " (horizon passed)")[horizon_of(one)]


def show_log(log: Log) -> str:
    return f"[{log.start}..{log.end}) " + ", ".join(f"{show_record(one)} @e{epoch_of(one)}" for one in log.records)
