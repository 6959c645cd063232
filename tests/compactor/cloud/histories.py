"""Random histories of cloud partitions: batches of L0 without gaps, transactions that overlap, commit, abort or stay
open, and the objects and plans that they would lie in."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from sexton.ports.cloud import AbortedRow, CloudPartitionRow, Extent, Level, ObjectId
from sexton.ports.object_names import ObjectName
from sexton.records.batch import Batch, ControlType, Record, encode, make_batch, make_marker
from sexton.records.header import TRANSACTIONAL
from sexton.records.objects import MAGIC, ObjectEncoder
from sexton.records.objects import Level as ObjectLevel
from sexton.records.objects import Writer as ObjectWriter
from sexton.types import CompactionEpoch, LeaderEpoch, PartitionId, ProducerId

CLUSTER = uuid.UUID(int=77)
TOPIC_ID = uuid.UUID(int=7)
NOW_MS = 1_700_000_000_000
CODECS = (0, 0, 0, 1, 4)


def row_of(key: PartitionId, **more: Any) -> CloudPartitionRow:
    names = CloudPartitionRow.__slots__
    fields: dict[str, Any] = dict.fromkeys(names, 0)
    return CloudPartitionRow(**{**fields, "topic_id": key[0], "partition": key[1], **more})


@dataclass(slots=True)
class History:
    """One partition's L0, up to its last stable offset and beyond."""

    key: PartitionId
    batches: list[Batch] = field(default_factory=list)
    aborted: list[AbortedRow] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """By producer: where its transaction began."""
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    @property
    def stable_offset(self) -> int:
        return min(self.open.values(), default=self.end_offset)

    def step(self, rng: random.Random) -> None:
        producer = rng.randrange(4)
        if producer and producer in self.open and rng.random() < 0.4:
            self._end(producer, rng.choice((ControlType.COMMIT, ControlType.ABORT)))
        else:
            self._append(rng, producer)

    def _append(self, rng: random.Random, producer: int) -> None:
        at = self.end_offset
        count = rng.choice((1, 1, 2, 5))
        records = [
            Record(
                at + index,
                NOW_MS + rng.randrange(-50, 50),
                b"k%d" % rng.randrange(12),
                None if rng.random() < 0.25 else rng.randbytes(rng.randrange(40)),
            )
            for index in range(count)
        ]
        fields = {"leader_epoch": 3}
        if producer:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
            fields["attributes"] = TRANSACTIONAL
            self.open.setdefault(producer, at)
        batch = make_batch(records, **fields)
        self.batches.append(replace(batch, attributes=batch.attributes | rng.choice(CODECS)))

    def _end(self, producer: int, how: ControlType) -> None:
        at = self.end_offset
        first = self.open.pop(producer)
        self.batches.append(make_marker(at, how, producer, 0, NOW_MS, leader_epoch=3))
        if how is ControlType.ABORT:
            self.aborted.append(AbortedRow(ProducerId(producer), first, at, self.stable_offset))

    def stable(self) -> list[Batch]:
        """What may be leveled: whole batches below the stable offset."""
        return [batch for batch in self.batches if batch.last_offset < self.stable_offset]


def random_history(rng: random.Random, partition: int, steps_count: int) -> History:
    history = History((TOPIC_ID, partition))
    for _ in range(steps_count):
        history.step(rng)
    return history


def objects_of(
    rng: random.Random, histories: list[History], upto: dict[PartitionId, int], since: dict[PartitionId, int]
) -> tuple[dict[str, bytes], dict[PartitionId, list[Extent]]]:
    """The batches in [since, upto) of each partition, gathered into objects as brokers do; lone markers inline."""
    queues = {
        one.key: [b for b in one.batches if since[one.key] <= b.base_offset and b.last_offset < upto[one.key]]
        for one in histories
    }
    objects: dict[str, bytes] = {}
    extents: dict[PartitionId, list[Extent]] = {one.key: [] for one in histories}
    while any(queues.values()):
        object_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        encoder = ObjectEncoder(ObjectLevel.L0, CLUSTER, ObjectWriter.broker(1, 1))
        data = bytearray(MAGIC)
        for key, queue in queues.items():
            if not queue or rng.random() < 0.2:
                continue
            if queue[0].is_control and rng.random() < 0.7:
                extents[key].append(_inline(queue.pop(0)))
                continue
            some = [queue.pop(0) for _ in range(min(len(queue), rng.randrange(1, 5)))]
            encoded = b"".join(map(encode, some))
            encoder.begin_run(*key, some[0].base_offset, epoch=3)
            encoder.add(encoded)
            run = encoder.end_run()
            data += encoded
            extents[key].append(_extent(run, object_id))
        if encoder.runs:
            data += encoder.finish()
            objects[ObjectName(CLUSTER, ObjectLevel.L0, object_id).key] = bytes(data)
    return objects, extents


def _extent(run: Any, object_id: ObjectId) -> Extent:
    return Extent(
        run.base_offset,
        run.end_offset,
        Level.L0,
        object_id,
        run.position,
        run.size_bytes,
        run.first_timestamp_ms,
        run.max_timestamp_ms,
        run.record_count,
    )


def _inline(marker: Batch) -> Extent:
    data = encode(marker)
    return Extent(marker.base_offset, marker.next_offset, Level.L0, None, 0, len(data), NOW_MS, NOW_MS, 1, inline=data)


def leveled_row(key: PartitionId, leveled: int, cleaned: int = 0) -> CloudPartitionRow:
    return row_of(
        key,
        leveled_offset=leveled,
        cleaned_offset=cleaned,
        compaction_epoch=CompactionEpoch(0),
        writer_epoch=LeaderEpoch(3),
    )
