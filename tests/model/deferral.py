"""Deferral (docs/decisions/0032): a pass may leave superseded records of its clean section where they are.

What is not built yet has no real code to decide with. Here a pass is put together from what the real reference
compactor leaves of a log in two ways: *full*, when it looks at everything, and *believing*, when it looks in the clean
section only for keys that it has found in the dirty one. Any record that is gone in the first and may be there in the
second is a choice of its own: that covers segments of any size, any threshold, a list of dead records beside a segment
that is there or lost, and replicas whose settings differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from sexton.compaction.watermarks.replica import Pair
from tests.model import real
from tests.model.logs import DATA, TOMBSTONES, Records, below, from_on, key_of, kind_of, offset_of, transactions
from tests.model.switches import Rules

NONE: Final = 0
"""Nothing is left: what today's passes do."""
ALL: Final = -1
"""Everything is left that may be."""

SUBSETS_MAX: Final = 3
"""Up to so many records every choice among them is tried; of more, none, all, each alone, and all but each."""


class Pass(NamedTuple):
    records: Records
    bound: int
    removable: Pair | None
    settles: bool
    last_data: int
    clean_below: int


def left_by(task: Pass, rules: Rules, deferred: int) -> Records:
    """`deferred` has a bit for each record that may be left where it is."""
    full = real.compacted(*task[:5])
    if deferred == NONE:
        return full
    choice = {offset_of(one): one for number, one in enumerate(_choosable(task, rules)) if deferred >> number & 1}
    kept = {offset_of(one): one for one in full} | choice
    return tuple(one for _, one in sorted(kept.items()))


def choices(task: Pass, rules: Rules) -> Iterable[int]:
    count = len(_choosable(task, rules))
    if count <= SUBSETS_MAX:
        return range(1 << count)
    alone = [1 << number for number in range(count)]
    everything = (1 << count) - 1
    return (NONE, everything, *alone, *(everything - one for one in alone))


@cache
def _choosable(task: Pass, rules: Rules) -> Records:
    """Records that a pass may leave and need not, as it would leave them."""
    full = set(real.compacted(*task[:5]))
    return tuple(one for one in _most(task, rules) if kind_of(one) in DATA and one not in full)


def _most(task: Pass, rules: Rules) -> Records:
    """The most that a pass may leave: all in the clean section whose key the dirty section does not have, because it
    does not see it; and what a newer value supersedes."""
    believed = _believing(task, rules.all_older_go)
    left = {offset_of(one): one for one in believed}
    newest = _newest(from_on(below(task.records, task.bound), task.clean_below), task.records)
    aborted = transactions(task.records).aborted
    for one in below(task.records, task.bound):
        offset, after = offset_of(one), newest.get(key_of(one))
        if kind_of(one) in TOMBSTONES and offset < task.clean_below and not rules.left_tombstones_go_on:
            left[offset] = one
        if kind_of(one) not in DATA or (offset in left and kind_of(left[offset]) in DATA):
            continue
        if offset in aborted:
            may_stay = not rules.aborted_goes
        elif offset >= task.clean_below or after is None:
            may_stay = False  # dirty; or a tombstone that nothing supersedes, and whose time is over
        else:
            may_stay = kind_of(after) not in TOMBSTONES or not rules.deleted_goes
        if may_stay:
            left[offset] = one
    return tuple(one for _, one in sorted(left.items()))


def _believing(task: Pass, all_older_go: bool) -> Records:
    """The real reference believes that each key is once in the clean section, and takes one older record of it there.
    It is asked until nothing changes, which is what a pass must do that knows better."""
    believed = real.compacted(*task)
    while all_older_go and (again := real.compacted(believed, *task[1:])) != believed:
        believed = again
    return believed


def _newest(dirty: Records, log: Records) -> dict[int, int]:
    """By key. `log` tells what was aborted."""
    aborted = transactions(log).aborted
    return {key_of(one): one for one in dirty if kind_of(one) in DATA and offset_of(one) not in aborted}
