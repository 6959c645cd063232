"""The bytes of an object, numbers big-endian as in Kafka's formats:

    "SXOBJ001"
    runs, back to back: each the batches of one partition, as they lie in a .log
    footer:   level, cluster, writer, number of runs; per run a RUN and its BLOCKs
    trailer:  size and CRC-32C of the footer, "SXOBJ001"

A *block* is a stretch of a run of about INDEX_INTERVAL_BYTES that begins with a batch: what a reader gets with one
request, and can check by itself. Kafka's own checksum leaves out the offset and the leader epoch of a batch; a block's
has them.
"""

from __future__ import annotations

import struct
import uuid
from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from sexton.types import NO_EPOCH, NO_OFFSET, LeaderEpoch

MAGIC: Final = b"SXOBJ001"
MAGIC_FAMILY: Final = b"SXOBJ"
"""What all versions begin with."""

FRONT_BYTES: Final = len(MAGIC)
"""Where the first run begins."""

INDEX_INTERVAL_BYTES: Final = 256 * 1024
"""A block ends with the first batch that makes it as large as this."""

HEAD_STRUCT: Final = struct.Struct(">B16sB16sqI")
RUN_STRUCT: Final = struct.Struct(">16siqqqqqqIqIHqqI")
BLOCK_STRUCT: Final = struct.Struct(">qqqI")
TRAILER_STRUCT: Final = struct.Struct(">II8s")
TRAILER_BYTES: Final = TRAILER_STRUCT.size

SETTLED: Final = 0x01
KNOWN_FLAGS: Final = SETTLED


class Level(IntEnum):
    L0 = 0
    """As it was written: many partitions, offsets without gaps."""
    L1 = 1
    """Settled, sorted by partition and offset; compaction leaves gaps."""


class WriterKind(IntEnum):
    BROKER = 0
    COMPACTOR = 1


class Writer(NamedTuple):
    """Who wrote an object. A broker's id is the number in the UUID; its epoch is that of its registration."""

    kind: WriterKind
    writer_id: uuid.UUID
    epoch: int

    @classmethod
    def broker(cls, broker_id: int, broker_epoch: int) -> Writer:
        return cls(WriterKind.BROKER, uuid.UUID(int=broker_id), broker_epoch)

    @classmethod
    def compactor(cls, compactor_id: uuid.UUID) -> Writer:
        return cls(WriterKind.COMPACTOR, compactor_id, -1)


class Block(NamedTuple):
    offset: int
    """Base offset of its first batch."""
    position: int
    """In the run, not in the object."""
    max_timestamp_ms: int
    """Of its batches alone."""
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Offsets [base, end) of one partition. What compaction has taken may leave its first batch above the base; its
    last batch always ends at the end."""

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int
    position: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    batch_count: int
    record_count: int
    crc: int
    is_settled: bool = False
    """No aborted records, no transactional batches, no markers (C7)."""
    cleaned_offset: int = NO_OFFSET
    """Below it, at most one record of each key was left when the run was written; NO_OFFSET if it was not compacted."""
    epoch: int = NO_EPOCH
    """Leader epoch of the writer (L0), or compaction epoch that the run replaced (L1)."""
    blocks: tuple[Block, ...]

    def block_of(self, offset: int) -> int:
        """Number of the block that has the first record at or above this offset, if the run has one: or of the one
        before it, whose last batch may reach that far."""
        return max(0, bisect_right(self.blocks, offset, key=lambda block: block.offset) - 1)

    def block_end(self, number: int) -> int:
        """Where a block ends, in the run."""
        return self.blocks[number + 1].position if number + 1 < len(self.blocks) else self.size_bytes


@dataclass(frozen=True, slots=True)
class Footer:
    level: Level
    cluster_id: uuid.UUID
    writer: Writer
    runs: tuple[Run, ...]


def pack_footer(footer: Footer) -> bytes:
    """Encodes it with the trailer behind it; whether it makes sense is the encoder's to know."""
    writer = footer.writer
    out = bytearray(
        HEAD_STRUCT.pack(
            footer.level, footer.cluster_id.bytes, writer.kind, writer.writer_id.bytes, writer.epoch, len(footer.runs)
        )
    )
    for run in footer.runs:
        out += RUN_STRUCT.pack(
            run.topic_id.bytes,
            run.partition,
            run.base_offset,
            run.end_offset,
            run.position,
            run.size_bytes,
            run.first_timestamp_ms,
            run.max_timestamp_ms,
            run.batch_count,
            run.record_count,
            run.crc,
            SETTLED if run.is_settled else 0,
            run.cleaned_offset,
            run.epoch,
            len(run.blocks),
        )
        for block in run.blocks:
            out += BLOCK_STRUCT.pack(*block)
    return bytes(out)


def unpack_run(data: memoryview, at: int) -> tuple[Run, int, int]:
    """Returns the run without its blocks, the number of those, and the flags, whatever they say."""
    fields = RUN_STRUCT.unpack_from(data, at)
    run = Run(
        topic_id=uuid.UUID(bytes=fields[0]),
        partition=fields[1],
        base_offset=fields[2],
        end_offset=fields[3],
        position=fields[4],
        size_bytes=fields[5],
        first_timestamp_ms=fields[6],
        max_timestamp_ms=fields[7],
        batch_count=fields[8],
        record_count=fields[9],
        crc=fields[10],
        is_settled=bool(fields[11] & SETTLED),
        cleaned_offset=fields[12],
        epoch=LeaderEpoch(fields[13]),
        blocks=(),
    )
    return run, fields[14], fields[11]
