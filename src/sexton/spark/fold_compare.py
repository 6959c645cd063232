"""The comparison of folds, one bucket of keys at a time: what each replica shows of a key, and whether they agree.

Three ways in which a key may look different without being wrong are told apart here, because there may be millions of
such keys, and nobody needs to see each:

*behind*     its newest record lies where a replica has not been read yet, or has not got to: it lags
*pinned*     its newest record lies at or above a replica's last stable offset: consumers there wait for it
*retention*  all there is of it lies below where a replica's log starts
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sexton.compaction.kernels.contents import CONTENT, Contents
from sexton.compaction.transactions import TransactionIndex
from sexton.records.batch import ControlType
from sexton.records.kernels.keys import FLAG_BITS, TOMBSTONE
from sexton.spark.fold_pass import IN_TRANSACTION, PENDING, Kind, Rows, contents_of, newest_of, outcomes
from sexton.types import INT64_MAX

NO_CODE = -1

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Differences = npt.NDArray[np.void]


class Why(IntEnum):
    """Why a key is among the differences."""

    DIFFERS = 1
    PINNED = 2


def difference_dtype(replica_count: int) -> np.dtype[np.void]:
    """A key on which replicas differ. Codes are offset and flags of its newest visible record on each replica, and of
    its newest one that is hidden; NO_CODE for none."""
    return np.dtype(
        [
            ("first", np.uint64),
            ("second", np.uint64),
            ("why", np.int64),
            ("code", np.int64, (replica_count,)),
            ("content", np.uint64, (replica_count,)),
            ("hidden", np.int64, (replica_count,)),
        ]
    )


@dataclass(frozen=True, slots=True)
class View:
    """How far a replica counts, known once all its headers were seen. Of one that lags, as it will be when it has
    caught up: what it will learn is in the markers."""

    start_offset: int
    end_offset: int
    """How far it was read, or what will be left of that."""
    visible_end: int
    """Its last stable offset: its consumers see nothing from there on. May lie above its end."""
    markers: npt.NDArray[np.void]
    committed_end: int = INT64_MAX
    """From there on nothing is known to be committed. What it has there may have made its cleaner drop older records,
    if its broker knew better."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A bucket of one replica: each key's newest visible record, tombstones included, and its newest hidden one."""

    visible: Contents
    hidden: Contents

    def only(self, firsts: npt.NDArray[np.uint64]) -> Folded:
        return Folded(
            self.visible[np.isin(self.visible["first"], firsts)], self.hidden[np.isin(self.hidden["first"], firsts)]
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """A bucket's result, or the sum of some."""

    partition: int
    key_count: int = 0
    """Keys that are in the fold of some replica."""
    patterns: Mapping[int, int] = field(default_factory=dict)
    """How many keys differ, by the replicas that show something: bit r is replica r."""
    retention_count: int = 0
    behind_counts: tuple[int, ...] = ()
    pinned_counts: tuple[int, ...] = ()
    differences: Differences = field(default_factory=lambda: np.zeros(0, dtype=difference_dtype(0)))

    @property
    def differing_count(self) -> int:
        return sum(self.patterns.values())


def fold_bucket(rows: Iterable[Rows], view: View) -> Folded:
    """Runs that the visible end falls into are left out: they were indexed again, cut there. So is what lies beyond the
    end: it will be truncated."""
    visible: list[Contents] = []
    hidden: list[Contents] = []
    transactions = TransactionIndex(view.markers)
    counted = (row for row in rows if row.end_offset <= view.end_offset)
    for row in sorted(counted, key=lambda row: (row.first_offset, row.kind)):
        is_below = row.end_offset <= view.visible_end
        if row.kind == Kind.PENDING:
            pending = np.frombuffer(row.payload, dtype=PENDING)
            outcome = outcomes(pending, transactions)
            entries = contents_of(pending)
            if is_below:
                visible.append(entries[outcome == ControlType.COMMIT])
                entries = entries[outcome != ControlType.COMMIT]
            hidden.append(entries)
        else:
            into = visible if is_below and row.kind == Kind.VISIBLE else hidden
            into.append(np.frombuffer(row.payload, dtype=CONTENT))
    return Folded(newest_of(visible), newest_of(hidden))


def merged(rows: Sequence[Rows], view: View) -> list[Rows]:
    """The same in fewer rows: of what lies below the visible end the newest of each key, and of what its markers do not
    decide, all. What lies above may be visible to one who knows more, and stays as it is. Runs that the visible end
    falls into were indexed again, in two parts."""
    below = [row for row in rows if row.end_offset <= view.visible_end]
    joined = [row for row in rows if row.first_offset >= view.visible_end]
    if not below:
        return joined
    pending = [np.frombuffer(row.payload, dtype=PENDING) for row in below if row.kind == Kind.PENDING]
    transactions = TransactionIndex(view.markers)
    undecided = [part[outcomes(part, transactions) == ControlType.UNKNOWN] for part in pending]
    decided = [part for row in below for part in _decided(row, transactions)]
    folded = fold_bucket(decided, view)
    first, end = min(row.first_offset for row in below), max(row.end_offset for row in below)
    for kind, payload in (
        (Kind.VISIBLE, folded.visible.tobytes()),
        (Kind.PENDING, b"".join(part.tobytes() for part in undecided)),
        (Kind.HIDDEN, folded.hidden.tobytes()),
    ):
        if payload:
            joined.append(Rows(below[0].replica, first, end, kind, payload))
    return joined


def _decided(row: Rows, transactions: TransactionIndex) -> list[Rows]:
    """Without what is still open."""
    if row.kind != Kind.PENDING:
        return [row]
    pending = np.frombuffer(row.payload, dtype=PENDING)
    kept = pending[outcomes(pending, transactions) != ControlType.UNKNOWN]
    return [replace(row, payload=kept.tobytes())] if len(kept) else []


def compare(partition: int, folds: Sequence[Folded], views: Sequence[View], limit: int) -> Compared:
    """A tombstone means the same as no record at all: the key is not in the fold."""
    agreed_count, rest = _without_agreed(folds, views)
    visible, hidden = _aligned(rest)
    found = _compare_aligned(partition, visible, hidden, views, limit)
    return replace(found, key_count=found.key_count + agreed_count)


def _without_agreed(folds: Sequence[Folded], views: Sequence[View]) -> tuple[int, list[Folded]]:
    """How many keys have the same newest record on all replicas, and the folds without them: nearly all keys, in a
    fraction of the time that aligning them would take. Entries are in offset order, and no two have the same offset."""
    end = min((min(view.visible_end, view.end_offset) for view in views), default=0)
    codes = [fold.visible["code"] & ~IN_TRANSACTION for fold in folds]
    common = codes[0][codes[0] >> FLAG_BITS < end]
    for more in codes[1:]:
        places = np.searchsorted(more, common)
        common = common[more[np.minimum(places, len(more) - 1)] == common] if len(more) else common[:0]
    rows = [np.searchsorted(each, common) for each in codes]
    same = np.ones(len(common), dtype=np.bool_)
    for fold, row in zip(folds[1:], rows[1:], strict=True):
        for name in ("first", "second", "content"):
            same &= fold.visible[name][row] == folds[0].visible[name][rows[0]]
    rest = []
    for fold, row in zip(folds, rows, strict=True):
        left = np.ones(len(fold.visible), dtype=np.bool_)
        left[row[same]] = False
        rest.append(Folded(fold.visible[left], fold.hidden))
    return int((same & ((common & TOMBSTONE) == 0)).sum()), rest


def _aligned(folds: Sequence[Folded]) -> tuple[Contents, Contents]:
    """All replicas' entries in two tables of a row a replica and a column a key: the visible ones and the hidden ones.
    Where a replica has none, NO_CODE."""
    left = np.unique(np.concatenate([fold.visible["first"] for fold in folds]))
    parts = [each for fold in folds for each in (fold.visible, fold.hidden[np.isin(fold.hidden["first"], left)])]
    entries = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.lexsort((entries["second"], entries["first"]))
    entries, owner = entries[order], owner[order]
    starts = np.ones(len(entries), dtype=np.bool_)
    starts[1:] = (entries["first"][1:] != entries["first"][:-1]) | (entries["second"][1:] != entries["second"][:-1])
    column = np.cumsum(starts) - 1
    tables = np.zeros((len(parts), int(starts.sum())), dtype=CONTENT)
    tables["code"] = NO_CODE
    tables["first"], tables["second"] = entries["first"][starts], entries["second"][starts]
    tables[owner, column] = entries
    return tables[0::2], tables[1::2]


def _compare_aligned(
    partition: int, visible: Contents, hidden: Contents, views: Sequence[View], limit: int
) -> Compared:
    codes: Longs = visible["code"]
    has: Mask = codes != NO_CODE
    shows = has & ((codes & TOMBSTONE) == 0)
    newest = (codes >> FLAG_BITS).max(axis=0)
    """NO_CODE shifted is still -1."""
    is_behind = newest >= _column([view.end_offset for view in views])
    is_pinned = newest >= _column([view.visible_end for view in views])
    is_expired = (newest >= 0) & (newest < _column([view.start_offset for view in views]))
    """Even if it has an older record: that was read before the start moved."""
    is_uncommitted = (hidden["code"] >> FLAG_BITS >= _column([view.committed_end for view in views])).any(axis=0)
    counts = ~is_behind & ~is_pinned & ~is_expired & ~is_uncommitted
    shown = np.where(shows, codes & ~IN_TRANSACTION, NO_CODE)
    content = np.where(shows, visible["content"], np.uint64(0))
    differs = shows.any(axis=0) & (_spread(shown, counts) | _spread(content, counts))
    is_pinned &= ~is_behind & ~is_uncommitted & shows.any(axis=0)
    wanted = np.flatnonzero(differs | is_pinned.any(axis=0))
    differences = np.zeros(len(wanted), dtype=difference_dtype(len(views)))
    for name in ("first", "second"):
        differences[name] = visible[name][0, wanted]
    differences["why"] = np.where(differs[wanted], Why.DIFFERS, Why.PINNED)
    differences["code"] = codes.T[wanted]
    differences["content"] = visible["content"].T[wanted]
    differences["hidden"] = hidden["code"].T[wanted]
    return Compared(
        partition=partition,
        key_count=int(shows.any(axis=0).sum()),
        patterns=_patterns(shows[:, differs]),
        retention_count=int((is_expired.any(axis=0) & shows.any(axis=0) & ~differs).sum()),
        behind_counts=tuple(int(row.sum()) for row in (is_behind | is_uncommitted) & (newest >= 0)),
        pinned_counts=tuple(int(row.sum()) for row in is_pinned),
        differences=first_of(differences, limit),
    )


def _patterns(shows: Mask) -> dict[int, int]:
    weights = 1 << np.arange(len(shows), dtype=np.int64)
    found, counts = np.unique(weights @ shows, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _column(values: Sequence[int]) -> Longs:
    return np.array(values, dtype=np.int64)[:, np.newaxis]


def _spread(values: npt.NDArray[np.generic], counts: Mask) -> Mask:
    """Whether those that count are not all the same, for each column."""
    kind = np.iinfo(values.dtype)  # type: ignore[type-var]
    largest = np.where(counts, values, kind.min).max(axis=0)
    smallest = np.where(counts, values, kind.max).min(axis=0)
    result: Mask = (largest != smallest) & (counts.sum(axis=0) > 1)
    return result


def first_of(differences: Differences, limit: int) -> Differences:
    """The first by offset; keys that differ before such that consumers wait for."""
    newest = differences["code"].max(axis=1, initial=NO_CODE) if len(differences) else np.zeros(0, dtype=np.int64)
    return differences[np.lexsort((newest, differences["why"]))][:limit]


def total(parts: Sequence[Compared], partition: int, replica_count: int, limit: int) -> Compared:
    none = (0,) * replica_count
    kind = difference_dtype(replica_count)
    return Compared(
        partition=partition,
        key_count=sum(part.key_count for part in parts),
        patterns=dict(sum((Counter(part.patterns) for part in parts), Counter())),
        retention_count=sum(part.retention_count for part in parts),
        behind_counts=tuple(map(sum, zip(none, *(part.behind_counts for part in parts), strict=True))),
        pinned_counts=tuple(map(sum, zip(none, *(part.pinned_counts for part in parts), strict=True))),
        differences=first_of(
            np.concatenate([np.zeros(0, dtype=kind), *(each.differences for each in parts if len(each.differences))]),
            limit,
        ),
    )
