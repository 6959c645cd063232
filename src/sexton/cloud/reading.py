"""Reading a cloud partition: by offset, at once or not at all; by time, after loading what is needed.

A read returns what is in memory, as much as is wanted, in whole batches. What is missing begins to be loaded, and
watchers are woken when it is there. It reads L0 alone: nothing is leveled yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from sexton.cloud.blocks import Block
from sexton.cloud.cache import PATIENCE_MS, Cache
from sexton.cloud.log import CloudLog
from sexton.log.reading import record_in_batch
from sexton.log.types import Read, TimedOffset
from sexton.ports.cloud import Extent
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import Head

T = TypeVar("T")


class NotInMemoryError(Exception):
    """The answer needs a run that is being loaded."""


class Reader:
    def __init__(self, log: CloudLog, cache: Cache, wake: Callable[[], None]) -> None:
        self._log = log
        self._cache = cache
        self._wake = wake
        self._loaded = asyncio.Event()

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool) -> Read:
        log = self._log
        if not log.start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{log.place}: offset {offset} is not between {log.start_offset} and {end_offset}",
            )
        parts: list[memoryview] = []
        size_bytes, next_offset = 0, offset
        for extent in self._extents(offset, end_offset):
            try:
                block = self._find(extent)
            except KafkaError:
                if not parts:
                    raise
                break  # what comes before it is served first
            if block is None or size_bytes >= max_bytes > 0:
                break
            cut = block.cut(next_offset, end_offset, max_bytes - size_bytes, min_one=min_one and not parts)
            if cut is None:
                break
            parts.append(cut.data)
            size_bytes += len(cut.data)
            next_offset = cut.next_offset
            if next_offset < extent.end_offset:
                break
        return Read(list(parts), size_bytes, offset, next_offset)

    def _extents(self, offset: int, end_offset: int) -> Iterator[Extent]:
        """Those that have offsets between the two."""
        log = self._log
        if offset < log.leveled_offset:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{log.place}: offsets below {log.leveled_offset} are leveled, which this version cannot read",
            )
        for extent in log.extents.since(offset):
            if extent.base_offset >= end_offset:
                return
            yield extent

    def _find(self, extent: Extent) -> Block | None:
        return self._cache.find(extent, self._log.epochs, self._log.place, self._woken)

    def _woken(self) -> None:
        self._loaded.set()
        self._wake()

    # By time

    def offset_for_time(self, timestamp_ms: int, end_offset: int) -> TimedOffset | None:
        """Raises NotInMemoryError if a run must be loaded first."""
        log = self._log
        for extent in self._extents(log.start_offset, end_offset):
            if extent.max_timestamp_ms < timestamp_ms:
                continue
            found = self._first_at(extent, timestamp_ms)
            if found is not None:
                return found if found.offset < end_offset else None
        return None

    def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | None:
        """The first record with the largest timestamp."""
        log = self._log
        newest: TimedOffset | None = None
        extents = sorted(self._extents(log.start_offset, end_offset), key=lambda one: -one.max_timestamp_ms)
        for extent in extents:
            if newest is not None and extent.max_timestamp_ms < newest.timestamp_ms:
                break
            found = self._newest_in(extent, end_offset)
            if found is None:
                continue
            if newest is None or (-found.timestamp_ms, found.offset) < (-newest.timestamp_ms, newest.offset):
                newest = found
        return newest

    def _first_at(self, extent: Extent, timestamp_ms: int) -> TimedOffset | None:
        block = self._loaded_block(extent)
        for head in block.heads(self._log.start_offset):
            if head.max_timestamp_ms >= timestamp_ms:
                found = self._in_batch(block, head, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _newest_in(self, extent: Extent, end_offset: int) -> TimedOffset | None:
        """The header's max timestamp is trusted, as everywhere: only the newest batch is looked into."""
        block = self._loaded_block(extent)
        heads = [head for head in block.heads(self._log.start_offset) if head.last_offset < end_offset]
        for head in sorted(heads, key=lambda one: (-one.max_timestamp_ms, one.base_offset)):
            found = self._in_batch(block, head, head.max_timestamp_ms)
            if found is not None:
                return found
        return None

    def _in_batch(self, block: Block, head: Head, timestamp_ms: int) -> TimedOffset | None:
        return record_in_batch(head, lambda: block.batch(head), timestamp_ms, self._log.start_offset, self._log.place)

    def _loaded_block(self, extent: Extent) -> Block:
        block = self._find(extent)
        if block is None:
            raise NotInMemoryError
        return block

    async def loaded(self, question: Callable[[], T]) -> T:
        """Asks until all is in memory that the answer needs."""
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                while True:
                    self._loaded.clear()
                    try:
                        return question()
                    except NotInMemoryError:
                        await self._loaded.wait()
        except TimeoutError:
            raise KafkaError(ErrorCode.request_timed_out, f"{self._log.place}: the store does not answer") from None
