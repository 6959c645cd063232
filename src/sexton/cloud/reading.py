"""Reading a cloud partition: by offset, at once or not at all; by time, after loading what is needed.

A read returns what is in memory, as much as is wanted, in whole batches. What is missing begins to be loaded, and
watchers are woken when it is there. One read is of one level (C9): L1, which is settled, or L0, with the list of its
aborted transactions. One that begins in L1 ends at the leveled offset.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from sexton.cloud.blocks import Block
from sexton.cloud.cache import (
    PATIENCE_MS,
    WHOLE_BYTES_MAX,
    Cache,
    part_max_timestamp_ms,
    part_of,
    parts_count,
)
from sexton.cloud.host import CloudHost
from sexton.cloud.leveled import PAGE_EXTENTS
from sexton.cloud.log import CloudLog
from sexton.cloud.patience import until_known
from sexton.cloud.views import Views
from sexton.log.reading import record_in_batch
from sexton.log.types import Read, TimedOffset
from sexton.ports.cloud import Extent, Level
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import Head
from sexton.records.objects import Run
from sexton.types import NO_TIMESTAMP

T = TypeVar("T")

AHEAD_PARTS_MAX: Final = 4
"""Parts of L1 that are loaded before they are asked for: one, two, four, as a reader goes on in order."""

AHEAD_RUNS_MAX: Final = 16
"""The same of L0, whose runs may be as small as one batch: with one request after the other a reader that is behind
would be slower than the writers."""

SEQUENCES_MAX: Final = 64
"""Readers in order that are remembered, by where each goes on."""

PAGE_PAUSE_MS: Final = 250
"""Before a page is asked for again, from a metastore that is away."""


class NotInMemoryError(Exception):
    """The answer needs something that is being loaded."""


class Reader:
    def __init__(
        self, *, log: CloudLog, cache: Cache, views: Views, host: CloudHost, as_of_ms: int, wake: Callable[[], None]
    ) -> None:
        self._log = log
        self._cache = cache
        self._views = views
        self._host = host
        self._wake = wake
        self._loaded = asyncio.Event()
        self._claimed_ms = as_of_ms
        self._paging: asyncio.Task[None] | None = None
        self._sequences: OrderedDict[int, int] = OrderedDict()
        """By the offset where a reader goes on: how many parts, or runs, were loaded ahead of it."""

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool) -> Read:
        log = self._log
        if not log.start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{log.place}: offset {offset} is not between {log.start_offset} and {end_offset}",
            )
        if not self._views.is_fresh(self._claimed_ms):
            return Read([], 0, offset, offset)  # C8: until the metastore has said what became of it
        if offset < log.leveled_offset:
            read = self._read_blocks(offset, max_bytes, min(end_offset, log.leveled_offset), min_one, self._in_l1)
            self._load_ahead(offset, read.next_offset, log.leveled_offset, self._parts_ahead)
            return read
        read = self._read_blocks(offset, max_bytes, end_offset, min_one, self._in_l0)
        self._load_ahead(offset, read.next_offset, end_offset, self._runs_ahead)
        return read

    def _read_blocks(
        self, offset: int, max_bytes: int, end_offset: int, min_one: bool, find: Callable[[int], Block | None]
    ) -> Read:
        parts: list[memoryview] = []
        size_bytes, next_offset = 0, offset
        while next_offset < end_offset:
            try:
                block = find(next_offset)
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
            if next_offset < min(block.end_offset, end_offset):
                break
        return Read(list(parts), size_bytes, offset, next_offset)

    def _in_l0(self, offset: int) -> Block | None:
        extent = self._log.extents.at(offset)
        return None if extent is None else self._find(extent)

    def _find(self, extent: Extent) -> Block | None:
        return self._cache.find(extent, self._log.epochs, self._log.place, self._woken)

    def _woken(self) -> None:
        self._loaded.set()
        self._wake()

    # L1

    def _in_l1(self, offset: int) -> Block | None:
        """The block whose batches reach above the offset, wherever the next of them begins."""
        extent = self._log.leveled.at(offset)
        if extent is None:
            self._load_page(offset)
            return None
        run = self._index(extent)
        if run is None and extent.size_bytes > WHOLE_BYTES_MAX:
            return None
        number = part_of(run, offset)
        block = self._part(extent, number)
        if block is not None and block.end_offset <= offset:
            return self._part(extent, number + 1)
        return block

    def _index(self, extent: Extent) -> Run | None:
        """None also of a run that is read whole."""
        if extent.size_bytes <= WHOLE_BYTES_MAX:
            return None
        return self._cache.index(extent, self._log.key, self._log.place, self._woken)

    def _part(self, extent: Extent, number: int) -> Block | None:
        log = self._log
        return self._cache.find_leveled(extent, log.key, number, log.epochs, log.place, self._woken)

    def _load_page(self, offset: int) -> None:
        if self._paging is None or self._paging.done():
            self._paging = self._host.supervisor.work(self._read_page(offset), "a read of objects", self._log.place)

    async def _read_page(self, offset: int) -> None:
        try:
            page = await self._host.metastore.read_extents(self._log.key, offset, PAGE_EXTENTS)
        except MetastoreUnavailableError:
            await asyncio.sleep(PAGE_PAUSE_MS / 1000)
            page = None
        if page is not None:
            self._log.leveled.add(page)
        self._paging = None
        self._woken()

    # Ahead of a reader

    def _load_ahead(self, offset: int, next_offset: int, end_offset: int, load: Callable[[int, int], None]) -> None:
        """Nobody waits for what is loaded here, and no error of it is told: whoever asks for it finds out."""
        if not offset < next_offset < end_offset:
            return
        count = 2 * self._sequences.pop(offset, 0) or 1
        self._sequences[next_offset] = min(AHEAD_RUNS_MAX, max(count, self._sequences.pop(next_offset, 0)))
        while len(self._sequences) > SEQUENCES_MAX:
            self._sequences.popitem(last=False)
        with suppress(KafkaError):
            load(next_offset, self._sequences[next_offset])

    def _runs_ahead(self, offset: int, count: int) -> None:
        log, left_bytes = self._log, self._cache.ahead_bytes_max
        for extent in islice(log.extents.since(offset), count):
            left_bytes -= extent.size_bytes
            if left_bytes < 0:
                return
            self._cache.find(extent, log.epochs, log.place, None)

    def _parts_ahead(self, offset: int, count: int) -> None:
        log = self._log
        left_count = min(count, AHEAD_PARTS_MAX)
        extent = log.leveled.at(offset)
        while extent is not None and left_count:
            run = self._index(extent)
            if run is None and extent.size_bytes > WHOLE_BYTES_MAX:
                return
            for number in range(part_of(run, offset), parts_count(run))[:left_count]:
                self._cache.find_leveled(extent, log.key, number, log.epochs, log.place, None)
                left_count -= 1
            offset = extent.end_offset
            extent = log.leveled.at(offset)

    # By time

    async def offset_for_time(self, timestamp_ms: int, end_offset: int) -> TimedOffset | None:
        """L1 by the metastore's word, one moment of both levels (T24), then L0."""
        log, from_offset = self._log, self._log.start_offset
        while from_offset < log.leveled_offset:
            extent = await self._asked(partial(self._host.metastore.find_time, log.key, timestamp_ms, from_offset))
            if extent is None or extent.level is Level.L0:
                break
            for number in await self._parts_since(extent, timestamp_ms):
                found = await self.loaded(self._first_in_part(extent, number, timestamp_ms))
                if found is not None:
                    return found if found.offset < end_offset else None
            from_offset = extent.end_offset
        return await self.loaded(lambda: self._l0_offset_for_time(timestamp_ms, end_offset))

    def _first_in_part(self, extent: Extent, number: int, timestamp_ms: int) -> Callable[[], TimedOffset | None]:
        return lambda: self._first_in(_there(self._part(extent, number)), timestamp_ms)

    def _l0_offset_for_time(self, timestamp_ms: int, end_offset: int) -> TimedOffset | None:
        for extent in self._l0_extents(end_offset):
            if extent.max_timestamp_ms < timestamp_ms:
                continue
            found = self._first_in(_there(self._find(extent)), timestamp_ms)
            if found is not None:
                return found if found.offset < end_offset else None
        return None

    async def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | None:
        """The first record with the largest timestamp."""
        newest: TimedOffset | None = None
        extents = [*await self.leveled_extents(), *self._l0_extents(end_offset)]
        for extent in sorted(extents, key=lambda one: -one.max_timestamp_ms):
            if newest is not None and extent.max_timestamp_ms < newest.timestamp_ms:
                break
            found = await self._newest_of(extent, end_offset)
            if found is not None and (newest is None or _is_newer(found, newest)):
                newest = found
        return newest

    async def _newest_of(self, extent: Extent, end_offset: int) -> TimedOffset | None:
        """A batch that compaction has emptied keeps its timestamp: the next part may have the newest record."""
        if extent.level is Level.L0:
            return await self.loaded(lambda: self._newest_in(_there(self._find(extent)), end_offset))
        newest: TimedOffset | None = None
        for number in await self._parts_since(extent, NO_TIMESTAMP):
            found = await self.loaded(self._newest_in_part(extent, number, end_offset))
            if found is not None and (newest is None or _is_newer(found, newest)):
                newest = found
            if newest is not None and newest.timestamp_ms == extent.max_timestamp_ms:
                break
        return newest

    def _newest_in_part(self, extent: Extent, number: int, end_offset: int) -> Callable[[], TimedOffset | None]:
        return lambda: self._newest_in(_there(self._part(extent, number)), end_offset)

    async def leveled_extents(self) -> list[Extent]:
        """Reads all extents of L1 from the metastore."""
        log, from_offset = self._log, self._log.start_offset
        extents: list[Extent] = []
        while from_offset < log.leveled_offset:
            page = await self._asked(partial(self._host.metastore.read_extents, log.key, from_offset, PAGE_EXTENTS))
            found = [one for one in page.extents if one.level is Level.L1] if page is not None else []
            if not found:
                break
            extents += found
            from_offset = found[-1].end_offset
        return extents

    def _l0_extents(self, end_offset: int) -> Iterator[Extent]:
        for extent in self._log.extents.since(max(self._log.start_offset, self._log.leveled_offset)):
            if extent.base_offset >= end_offset:
                return
            yield extent

    async def _parts_since(self, extent: Extent, timestamp_ms: int) -> list[int]:
        """Numbers of the parts of a run of L1 that may have a record of that time or later."""
        if extent.size_bytes <= WHOLE_BYTES_MAX:
            return [0]
        run = await self.loaded(lambda: _there(self._index(extent)))
        return [number for number in range(parts_count(run)) if part_max_timestamp_ms(run, number) >= timestamp_ms]

    def _first_in(self, block: Block, timestamp_ms: int) -> TimedOffset | None:
        for head in block.heads(self._log.start_offset):
            if head.max_timestamp_ms >= timestamp_ms:
                found = self._in_batch(block, head, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _newest_in(self, block: Block, end_offset: int) -> TimedOffset | None:
        """The header's max timestamp is trusted, as everywhere: batches are looked into in its order."""
        heads = [head for head in block.heads(self._log.start_offset) if head.last_offset < end_offset]
        for head in sorted(heads, key=lambda one: (-one.max_timestamp_ms, one.base_offset)):
            found = self._in_batch(block, head, head.max_timestamp_ms)
            if found is not None:
                return found
        return None

    def _in_batch(self, block: Block, head: Head, timestamp_ms: int) -> TimedOffset | None:
        return record_in_batch(head, lambda: block.batch(head), timestamp_ms, self._log.start_offset, self._log.place)

    async def _asked(self, question: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                return await until_known(question, self._host.rng)
        except TimeoutError:
            what = f"{self._log.place}: the metastore does not answer"
            raise KafkaError(ErrorCode.request_timed_out, what) from None

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


def _there(found: T | None) -> T:
    if found is None:
        raise NotInMemoryError
    return found


def _is_newer(one: TimedOffset, other: TimedOffset) -> bool:
    return (-one.timestamp_ms, one.offset) < (-other.timestamp_ms, other.offset)
