"""Copies a topic to another number of partitions, record by record, in order by key.

Rounds: each copies what consumers see by then (up to the last stable offsets), and the next one what came meanwhile.

    read      one task per stretch          each key's newest record; counts, codecs, markers
    choose    one task per bucket of keys   which record of each key is copied, of all partitions
    pack      one task per few stretches    reads again; records by target partition
    write     one task per few targets      as an idempotent producer

Order by key is kept because all records of a key go to one target partition, and rows of one source partition stay in
order. A key that is in several partitions of the source has no order among them: its newest record by time is taken,
and a copy of the whole log is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
from pyspark import RDD, SparkContext

from sexton.client.client import Client
from sexton.client.producer import Message, Producer
from sexton.compaction import chunking
from sexton.compaction.transactions import for_tasks, join_events
from sexton.records.keyhash import random_hash_key
from sexton.spark.counting import Counts
from sexton.spark.fold_compare import View
from sexton.spark.fold_job import BUCKET_BYTES, FoldJob, Side
from sexton.spark.fold_pass import Carried, StretchFacts
from sexton.topics import marks as progress_marks
from sexton.topics import target as target_topic
from sexton.topics.copying import (
    Failed,
    Longs,
    Order,
    Packing,
    Row,
    Writing,
    Written,
    choose,
    pack_stretch,
    write_rows,
)
from sexton.topics.finding import PartitionLog, Reading, TopicClient, TopicLog
from sexton.topics.looking import records_at
from sexton.topics.marks import Marks
from sexton.topics.preparing import NotCopiedError, Ready, is_compacted
from sexton.topics.stats import count_keys
from sexton.topics.verifying import Verified, verify

ROUNDS_MAX: Final = 5
"""What is written all the time is never copied up to its end."""
TAIL_RECORDS: Final = 1_000
"""A round that has copied no more than that is the last."""

Progress = Callable[[str, int], None]


@dataclass(slots=True)
class Copied:
    record_count: int = 0
    round_count: int = 0
    keyless_count: int = 0
    """Records without a key that were left out: a compacted topic takes none."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Up to where each partition of the source was copied."""
    notes: list[str] = field(default_factory=list)
    verified: Verified | None = None


