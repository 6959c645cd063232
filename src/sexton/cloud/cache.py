"""Runs of objects in memory.

What a broker has uploaded itself stays here for a while as the very buffers that it sent: consumers at the end of a log
cost no GET. The rest is loaded when somebody asks for it, each run once, whoever asks (single flight). A run that was
loaded stays at least until it was served, or for PINNED_MS: a consumer whose patience is shorter than a GET gets on
with its next request (trap T11). What is loaded takes at most half of the room: consumers that are far behind do not
push out what those at the end need.

A run of L1 may be large. It is read in parts of about a megabyte, by the index in its object's footer.

A store that does not answer is asked again for as long as somebody reads. Bytes that are not what was put there are
read once more, and then are an error of that run alone, never fewer records (C12).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sexton.cloud.blocks import Block
from sexton.cloud.footers import read_footer
from sexton.cloud.host import CloudHost, CloudSettings
from sexton.log.epochs import EpochHistory
from sexton.ports.cloud import Extent, ObjectId
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import (
    Buffer,
    DamagedObjectError,
    ObjectMissingError,
    StoreRefusedError,
    StoreUnavailableError,
)
from sexton.ports.retrying import until_answered
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.objects import Level, Run, find_run
from sexton.types import PartitionId

logger = logging.getLogger(__name__)

T = TypeVar("T")

PINNED_MS: Final = 30_000
FAILED_MS: Final = 1_000
"""For how long a run that is missing or damaged is not asked for again."""
PATIENCE_MS: Final = 10_000
"""A run that was not loaded by then is told as an error, and loading goes on."""
AHEAD_BYTES_MAX: Final = 4 << 20
"""Of L0 that are loaded ahead of one reader; less if the cache is small."""
LOADING_MAX: Final = 256
"""Runs that are loaded or wait for that. What is asked for beyond is asked for again by its reader."""
FORGOTTEN_MS: Final = 60_000
"""A run that nobody has asked for since is not loaded any more."""

WHOLE_BYTES_MAX: Final = 1 << 20
"""A run of L1 up to this size is read whole, without its index."""
PART_BLOCKS: Final = 4
"""Of a run of L1 that are read at once: about a megabyte."""
INDEXES_MAX: Final = 256
"""Indexes of large runs in memory: 256 entries each for 64 MiB."""

RunKey = tuple[ObjectId, int]
"""An object, and where the run, or the part of it, lies in it. An index has a negative place, which no run has."""

Fetch = Callable[["_Loading"], Awaitable[None]]


@dataclass(slots=True)
class _Kept:
    block: Block
    size_bytes: int
    pinned_until_ms: int


@dataclass(slots=True)
class _Whole:
    """An object as it was sent, and those of its runs that were read."""

    data: memoryview
    blocks: dict[int, Block] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def block(self, extent: Extent) -> Block:
        found = self.blocks.get(extent.position)
        if found is None:
            run = self.data[extent.position : extent.position + extent.size_bytes]
            found = self.blocks[extent.position] = Block.own(run)
        return found


@dataclass(slots=True, eq=False)
class _Loading:
    since_ms: int
    asked_ms: int
    wakes: dict[Callable[[], None], None] = field(default_factory=dict)
    """In the order in which they came, which is the same in every run of a simulation."""
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    error: str
    until_ms: int


class Cache:
    """Implements `uploads.TailKeeper`."""

    def __init__(self, host: CloudHost, settings: CloudSettings) -> None:
        self._host = host
        self._bytes_max = settings.cache_bytes_max
        self.ahead_bytes_max = min(AHEAD_BYTES_MAX, settings.cache_bytes_max // 8)
        self._kept: OrderedDict[RunKey | ObjectId, _Kept | _Whole] = OrderedDict()
        """Least recently used first. Whole objects, as they were sent, by their id alone."""
        self.size_bytes = 0
        self._loaded_bytes = 0
        """Bytes that were read from the store, and not sent to readers yet."""
        self._indexes: OrderedDict[RunKey, Run] = OrderedDict()
        self._loading: dict[RunKey, _Loading] = {}
        self._failures: dict[RunKey, _Failure] = {}
        self._downloads = asyncio.Semaphore(settings.downloads_max)
        self._downloads_ahead = asyncio.Semaphore(max(1, settings.downloads_max // 2))
        """What is loaded ahead of readers leaves half of all requests to what readers wait for."""
        self.is_stopped = False

    # What is there

    def keep(self, object_id: ObjectId, data: memoryview) -> None:
        """An object that was committed just now."""
        self._put(object_id, _Whole(data))

    def find(self, extent: Extent, epochs: EpochHistory, place: str, wake: Callable[[], None] | None) -> Block | None:
        """The extent's run. If it is not here, begins to load it, and calls `wake` when it is; None, if nobody waits
        for it. Raises KafkaError if it cannot be had."""
        if extent.inline is not None:
            return Block.own(memoryview(extent.inline))
        assert extent.object_id is not None
        key = extent.object_id, extent.position
        if (block := self._served(key, is_read=wake is not None)) is not None:
            return block
        whole = self._kept.get(extent.object_id)
        if isinstance(whole, _Whole):
            self._kept.move_to_end(extent.object_id)
            self._host.stats.cache_hits_count += 1
            return whole.block(extent)
        name = self._name(extent)
        where = f"{place}, object {name}"
        self._load_block(
            key,
            range(extent.position, extent.position + extent.size_bytes),
            lambda data: Block.checked(data, extent, epochs, where),
            name,
            _offsets_of(extent, place),
            wake,
        )
        return None

    def find_leveled(
        self,
        extent: Extent,
        partition: PartitionId,
        number: int,
        epochs: EpochHistory,
        place: str,
        wake: Callable[[], None] | None,
    ) -> Block | None:
        """A part of a run of L1, by its number (`part_of`, `parts_count`)."""
        if extent.size_bytes <= WHOLE_BYTES_MAX:
            return self.find(extent, epochs, place, wake)
        run = self.index(extent, partition, place, wake)
        if run is None:
            return None
        assert extent.object_id is not None
        numbers = _part(run, number)
        start = run.position + run.blocks[numbers[0]].position
        key = extent.object_id, start
        if (block := self._served(key, is_read=wake is not None)) is not None:
            return block
        name = self._name(extent)
        self._load_block(
            key,
            range(start, run.position + run.block_end(numbers[-1])),
            lambda data: Block.part_of(data, run, numbers, epochs, f"{place}, object {name}"),
            name,
            _offsets_of(extent, place),
            wake,
        )
        return None

    def index(self, extent: Extent, partition: PartitionId, place: str, wake: Callable[[], None] | None) -> Run | None:
        """What the footer says of a large run. None if it is not here: then it begins to be loaded."""
        assert extent.object_id is not None
        key = extent.object_id, -1 - extent.position
        found = self._indexes.get(key)
        if found is not None:
            self._indexes.move_to_end(key)
            return found
        name = self._name(extent)
        span = extent.base_offset, extent.end_offset, extent.position

        async def fetch(loading: _Loading) -> None:
            footer = await self._answered(loading, lambda: read_footer(self._host.objects, name))
            self._indexes[key] = find_run(footer, partition, *span, name)
            while len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)

        where = _offsets_of(extent, place)
        self._check(key, where)
        self._ask(key, fetch, where, wake)
        return None

    def _served(self, key: RunKey, *, is_read: bool) -> Block | None:
        """What was loaded ahead of a reader is spared until it has come to it."""
        kept = self._kept.get(key)
        if not isinstance(kept, _Kept):
            return None
        self._kept.move_to_end(key)
        if not is_read:
            return kept.block
        kept.pinned_until_ms = 0
        self._host.stats.cache_hits_count += 1
        return kept.block

    def _name(self, extent: Extent) -> str:
        assert extent.object_id is not None
        return ObjectName(self._host.cluster_id, Level(int(extent.level)), extent.object_id).key

    def _check(self, key: RunKey, place: str) -> None:
        now_ms = self._host.clock.monotonic_ms()
        failure = self._failures.get(key)
        if failure is not None:
            if now_ms < failure.until_ms:
                raise KafkaError(ErrorCode.kafka_storage_error, f"{place}: {failure.error}")
            del self._failures[key]
        loading = self._loading.get(key)
        if loading is not None and now_ms - loading.since_ms > PATIENCE_MS:
            loading.asked_ms = now_ms
            raise KafkaError(ErrorCode.kafka_storage_error, f"{place}: {self._host.objects.place} does not answer")

    # Loading

    def _load_block(
        self,
        key: RunKey,
        span: range,
        checked: Callable[[Buffer], Block],
        name: str,
        place: str,
        wake: Callable[[], None] | None,
    ) -> None:
        async def fetch(loading: _Loading) -> None:
            async with self._downloads_ahead if wake is None else nullcontext(), self._downloads:
                get = self._host.objects.get
                for is_last in (False, True):
                    try:
                        data = await self._answered(loading, lambda: get(name, span.start, len(span)))
                        block = checked(data)
                        break
                    except DamagedObjectError as error:
                        if is_last:
                            raise
                        logger.warning("%s: reading object %s once more: %s", place, name, error)
            self._put(key, _Kept(block, len(span), self._host.clock.monotonic_ms() + PINNED_MS))

        self._check(key, place)
        self._ask(key, fetch, place, wake)

    async def _answered(self, loading: _Loading, call: Callable[[], Awaitable[T]]) -> T:
        """Asked for as long as somebody reads."""
        host = self._host

        def failed(error: StoreUnavailableError | StoreRefusedError, attempts_count: int) -> None:
            if host.clock.monotonic_ms() - loading.asked_ms > FORGOTTEN_MS:
                raise _NobodyAsksError

        return await until_answered(call, host.rng, failed)

    def _ask(self, key: RunKey, fetch: Fetch, place: str, wake: Callable[[], None] | None) -> None:
        now_ms = self._host.clock.monotonic_ms()
        loading = self._loading.get(key)
        if loading is None:
            if len(self._loading) >= LOADING_MAX or self.is_stopped:
                return
            loading = self._loading[key] = _Loading(now_ms, now_ms)
            self._host.stats.cache_misses_count += 1
            loading.task = self._host.supervisor.work(
                self._load(key, loading, fetch, place), "a read of objects", place
            )
        loading.asked_ms = now_ms
        if wake is not None:
            loading.wakes[wake] = None

    async def _load(self, key: RunKey, loading: _Loading, fetch: Fetch, place: str) -> None:
        try:
            await fetch(loading)
        except (ObjectMissingError, DamagedObjectError) as error:
            self._fail(key, str(error))
            self._host.stats.lost_runs_count += 1
            logger.error("%s: object %s: %s", place, key[0], error)
        except _NobodyAsksError:
            pass
        except Exception as bug:
            self._fail(key, repr(bug))
            raise
        finally:
            if self._loading.get(key) is loading:
                del self._loading[key]
            for wake in loading.wakes:
                wake()

    def _fail(self, key: RunKey, error: str) -> None:
        now_ms = self._host.clock.monotonic_ms()
        self._failures = {one: failure for one, failure in self._failures.items() if failure.until_ms > now_ms}
        self._failures[key] = _Failure(error, now_ms + FAILED_MS)

    # Room

    def _put(self, key: RunKey | ObjectId, kept: _Kept | _Whole) -> None:
        self.forget(key)
        self._kept[key] = kept
        self.size_bytes += kept.size_bytes
        if isinstance(kept, _Kept):
            self._loaded_bytes += kept.size_bytes
        for spares_pinned in (True, False):
            self._evict(spares_pinned=spares_pinned)

    def _evict(self, *, spares_pinned: bool) -> None:
        """Down to the bound, but for the newest. What was sent goes only when all of it together is too much."""
        now_ms = self._host.clock.monotonic_ms()
        newest = next(reversed(self._kept), None)
        for key in list(self._kept):
            is_full = self.size_bytes > self._bytes_max
            has_too_much_loaded = self._loaded_bytes > self._bytes_max // 2
            if not (is_full or has_too_much_loaded) or key == newest:
                return
            kept = self._kept[key]
            if spares_pinned and isinstance(kept, _Kept) and now_ms < kept.pinned_until_ms:
                continue
            if is_full or isinstance(kept, _Kept):
                self.forget(key)

    def clear(self) -> None:
        for key in list(self._kept):
            self.forget(key)

    def forget(self, key: RunKey | ObjectId) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes
            if isinstance(kept, _Kept):
                self._loaded_bytes -= kept.size_bytes

    async def stop(self) -> None:
        self.is_stopped = True
        tasks = [loading.task for loading in self._loading.values() if loading.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check_invariants(self) -> None:
        sizes = [kept.size_bytes for kept in self._kept.values()]
        assert sum(sizes) == self.size_bytes, f"C11: {self.size_bytes} bytes are counted, and {sum(sizes)} are there"
        assert self.size_bytes <= max(self._bytes_max, sizes[-1] if sizes else 0), "C11: the cache is too large"
        loaded = sum(kept.size_bytes for kept in self._kept.values() if isinstance(kept, _Kept))
        assert loaded == self._loaded_bytes, f"C11: {self._loaded_bytes} bytes are counted as loaded, not {loaded}"


def parts_count(run: Run | None) -> int:
    """Of a run of L1 with this index; without one it is read whole."""
    return 1 if run is None else -(-len(run.blocks) // PART_BLOCKS)


def part_of(run: Run | None, offset: int) -> int:
    """Number of the part that has the offset, or of the one before it: whose batches may end below it."""
    return 0 if run is None else run.block_of(offset) // PART_BLOCKS


def part_max_timestamp_ms(run: Run, number: int) -> int:
    return max(run.blocks[one].max_timestamp_ms for one in _part(run, number))


def _part(run: Run, number: int) -> range:
    return range(number * PART_BLOCKS, min(len(run.blocks), (number + 1) * PART_BLOCKS))


class _NobodyAsksError(Exception):
    """Ends the attempts to load a run."""


def _offsets_of(extent: Extent, place: str) -> str:
    """What an operator must know of a run that cannot be read."""
    return f"{place}: offsets {extent.base_offset} to {extent.end_offset - 1}"
