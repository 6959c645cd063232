"""Just enough of a SparkContext to run a job in this process: what is sent is pickled, and shuffles shuffle."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, cast

from pyspark import SparkContext


class LocalContext:
    """Rows arrive in an order drawn from ``rng``, because Spark promises none."""

    def __init__(self, rng: random.Random, parallelism: int = 2, *, keeps_shuffles: bool = False) -> None:
        """`keeps_shuffles`: what was shuffled once is not read again, as in Spark as long as no executor is lost."""
        self.rng = rng
        self.keeps_shuffles = keeps_shuffles
        self.defaultParallelism = parallelism
        self.master = "local"
        self.held: list[object] = []
        """Broadcasts and rows that somebody has yet to let go."""

    @property
    def as_spark(self) -> SparkContext:
        return cast(SparkContext, self)

    def parallelize(self, items: Iterable[Any], slices: int = 1) -> LocalRows:
        rows = list(items)
        cuts = [len(rows) * index // slices for index in range(slices + 1)]
        parts = [rows[start:end] for start, end in pairwise(cuts)]
        return LocalRows(self, lambda: pickle.loads(pickle.dumps(parts)))

    def runJob(  # noqa: N802 - Spark's name
        self, rows: LocalRows, function: Callable[[Iterator[Any]], Iterable[Any]], partitions: Iterable[int]
    ) -> list[Any]:
        parts = rows.parts()
        found = [list(function(iter(parts[index]))) for index in partitions]
        return [row for part in pickle.loads(pickle.dumps(found)) for row in part]

    def broadcast(self, value: Any) -> LocalBroadcast:
        return LocalBroadcast(self, value)


class LocalBroadcast:
    def __init__(self, context: LocalContext, value: Any) -> None:
        self._context = context
        self.value = pickle.loads(pickle.dumps(value))
        context.held.append(self)

    def destroy(self) -> None:
        self.value = None
        self._context.held.remove(self)

    def unpersist(self) -> None:
        pass


class LocalRows:
    """An RDD: nothing runs until ``collect``, and what is not persisted runs again."""

    def __init__(self, context: LocalContext, compute: Callable[[], list[list[Any]]]) -> None:
        self._context = context
        self._compute = compute
        self._kept: list[list[Any]] | None = None
        self._is_persisted = False

    def parts(self) -> list[list[Any]]:
        if self._kept is not None:
            return self._kept
        parts = self._compute()
        if self._is_persisted:
            self._kept = parts
        return parts

    def map(self, function: Callable[[Any], Any]) -> LocalRows:
        return LocalRows(self._context, lambda: [[function(row) for row in part] for part in self.parts()])

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> LocalRows:  # noqa: N802 - Spark's name
        return LocalRows(
            self._context, lambda: [[out for row in part for out in function(row)] for part in self.parts()]
        )

    def filter(self, function: Callable[[Any], bool]) -> LocalRows:
        return LocalRows(self._context, lambda: [[row for row in part if function(row)] for part in self.parts()])

    def values(self) -> LocalRows:
        return self.map(lambda row: row[1])

    def mapPartitions(self, function: Callable[[Iterator[Any]], Iterable[Any]]) -> LocalRows:  # noqa: N802
        return LocalRows(self._context, lambda: [list(function(iter(part))) for part in self.parts()])

    def mapPartitionsWithIndex(  # noqa: N802
        self, function: Callable[[int, Iterator[Any]], Iterable[Any]]
    ) -> LocalRows:
        return LocalRows(
            self._context, lambda: [list(function(index, iter(part))) for index, part in enumerate(self.parts())]
        )

    def partitionBy(self, count: int, function: Callable[[Any], int]) -> LocalRows:  # noqa: N802
        def shuffled() -> list[list[Any]]:
            targets: list[list[Any]] = [[] for _ in range(count)]
            for part in self.parts():
                for row in pickle.loads(pickle.dumps(part)):
                    targets[function(row[0]) % count].append(row)
            for target in targets:
                self._context.rng.shuffle(target)
            return targets

        rows = LocalRows(self._context, shuffled)
        rows._is_persisted = self._context.keeps_shuffles
        return rows

    def repartitionAndSortWithinPartitions(  # noqa: N802
        self, count: int, function: Callable[[Any], int]
    ) -> LocalRows:
        placed = self.partitionBy(count, function)
        return LocalRows(self._context, lambda: [sorted(part, key=lambda row: row[0]) for part in placed.parts()])

    def union(self, other: LocalRows) -> LocalRows:
        return LocalRows(self._context, lambda: self.parts() + other.parts())

    def persist(self, level: object) -> LocalRows:
        self._is_persisted = True
        self._context.held.append(self)
        return self

    def unpersist(self) -> LocalRows:
        self._kept = None
        self._context.held.remove(self)
        return self

    def collect(self) -> list[Any]:
        rows = [row for part in self.parts() for row in part]
        return cast("list[Any]", pickle.loads(pickle.dumps(rows)))