class Repartition:
    """From what `preparing.prepare` has found and made ready."""

    def __init__(
        self,
        context: SparkContext,
        client: TopicClient,
        reading: Reading,
        ready: Ready,
        progress: Progress = lambda step, tasks: None,
    ) -> None:
        self._context = context
        self._client = client
        self._reading = reading
        self._request = ready.request
        self._progress = progress
        self.source, self.target = ready.source, ready.target
        self.keeps_all = ready.keeps_all
        self._ends = {log.partition: log.high_watermark for log in ready.target.partitions}
        self.copied = Copied(offsets=dict(ready.offsets), notes=list(ready.notes))

    def _mark(self, *, is_under_way: bool = False) -> None:
        marks = Marks(dict(self.copied.offsets), dict(self._ends), is_under_way)
        names = self.source.name, self.target.name
        self._client.run(lambda inside: progress_marks.write_marks(inside, *names, marks))

    # ---- Rounds ----

    def copy(self) -> None:
        """Until there is little or nothing left."""
        for number in range(ROUNDS_MAX):
            count = self.round()
            if count is None or (number and count <= TAIL_RECORDS):
                return

    def round(self) -> int | None:
        """Copies what there is by now. None: there was nothing new."""
        sizes = {log.partition: log.size_bytes for log in self.source.partitions}
        now = self._client.stand(self.source.name, self.copied.offsets)
        logs = [
            replace(log, log_start_offset=self.copied.offsets[log.partition], size_bytes=sizes[log.partition])
            for log in now
            if log.last_stable_offset > self.copied.offsets[log.partition]
        ]
        if not logs:
            return None
        done = _Round(self._context, logs, self._reading, self._progress)
        if self.keeps_all:
            done.check_one_partition_a_key()
        self._mark(is_under_way=True)
        written = done.write(
            Writing(
                connecting=self._reading.connecting,
                topic=self.target.name,
                end_offsets=self._ends,
                batch_bytes=target_topic.batch_bytes(self.target),
                codec=done.codec if self._request.codec is None else self._request.codec,
            ),
            target_count=self.target.partition_count,
            keeps_all=self.keeps_all,
            keeps_keyless=self.keeps_all and not is_compacted(self.target, otherwise=True),
        )
        self._ends = {**self._ends, **{each.target: each.end_offset for each in written}}
        for log in logs:
            self.copied.offsets[log.partition] = log.last_stable_offset
        self._mark()
        count = sum(each.record_count for each in written)
        self.copied.record_count += count
        self.copied.round_count += 1
        self.copied.notes += done.notes
        if not (self.keeps_all and not is_compacted(self.target, otherwise=True)):
            self.copied.keyless_count += done.keyless_count
        return count

    # ---- After ----

    def verify(self) -> Verified:
        def stand(topic: TopicLog) -> tuple[PartitionLog, ...]:
            sizes = {log.partition: log.size_bytes for log in topic.partitions}
            now = self._client.stand(topic.name, sizes)
            return tuple(replace(log, size_bytes=sizes[log.partition]) for log in now)

        found = verify(
            self._context,
            stand(self.source),
            self.copied.offsets,
            stand(self.target),
            self._reading,
            lambda: stand(self.source),
            self._progress,
        )
        self.copied.verified = found
        return found

    def delete_extra(self) -> int:
        """Deletes, in the target, keys that only the target has: their tombstones had gone from the source before they
        could be copied. Returns how many; a key that has come back to the source since is in the next round."""
        places = self.copied.verified.extras if self.copied.verified is not None else []
        if not places:
            return 0
        self._mark(is_under_way=True)
        name = self.target.name

        async def delete(client: Client) -> Counter[int]:
            keys = await records_at(client, places)
            producer, counts = Producer(client), Counter[int]()
            outcomes = []
            for (_, partition, _), key in keys.items():
                outcomes.append(await producer.queue(name, partition, [Message(key, None)]))
                counts[partition] += 1
            for outcome in outcomes:
                await outcome
            return counts

        counts = self._client.run(delete)
        self._ends = {number: end + counts[number] for number, end in self._ends.items()}
        self._mark()
        return counts.total()

    def finish(self) -> None:
        self._client.run(
            lambda inside: target_topic.finish(inside, self.source, self.target.name, self._request.settings)
        )


