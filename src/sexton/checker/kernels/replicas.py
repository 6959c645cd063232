"""The twin of what `checker.tables` finds by comparing tables: those of two replicas, and one that was kept with one
that was read afresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sexton.checker.kernels.arrays import Ints, Longs
from sexton.checker.kernels.columns import Columns, ranks, sort_by, starts_of
from sexton.checker.kernels.folds import Folds
from sexton.checker.kernels.found import Cases, Found, with_room
from sexton.checker.kernels.keys import Polled, may_have_newer
from sexton.checker.kernels.passes import Passes, Table, fold, in_table
from sexton.checker.kernels.removal import cut_since_one_ns
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


def replicas_disagree(columns: Columns, folds: Folds, replica: Ints, evidence_max: int) -> Found:
    """`replica`: of each call."""
    passes, keys, polled = folds.passes, folds.keys, folds.polled
    of_pass = replica[passes.call].astype(np.int64)
    scans = np.flatnonzero(of_pass != UNKNOWN)
    number, _ = ranks(of_pass[scans])
    first, second, kid, one, other = _disagree(folds, scans, number, folds.table(), folds.table(), folds.table()).T
    vid = np.append(polled.vid, UNKNOWN)
    shown = vid[np.where(one == UNKNOWN, other, one)], vid[np.where(one == UNKNOWN, UNKNOWN, other)]

    def detail(row: int) -> Mapping[str, Any]:
        replicas = of_pass[[first[row], second[row]]].tolist()
        return {"key": int(keys.key_of[kid[row]]), "replicas": replicas}

    ops = passes.call[first], passes.call[second]
    return Cases(log=passes.log[first], ops=ops, values=shown, detail=detail).found(columns, evidence_max)


@kernel
def _disagree(folds: Folds, scans: Longs, replica: Longs, one: Table, other: Table, whole: Table) -> Longs:
    """Each scan beside the latest of each other replica. Returns both passes, the key, and what each has of it."""
    passes = folds.passes
    found = np.empty((16, 5), np.int64)
    count = 0
    replica_count = replica.max() + 1 if len(replica) else 0
    latest = np.full(replica_count, UNKNOWN)
    number = 0
    for place in range(len(scans)):
        second = scans[place]
        if place and passes.log[second] != passes.log[scans[place - 1]]:
            latest[:] = UNKNOWN
        for by in range(replica_count):
            first = latest[by]
            if first == UNKNOWN or by == replica[place]:
                continue
            end_offset = min(passes.end_offset[first], passes.end_offset[second])
            longer = first if passes.end_offset[first] > end_offset else second
            fold(passes, longer, passes.end_offset[longer], folds.polled, whole, number)
            one_count = fold(passes, first, end_offset, folds.polled, one, number)
            other_count = fold(passes, second, end_offset, folds.polled, other, number)
            for at in range(one_count + other_count):
                kid = one.kids[at] if at < one_count else other.kids[at - one_count]
                if at >= one_count and one.folded[kid] == number:
                    continue
                beyond = in_table(whole, kid, number)
                if beyond != UNKNOWN and folds.polled.offset[beyond] >= end_offset:
                    continue
                if _differs(folds, first, second, kid, in_table(one, kid, number), in_table(other, kid, number)):
                    found = with_room(found, count)
                    found[count] = (first, second, kid, in_table(one, kid, number), in_table(other, kid, number))
                    count += 1
            number += 1
        latest[replica[place]] = second
    return found[:count]


@kernel
def _differs(folds: Folds, first: int, second: int, kid: int, one: int, other: int) -> bool:
    passes, keys, polled = folds.passes, folds.keys, folds.polled
    end_offset = min(passes.end_offset[first], passes.end_offset[second])
    end_ns = max(passes.end_ns[first], passes.end_ns[second])
    log = passes.log[first]
    has_one = one != UNKNOWN and not polled.is_tombstone[one]
    has_other = other != UNKNOWN and not polled.is_tombstone[other]
    if not (has_one or has_other) or (has_one and has_other and polled.vid[one] == polled.vid[other]):
        return False
    if may_have_newer(keys, kid, end_offset, end_ns):
        return False
    if one != UNKNOWN and cut_since_one_ns(keys.cuts, log, polled.offset[one]) <= end_ns:
        return False
    if other != UNKNOWN and cut_since_one_ns(keys.cuts, log, polled.offset[other]) <= end_ns:
        return False
    if has_one and has_other:
        return True
    has, lacks = (first, second) if has_one else (second, first)
    is_quick = passes.end_ns[has] - passes.begin_ns[has] < keys.kept_ns[log]
    return bool(is_quick or passes.begin_ns[has] > passes.end_ns[lacks])


class _Kept(NamedTuple):
    """What standing consumers were given: by pass, key and offset."""

    row: Longs
    """Of what was polled."""
    offset: Longs
    group: Longs
    """Pass and kid, packed, of each run of rows."""
    start: Longs
    """Of each run, its first row; and where the last ends."""


class _Ever(NamedTuple):
    """The same by key and offset, whoever was given it."""

    start: Longs
    """By kid, its first row; and where the last ends."""
    offset: Longs
    until: Longs
    """Up to which end this record is the newest of its key, in that pass."""
    value_until: Longs
    """The highest of these so far in the key, of those that are no tombstones."""


def table_drift(columns: Columns, folds: Folds, evidence_max: int) -> Found:
    passes, polled = folds.passes, folds.polled
    standing, fresh = np.flatnonzero(passes.is_standing), np.flatnonzero(~passes.is_standing)
    if not len(standing) or not len(fresh):
        return Found()
    kept, ever = _kept(folds)
    log = np.arange(len(columns.logs) + 1)
    starts = np.searchsorted(passes.log[standing], log)
    row, found, a_pass = _drift(folds, fresh, standing, starts, kept, ever, folds.table()).T
    values = polled.vid[row], np.append(polled.vid, UNKNOWN)[found]
    ops = polled.call[row], passes.call[a_pass]
    return Cases(log=passes.log[a_pass], ops=ops, values=values).found(columns, evidence_max)


def _kept(folds: Folds) -> tuple[_Kept, _Ever]:
    passes, polled, kid_count = folds.passes, folds.polled, len(folds.keys.key_of)
    row, a_pass = _given(passes, polled)
    kid, offset = polled.kid[row], polled.offset[row]
    order = sort_by(a_pass, kid, offset)
    row, a_pass, kid, offset = row[order], a_pass[order], kid[order], offset[order]
    group = a_pass * kid_count + kid
    starts = starts_of(group)
    is_last = np.append(group[1:] != group[:-1], True)[: len(group)]
    end_offset = passes.end_offset[a_pass]
    until = np.where(is_last, end_offset, np.minimum(np.append(offset[1:], 0)[: len(offset)], end_offset))
    order = sort_by(kid, offset)
    is_value = ~polled.is_tombstone[row]
    ever = _Ever(
        start=np.searchsorted(kid[order], np.arange(kid_count + 1)),
        offset=offset[order],
        until=until[order],
        value_until=_highest_so_far(kid[order], np.where(is_value, until, UNKNOWN)[order]),
    )
    return _Kept(row, offset, group[starts], np.append(starts, len(group))), ever


@kernel
def _given(passes: Passes, polled: Polled) -> tuple[Longs, Longs]:
    """Rows of what standing consumers were given, and the pass of each, in order."""
    looks = passes.looks
    size = 0
    for a_pass in range(len(passes.log)):
        if passes.is_standing[a_pass]:
            for look in range(passes.first[a_pass], passes.end[a_pass]):
                size += looks.end[look] - looks.first[look]
    found, of = np.empty(size, np.int64), np.empty(size, np.int64)
    count = 0
    for a_pass in range(len(passes.log)):
        if passes.is_standing[a_pass]:
            for look in range(passes.first[a_pass], passes.end[a_pass]):
                for row in range(looks.first[look], looks.end[look]):
                    if polled.offset[row] < looks.below[look]:
                        found[count] = row
                        of[count] = a_pass
                        count += 1
    return found[:count], of[:count]


@kernel
def _highest_so_far(kid: Longs, until: Longs) -> Longs:
    found = until.copy()
    for row in range(1, len(kid)):
        if kid[row] == kid[row - 1]:
            found[row] = max(found[row], found[row - 1])
    return found


@kernel
def _may_drift(ever: _Ever, kid: int, end_offset: int, has_value: bool, offset: int) -> bool:
    """Whether a standing consumer may hold what is newer than this offset, as of an end. Where the fresh table has no
    value, a tombstone is nothing."""
    first, end = ever.start[kid], ever.start[kid + 1]
    place = first + np.searchsorted(ever.offset[first:end], end_offset) - 1
    if not has_value:
        return bool(place >= first and ever.value_until[place] >= end_offset)
    while place >= first and ever.offset[place] > offset:
        if ever.until[place] >= end_offset:
            return True
        place -= 1
    return False


@kernel
def _drift(
    folds: Folds, fresh: Longs, standing: Longs, standing_start: Longs, kept: _Kept, ever: _Ever, table: Table
) -> Longs:
    """Returns rows of what was polled: the kept one, the fresh one or UNKNOWN; and the fresh pass."""
    passes, keys, polled = folds.passes, folds.keys, folds.polled
    kid_count = len(keys.key_of)
    found = np.empty((16, 3), np.int64)
    count = 0
    for a_pass in fresh:
        log, end_offset, end_ns = passes.log[a_pass], passes.end_offset[a_pass], passes.end_ns[a_pass]
        fold(passes, a_pass, end_offset, polled, table, a_pass)
        for kid in range(keys.log_start[log], keys.log_start[log + 1]):
            has = in_table(table, kid, a_pass)
            has_value = has != UNKNOWN and not polled.is_tombstone[has]
            offset = polled.offset[has] if has != UNKNOWN else UNKNOWN - 1
            if not _may_drift(ever, kid, end_offset, has_value, offset):
                continue
            for at in range(standing_start[log], standing_start[log + 1]):
                if passes.end_offset[standing[at]] < end_offset:
                    continue
                row = _newest(kept, standing[at] * kid_count + kid, end_offset)
                if row == UNKNOWN or polled.offset[row] <= offset:
                    continue
                if has != UNKNOWN and polled.vid[row] == polled.vid[has]:
                    continue
                is_nothing = not has_value or end_ns - passes.begin_ns[a_pass] >= keys.kept_ns[log]
                if polled.is_tombstone[row] and is_nothing:
                    continue
                if may_have_newer(keys, kid, polled.offset[row] + 1, end_ns):
                    continue
                if cut_since_one_ns(keys.cuts, log, polled.offset[row]) <= end_ns:
                    continue
                found = with_room(found, count)
                found[count] = (row, has, a_pass)
                count += 1
    return found[:count]


@kernel
def _newest(kept: _Kept, group: int, end_offset: int) -> int:
    place = np.searchsorted(kept.group, group)
    if place == len(kept.group) or kept.group[place] != group:
        return UNKNOWN
    first, end = kept.start[place], kept.start[place + 1]
    newest = first + np.searchsorted(kept.offset[first:end], end_offset) - 1
    return kept.row[newest] if newest >= first else UNKNOWN
