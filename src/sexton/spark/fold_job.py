"""The Spark job that folds replicas and holds them against each other (``fold_pass``, ``fold_compare``).

The bytes are read once: the shuffle keeps what was made of them while its caller learns from the facts where each
replica's last stable offset is, reads what came since, and only then has the buckets compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pyspark import RDD, SparkContext

from sexton.compaction import chunking
from sexton.records.keyhash import HashKey
from sexton.spark import fold_compare
from sexton.spark.fold_compare import Compared, View, fold_bucket, merged
from sexton.spark.fold_pass import FACTS, Carried, Row, Rows, Scope, StretchFacts, index_stretch
from sexton.spark.passes import Progress
from sexton.spark.stretches import Narrowed, Stretch

BUCKET_BYTES = 16 << 20
"""Of the largest replica: at 100 bytes a record that is as many entries as fit a processor's cache."""

REDUCE_BYTES = 64 << 20
"""What a reducer may get, if each record of 100 bytes were a key of its own."""


Result = TypeVar("Result")
Reducing = Callable[[int, Mapping[int, Sequence[Rows]], "Sequence[View | None]"], Result]
"""Called with the partition's number, each side's rows of a bucket, and all views."""


def _ignore(step: str, tasks: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Side:
    """A replica in the job."""

    partition: int
    """The number of its partition in the job."""
    stretches: tuple[Stretch, ...]
    cuts: tuple[int, ...] = ()
    from_offset: int = 0
    max_batch_bytes: int = 0
    """0: the largest that a batch may be anywhere."""
    counts_below: int | None = None
    """Where consumers stop, if what they see is to be counted, too."""
    clips: bool = False
    """Whether only records with offsets of the stretches count, and not all of the batches at their edges."""

    @property
    def size_bytes(self) -> int:
        return sum(stretch.size_bytes for stretch in self.stretches)


class FoldJob:
    """`facts`, perhaps `add`, then `compare` or `collect`."""

    def __init__(
        self,
        context: SparkContext,
        sides: Sequence[Side],
        key: HashKey,
        *,
        bucket_counts: Mapping[int, int] | None = None,
        carried: Carried = Carried.CONTENT,
        progress: Progress = _ignore,
    ) -> None:
        """Sides are numbered by their place, and their stretches carry that number. Bucket counts by partition, where
        they are not to be chosen here."""
        self._carried = carried
        self._context = context
        self._sides = list(sides)
        self._key = key
        self._progress = progress
        self.bucket_counts = dict(bucket_counts or bucket_counts_of(sides))
        self._first_groups: dict[int, int] = {}
        group = FACTS + 1
        for partition, count in sorted(self.bucket_counts.items()):
            self._first_groups[partition] = group
            group += count
        self._group_count = group - 1
        self._stretches = [stretch for side in sides for stretch in side.stretches]
        self._scopes = [self._scope(side) for side in sides]
        size_bytes = sum(side.size_bytes for side in sides)
        self._reducers = max(
            1, min(self._group_count, max(4 * context.defaultParallelism, -(-size_bytes // REDUCE_BYTES)))
        )
        self._extra: dict[int, list[Rows]] = {}
        self._shuffled = self._index(self._stretches).partitionBy(1 + self._reducers, _target(self._reducers))

    def _scope(self, side: Side) -> Scope:
        scope = Scope(
            first_group=self._first_groups[side.partition],
            bucket_count=self.bucket_counts[side.partition],
            cuts=tuple(sorted({*side.cuts, *(() if side.counts_below is None else (side.counts_below,))})),
            from_offset=side.from_offset,
            carried=self._carried,
            counts_below=side.counts_below,
            clips=side.clips,
        )
        return replace(scope, max_batch_bytes=side.max_batch_bytes) if side.max_batch_bytes else scope

    def _index(self, stretches: Sequence[Stretch]) -> RDD[Row]:
        scopes, key = self._scopes, self._key
        tasks = chunking.task_count([each.size_bytes for each in stretches], self._context.defaultParallelism)
        # The largest first: what ends last should be small.
        order = sorted(range(len(stretches)), key=lambda number: -stretches[number].size_bytes)
        dealt = [[(number, stretches[number]) for number in order[task::tasks]] for task in range(tasks)]
        shared = self._context.broadcast(scopes)

        def index(task: Sequence[tuple[int, Stretch]]) -> Iterator[Row]:
            for number, stretch in task:
                yield from index_stretch(number, stretch, shared.value[stretch.replica], key)

        self._progress("read", tasks)
        return self._context.parallelize(dealt, max(1, len(dealt))).flatMap(index)

    def facts(self) -> list[StretchFacts]:
        """Of all stretches, in the order of the sides and of each one's stretches. Reads everything."""
        found = self._context.runJob(self._shuffled, _facts, [0])
        return sorted(found, key=lambda facts: facts.stretch)

    def add(self, stretches: Sequence[Stretch]) -> list[StretchFacts]:
        """Reads more: what came since. It must be little, for it goes through the driver's memory."""
        if not stretches:
            return []
        facts = []
        for group, row in self._index(stretches).collect():
            if isinstance(row, StretchFacts):
                facts.append(replace(row, stretch=row.stretch + len(self._stretches)))
            else:
                self._extra.setdefault(group, []).append(row)
        self._stretches += stretches
        return sorted(facts, key=lambda facts: facts.stretch)

    def index_again(self, ends: Mapping[int, int], facts: Sequence[StretchFacts]) -> None:
        """Reads those runs again that a replica's visible end falls into, in two parts."""
        again = [
            Narrowed(self._stretches[each.stretch], *part)
            for each in facts
            for first, run_end in each.runs
            if first < (end := ends.get(each.replica, first)) < run_end
            for part in ((first, end), (end, run_end))
        ]
        if not again:
            return
        for group, row in self._index(again).collect():
            if isinstance(row, Rows):
                self._extra.setdefault(group, []).append(row)

    def compare(
        self, views: Sequence[View | None], limit: int, only: npt.NDArray[np.uint64] | None = None
    ) -> dict[int, Compared]:
        """By partition, which replicas disagree on which keys; the first differences up to the limit. Sides without a
        view are left out. `only` keys whose hash begins so."""
        members: dict[int, list[int]] = {}
        for number, side in enumerate(self._sides):
            if views[number] is not None:
                members.setdefault(side.partition, []).append(number)

        def compare(partition: int, rows: Mapping[int, Sequence[Rows]], shown: Sequence[View | None]) -> Compared:
            known = [(view, rows.get(number, ())) for number in members[partition] if (view := shown[number])]
            folds = [fold_bucket(some, view) for view, some in known]
            folds = folds if only is None else [each.only(only) for each in folds]
            return fold_compare.compare(partition, folds, [view for view, _ in known], limit)

        parts: dict[int, list[Compared]] = {partition: [] for partition in members}
        for _, found in self._reduce(views, compare):
            parts[found.partition].append(found)
        return {
            partition: fold_compare.total(found, partition, len(members[partition]), limit)
            for partition, found in parts.items()
        }

    def folded(self, views: Sequence[View | None]) -> Iterator[tuple[int, int, list[Rows]]]:
        """Side, bucket, and the rows of each bucket that has some, with those below the visible end joined: what a fold
        that travels consists of. One part of the job after the other, for all of it may not fit in memory."""
        first_groups, partitions = self._first_groups, [side.partition for side in self._sides]
        merging = self._reducing(views, merge_rows)
        for index in range(1, 1 + self._reducers):
            parts = self._context.runJob(self._shuffled, partial(merging, index), [index])
            for group, by_side in parts:
                for number, rows in by_side.items():
                    yield number, group - first_groups[partitions[number]], rows

    def reduce(self, views: Sequence[View | None], function: Reducing[Result], step: str) -> list[Result]:
        """What a function makes of each bucket. Sides without a view are left out."""
        return [result for _, result in self._reduce(views, function, step)]

    def _reduce(
        self, views: Sequence[View | None], function: Reducing[Result], step: str = "compare"
    ) -> list[tuple[int, Result]]:
        return self.reduced(views, function, step).collect()

    def reduced(self, views: Sequence[View | None], function: Reducing[Result], step: str) -> RDD[tuple[int, Result]]:
        """The same, where it is: for a job that goes on with it."""
        self._progress(step, self._reducers)
        return self._shuffled.mapPartitionsWithIndex(self._reducing(views, function))

    def _reducing(
        self, views: Sequence[View | None], function: Reducing[Result]
    ) -> Callable[[int, Iterable[Row]], Iterator[tuple[int, Result]]]:
        """Calls it for each group, with the rows of its bucket by side."""
        partitions = [side.partition for side in self._sides]
        shared = self._context.broadcast((list(views), self._extra, partitions))
        reducers = self._reducers

        def reduce(index: int, rows: Iterable[Row]) -> Iterator[tuple[int, Result]]:
            if index == 0:
                return
            shown, extra, partition_of = shared.value
            groups: dict[int, dict[int, list[Rows]]] = {}
            mine = ((group, row) for group, more in extra.items() if _place(group, reducers) == index for row in more)
            for source in (rows, mine):
                for group, row in source:
                    if isinstance(row, Rows) and shown[row.replica] is not None:
                        groups.setdefault(group, {}).setdefault(row.replica, []).append(row)
            while groups:
                group, by_replica = groups.popitem()
                yield group, function(partition_of[next(iter(by_replica))], by_replica, shown)

        return reduce


def merge_rows(
    partition: int, rows: Mapping[int, Sequence[Rows]], shown: Sequence[View | None]
) -> dict[int, list[Rows]]:
    return {number: merged(some, view) for number, some in rows.items() if (view := shown[number]) is not None}


def _facts(rows: Iterable[Row]) -> list[StretchFacts]:
    return [row for _, row in rows if isinstance(row, StretchFacts)]


def _place(group: int, reducers: int) -> int:
    return 0 if group == FACTS else 1 + group % reducers


def _target(reducers: int) -> Callable[[int], int]:
    def target(group: int) -> int:
        return _place(group, reducers)

    return target


def bucket_counts_of(sides: Sequence[Side]) -> dict[int, int]:
    """By the largest replica of each partition."""
    largest: dict[int, int] = {}
    for side in sides:
        largest[side.partition] = max(largest.get(side.partition, 0), side.size_bytes)
    return {partition: max(1, -(-size_bytes // BUCKET_BYTES)) for partition, size_bytes in largest.items()}