class _Round:
    """One copy of [log start, last stable offset) of some partitions."""

    def __init__(
        self, context: SparkContext, logs: Sequence[PartitionLog], reading: Reading, progress: Progress
    ) -> None:
        self._context = context
        self._logs = logs
        self._progress = progress
        sides = [
            Side(
                0,
                reading.stretches(log, number, log.log_start_offset, log.high_watermark),
                from_offset=log.log_start_offset,
                counts_below=log.last_stable_offset,
            )
            for number, log in enumerate(logs)
        ]
        size_bytes = sum(side.size_bytes for side in sides)
        self._job = FoldJob(
            context,
            sides,
            random_hash_key(),
            bucket_counts={0: max(1, -(-size_bytes // BUCKET_BYTES))},
            carried=Carried.TIMESTAMP_MS,
            progress=progress,
        )
        self._stretches = [(place, stretch) for side in sides for place, stretch in enumerate(side.stretches)]
        self._facts = self._job.facts()
        for each in self._facts:
            if each.failure is not None:
                raise each.failure
        self._markers = [join_events([each.events for each in self._of(side)]).markers for side in range(len(logs))]
        self._views: list[View | None] = [
            View(log.log_start_offset, log.high_watermark, log.last_stable_offset, markers)
            for log, markers in zip(logs, self._markers, strict=True)
        ]
        self._counts = Counts()
        for side in range(len(logs)):
            mine = Counts()
            for each in self._of(side):
                mine.add(each.counts or Counts())
            mine.decide(self._markers[side])
            self._counts.add(mine)
        self.notes = [note for each in self._facts for note in each.notes]

    def _of(self, side: int) -> list[StretchFacts]:
        return [each for each in self._facts if each.replica == side]

    @property
    def keyless_count(self) -> int:
        return self._counts.committed.keyless_count

    @property
    def codec(self) -> int:
        """The one that most bytes have."""
        return max(self._counts.codecs.items(), key=lambda each: each[1], default=(0, 0))[0]

    def check_one_partition_a_key(self) -> None:
        parts = self._job.reduce(self._views, partial(count_keys, examples=0), "count keys")
        count = sum(part.shared.key_count for part in parts)
        if count:
            what = f"{count:,} keys are in more than one partition, and nothing tells the order of their records"
            remedy = "--records latest copies the newest by time of each key"
            raise NotCopiedError(what, self._logs[0].topic, remedy)

    def write(self, writing: Writing, *, target_count: int, keeps_all: bool, keeps_keyless: bool) -> list[Written]:
        packings = [
            Packing(
                source=log.partition,
                from_offset=log.log_start_offset,
                to_offset=log.last_stable_offset,
                markers=for_tasks(markers),
                target_count=target_count,
                keeps_keyless=keeps_keyless,
            )
            for log, markers in zip(self._logs, self._markers, strict=True)
        ]
        rows = self._packed(packings, keeps_all)
        writers = max(1, min(target_count, 2 * self._context.defaultParallelism))
        placed = rows.repartitionAndSortWithinPartitions(writers, _writer_of(writers))
        self._progress("copy", writers)
        written = placed.mapPartitions(lambda some: write_rows(some, writing)).collect()
        for each in written:
            if isinstance(each, Failed):
                raise each.error
        return [each for each in written if isinstance(each, Written)]

    def _packed(self, packings: Sequence[Packing], keeps_all: bool) -> RDD[tuple[Order, Row | Failed]]:
        context = self._context
        sizes = [stretch.size_bytes for _, stretch in self._stretches]
        packers = max(1, chunking.task_count(sizes, context.defaultParallelism))
        shared = context.broadcast((self._stretches, list(packings)))
        numbers = range(len(self._stretches))

        def pack(task: int, chosen: Mapping[int, Longs] | None) -> Iterator[tuple[Order, Row | Failed]]:
            stretches, all_packings = shared.value
            for number in numbers[task::packers]:
                place, stretch = stretches[number]
                wanted = None if chosen is None else chosen.get(number, np.zeros(0, dtype=np.int64))
                yield from pack_stretch(stretch, place, all_packings[stretch.replica], wanted)

        self._progress("pack", packers)
        if keeps_all:
            return context.parallelize(range(packers), packers).flatMap(lambda task: pack(task, None))
        spans = self._spans()

        def to_stretches(chosen: tuple[int, Mapping[int, Longs]]) -> Iterator[tuple[int, bytes]]:
            for side, offsets in chosen[1].items():
                for number, start, end in spans[side]:
                    part = offsets[np.searchsorted(offsets, start) : np.searchsorted(offsets, end)]
                    if len(part):
                        yield number, part.tobytes()

        def pack_chosen(task: int, rows: Iterable[tuple[int, bytes]]) -> Iterator[tuple[Order, Row | Failed]]:
            parts: dict[int, list[Longs]] = {}
            for number, payload in rows:
                parts.setdefault(number, []).append(np.frombuffer(payload, dtype=np.int64))
            yield from pack(task, {number: np.sort(np.concatenate(some)) for number, some in parts.items()})

        chosen = self._job.reduced(self._views, choose, "choose").flatMap(to_stretches)
        return chosen.partitionBy(packers, lambda number: number % packers).mapPartitionsWithIndex(pack_chosen)

    def _spans(self) -> list[list[tuple[int, int, int]]]:
        """Of each side: its stretches with the offsets that their batches may have. The last batch of one may reach
        into the next, so spans overlap; each batch is read once all the same."""
        spans: list[list[tuple[int, int, int]]] = [[] for _ in self._logs]
        ends = {each.stretch: each.end_offset for each in self._facts}
        for number, (_, stretch) in enumerate(self._stretches):
            end = max(stretch.to_offset, ends.get(number, -1))
            spans[stretch.replica].append((number, stretch.from_offset, end))
        return spans


def _writer_of(writers: int) -> Callable[[Order], int]:
    def writer(order: Order) -> int:
        return order.target % writers

    return writer
