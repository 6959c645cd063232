"""Makes an object without holding it: whoever sends the bytes tells the encoder of them, and gets the footer at last.

    encoder = ObjectEncoder(Level.L0, cluster_id, Writer.broker(1, 7))
    send(MAGIC)
    encoder.begin_run(topic_id, 0, base_offset=40, epoch=3)
    encoder.add(batches); send(batches)
    encoder.end_run()
    send(encoder.finish())

A batch that does not belong where it is put is a bug of the caller: ValueError, and nothing was added.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from sexton.records import header
from sexton.records.header import (
    BATCH_OFFSET_MAX,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Buffer,
    Head,
)
from sexton.records.names import PARTITION_MAX
from sexton.records.objects.layout import (
    FRONT_BYTES,
    INDEX_INTERVAL_BYTES,
    MAGIC,
    TRAILER_STRUCT,
    Block,
    Footer,
    Level,
    Run,
    Writer,
    pack_footer,
)
from sexton.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, PartitionId

FOOTER_BYTES_MAX: Final = 2**32 - 1


@dataclass(slots=True)
class _OpenBlock:
    offset: int
    position: int
    max_timestamp_ms: int
    crc: int = 0


@dataclass(slots=True)
class _OpenRun:
    key: PartitionId
    base_offset: int
    next_offset: int
    epoch: int
    cleaned_offset: int
    position: int
    size_bytes: int = 0
    first_timestamp_ms: int = NO_TIMESTAMP
    batch_count: int = 0
    record_count: int = 0
    crc: int = 0
    blocks: list[_OpenBlock] = field(default_factory=list)


class ObjectEncoder:
    def __init__(
        self,
        level: Level,
        cluster_id: uuid.UUID,
        writer: Writer,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> None:
        self._level = level
        self._cluster_id = cluster_id
        self._writer = writer
        self._index_interval_bytes = index_interval_bytes
        self._runs: list[Run] = []
        self._ends: dict[PartitionId, int] = {}
        self._open: _OpenRun | None = None
        self.size_bytes = FRONT_BYTES
        """Of what is there so far, without the footer."""

    @property
    def runs(self) -> list[Run]:
        """Those that have ended."""
        return self._runs

    def begin_run(
        self,
        topic_id: uuid.UUID,
        partition: int,
        base_offset: int,
        *,
        epoch: int = NO_EPOCH,
        cleaned_offset: int = NO_OFFSET,
    ) -> None:
        if self._open is not None:
            raise ValueError("a run is open: end it first")
        if not (0 <= partition <= PARTITION_MAX and 0 <= base_offset <= BATCH_OFFSET_MAX):
            raise ValueError(f"no run can begin at offset {base_offset} of partition {partition}")
        key = (topic_id, partition)
        if base_offset < self._ends.get(key, 0):
            raise ValueError(f"a run at {base_offset} follows one that ends at {self._ends[key]}")
        self._open = _OpenRun(
            key=key,
            base_offset=base_offset,
            next_offset=base_offset,
            epoch=epoch,
            cleaned_offset=cleaned_offset,
            position=self.size_bytes,
        )

    def add(self, batches: Buffer) -> None:
        """Whole batches, which follow those of the run so far; the caller sends the same bytes."""
        run = self._open
        if run is None:
            raise ValueError("no run is open")
        heads = self._heads(batches, run)
        if not heads:
            return
        if not run.blocks:
            run.first_timestamp_ms = _first_timestamp_ms(heads[0])
        view = memoryview(batches).cast("B")
        self._add_to_blocks(run, heads, view)
        run.crc = crc32c(view, run.crc)
        run.next_offset = heads[-1].last_offset + 1
        run.batch_count += len(heads)
        run.record_count += sum(head.record_count for head in heads)
        run.size_bytes += len(view)
        self.size_bytes += len(view)

    def _heads(self, batches: Buffer, run: _OpenRun) -> list[Head]:
        heads: list[Head] = []
        at, next_offset, is_dense = 0, run.next_offset, self._level is Level.L0
        while at < len(batches):
            head = header.head_at(batches, at, run.size_bytes + at)
            if isinstance(head, str):
                raise ValueError(f"at byte {at} of what was added: {head}")
            if at + head.size_bytes > len(batches):
                raise ValueError(f"at byte {at} of what was added: the batch is cut off")
            if head.base_offset < next_offset or (is_dense and head.base_offset > next_offset):
                raise ValueError(f"a batch at offset {head.base_offset} cannot follow offset {next_offset - 1}")
            if not is_dense and head.attributes & (TRANSACTIONAL | CONTROL):
                raise ValueError(f"the batch at offset {head.base_offset} is not settled, and L1 is (C7)")
            heads.append(head)
            next_offset = head.last_offset + 1
            at += head.size_bytes
        return heads

    def _add_to_blocks(self, run: _OpenRun, heads: list[Head], view: memoryview) -> None:
        """Checksums are computed over as long stretches as there are: one call for what one block gets."""
        first_position = run.size_bytes
        pending_start = 0
        for head in heads:
            block = run.blocks[-1] if run.blocks else None
            if block is None or head.position - block.position >= self._index_interval_bytes:
                at = head.position - first_position
                if block is not None:
                    block.crc = crc32c(view[pending_start:at], block.crc)
                pending_start = at
                run.blocks.append(_OpenBlock(head.base_offset, head.position, head.max_timestamp_ms))
            else:
                block.max_timestamp_ms = max(block.max_timestamp_ms, head.max_timestamp_ms)
        last = run.blocks[-1]
        last.crc = crc32c(view[pending_start:], last.crc)

    def end_run(self) -> Run:
        """The run ends where its last batch does."""
        run = self._open
        if run is None or not run.blocks:
            raise ValueError("no run is open, or it has no batch")
        ended = Run(
            topic_id=run.key[0],
            partition=run.key[1],
            base_offset=run.base_offset,
            end_offset=run.next_offset,
            position=run.position,
            size_bytes=run.size_bytes,
            first_timestamp_ms=run.first_timestamp_ms,
            max_timestamp_ms=max(block.max_timestamp_ms for block in run.blocks),
            batch_count=run.batch_count,
            record_count=run.record_count,
            crc=run.crc,
            is_settled=self._level is Level.L1,
            cleaned_offset=run.cleaned_offset,
            epoch=run.epoch,
            blocks=tuple(Block(one.offset, one.position, one.max_timestamp_ms, one.crc) for one in run.blocks),
        )
        self._runs.append(ended)
        self._ends[run.key] = run.next_offset
        self._open = None
        return ended

    def finish(self) -> bytes:
        """Returns what comes after the last run: footer and trailer."""
        if self._open is not None or not self._runs:
            raise ValueError("a run is open, or there is none")
        footer = pack_footer(Footer(self._level, self._cluster_id, self._writer, tuple(self._runs)))
        if len(footer) > FOOTER_BYTES_MAX:
            raise ValueError(f"a footer of {len(footer)} bytes")
        return footer + TRAILER_STRUCT.pack(len(footer), crc32c(footer), MAGIC)


def _first_timestamp_ms(head: Head) -> int:
    """Where the base timestamp is a delete horizon, or every record has the time of the append, it is the other one."""
    return head.max_timestamp_ms if head.attributes & (DELETE_HORIZON | LOG_APPEND_TIME) else head.base_timestamp_ms
