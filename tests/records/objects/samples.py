"""Objects for tests, and how they are put together."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from sexton.records.batch import Batch, Record, encode, make_batch
from sexton.records.objects import MAGIC, Footer, Level, ObjectEncoder, Writer
from sexton.types import PartitionId

NOW_MS = 1_700_000_000_000
CLUSTER_ID = uuid.UUID(int=0xC1)
TOPIC_ID = uuid.UUID(int=0x70)
OTHER_ID = uuid.UUID(int=0x71)
BROKER = Writer.broker(3, 12)
COMPACTOR = Writer.compactor(uuid.UUID(int=0xC0FFEE))


def batch(at: int, records_count: int = 2, value: bytes = b"v", **fields: int) -> Batch:
    """Records at consecutive offsets, one millisecond apart."""
    records = [Record(at + n, NOW_MS + at + n, b"k%d" % (at + n), value) for n in range(records_count)]
    return make_batch(records, **fields)


def batches(base: int, count: int, value: bytes = b"v", **fields: int) -> list[bytes]:
    """Of two records each, without gaps."""
    return [encode(batch(base + 2 * number, 2, value, **fields)) for number in range(count)]


def packed(
    runs: Mapping[PartitionId, tuple[int, Sequence[bytes]]],
    level: Level = Level.L0,
    index_interval_bytes: int = 300,
    epoch: int = 5,
    cleaned_offset: int = -1,
) -> bytes:
    """An object with one run for each partition: its base offset, its batches."""
    writer = BROKER if level is Level.L0 else COMPACTOR
    encoder = ObjectEncoder(level, CLUSTER_ID, writer, index_interval_bytes)
    out = bytearray(MAGIC)
    for (topic_id, partition), (base, parts) in runs.items():
        encoder.begin_run(topic_id, partition, base, epoch=epoch, cleaned_offset=cleaned_offset)
        for part in parts:
            encoder.add(part)
            out += part
        encoder.end_run()
    assert encoder.size_bytes == len(out)
    return bytes(out) + encoder.finish()


SMALL = packed(
    {(TOPIC_ID, 0): (40, batches(40, 3)), (TOPIC_ID, 1): (0, batches(0, 1)), (OTHER_ID, 7): (9, batches(9, 2))}
)
SETTLED = packed(
    {(TOPIC_ID, 0): (0, [*batches(4, 2), *batches(20, 3)]), (TOPIC_ID, 2): (7, batches(7, 1))},
    Level.L1,
    epoch=2,
    cleaned_offset=26,
)
"""With offsets that compaction has taken: the first run begins at 0, its first batch at 4, another at 20."""


def cut(data: bytes, footer: Footer, number: int) -> bytes:
    run = footer.runs[number]
    return data[run.position : run.position + run.size_bytes]
