"""Runs of objects in memory.

What a broker has uploaded itself stays here for a while as the very buffers that it sent: consumers at the end of a log
cost no GET. The rest is loaded when somebody asks for it, each run once, whoever asks (single flight). A run that was
loaded stays at least until it was served, or for PINNED_MS: a consumer whose patience is shorter than a GET gets on
with its next request (trap T11).

A store that does not answer is asked again for as long as somebody reads. Bytes that are not what was put there are
read once more, and then are an error of that run alone, never fewer records (C12).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sexton.cloud.blocks import Block
from sexton.cloud.host import CloudHost, CloudSettings
from sexton.log.epochs import EpochHistory
from sexton.ports.cloud import Extent, ObjectId
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import DamagedObjectError, ObjectMissingError, StoreRefusedError, StoreUnavailableError
from sexton.ports.retrying import until_answered
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.objects import Level

logger = logging.getLogger(__name__)

PINNED_MS: Final = 30_000
FAILED_MS: Final = 1_000
"""For how long a run that is missing or damaged is not asked for again."""
PATIENCE_MS: Final = 10_000
"""A run that was not loaded by then is told as an error, and loading goes on."""
LOADING_MAX: Final = 256
"""Runs that are loaded or wait for that. What is asked for beyond is asked for again by its reader."""
FORGOTTEN_MS: Final = 60_000
"""A run that nobody has asked for since is not loaded any more."""

RunKey = tuple[ObjectId, int]
"""An object, and where the run lies in it."""


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
    wakes: set[Callable[[], None]] = field(default_factory=set)
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
        self._kept: OrderedDict[RunKey | ObjectId, _Kept | _Whole] = OrderedDict()
        """Least recently used first. Whole objects, as they were sent, by their id alone."""
        self.size_bytes = 0
        self._loading: dict[RunKey, _Loading] = {}
        self._failures: dict[RunKey, _Failure] = {}
        self._downloads = asyncio.Semaphore(settings.downloads_max)
        self.is_stopped = False

    # What is there

    def keep(self, object_id: ObjectId, data: memoryview) -> None:
        """An object that was committed just now."""
        self._put(object_id, _Whole(data))

    def find(self, extent: Extent, epochs: EpochHistory, place: str, wake: Callable[[], None] | None) -> Block | None:
        """The extent's run. If it is not here, begins to load it, and calls `wake` when it is; None, if nobody needs to
        be told. Raises KafkaError if it cannot be had."""
        if extent.inline is not None:
            return Block.own(memoryview(extent.inline))
        assert extent.object_id is not None
        key = extent.object_id, extent.position
        kept = self._kept.get(key)
        if isinstance(kept, _Kept):
            self._kept.move_to_end(key)
            kept.pinned_until_ms = 0
            return kept.block
        whole = self._kept.get(extent.object_id)
        if isinstance(whole, _Whole):
            self._kept.move_to_end(extent.object_id)
            return whole.block(extent)
        self._check(key, place)
        self._ask(key, extent, epochs, place, wake)
        return None

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

    def _ask(
        self, key: RunKey, extent: Extent, epochs: EpochHistory, place: str, wake: Callable[[], None] | None
    ) -> None:
        now_ms = self._host.clock.monotonic_ms()
        loading = self._loading.get(key)
        if loading is None:
            if len(self._loading) >= LOADING_MAX or self.is_stopped:
                return
            loading = self._loading[key] = _Loading(now_ms, now_ms)
            loading.task = self._host.supervisor.work(
                self._load(key, loading, extent, epochs, place), "a read of objects", place
            )
        loading.asked_ms = now_ms
        if wake is not None:
            loading.wakes.add(wake)

    async def _load(self, key: RunKey, loading: _Loading, extent: Extent, epochs: EpochHistory, place: str) -> None:
        host = self._host
        try:
            async with self._downloads:
                block = await self._fetch(loading, extent, epochs, place)
            pinned_until_ms = host.clock.monotonic_ms() + PINNED_MS
            self._put(key, _Kept(block, extent.size_bytes, pinned_until_ms))
        except (ObjectMissingError, DamagedObjectError) as error:
            self._fail(key, str(error))
            logger.error("%s: offsets %d to %d: %s", place, extent.base_offset, extent.end_offset - 1, error)
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

    async def _fetch(self, loading: _Loading, extent: Extent, epochs: EpochHistory, place: str) -> Block:
        host = self._host
        assert extent.object_id is not None
        name = ObjectName(host.cluster_id, Level(int(extent.level)), extent.object_id).key

        def failed(error: StoreUnavailableError | StoreRefusedError, attempts_count: int) -> None:
            if host.clock.monotonic_ms() - loading.asked_ms > FORGOTTEN_MS:
                raise _NobodyAsksError

        for is_last in (False, True):
            try:
                data = await until_answered(
                    lambda: host.objects.get(name, extent.position, extent.size_bytes), host.rng, failed
                )
                return Block.checked(data, extent, epochs, f"{place}, object {name}")
            except DamagedObjectError as error:
                if is_last:
                    raise
                logger.warning("%s: reading object %s once more: %s", place, name, error)
        raise AssertionError("the last attempt returns or raises")

    def _fail(self, key: RunKey, error: str) -> None:
        now_ms = self._host.clock.monotonic_ms()
        self._failures = {one: failure for one, failure in self._failures.items() if failure.until_ms > now_ms}
        self._failures[key] = _Failure(error, now_ms + FAILED_MS)

    # Room

    def _put(self, key: RunKey | ObjectId, kept: _Kept | _Whole) -> None:
        self.forget(key)
        self._kept[key] = kept
        self.size_bytes += kept.size_bytes
        if self.size_bytes > self._bytes_max:
            self._evict(spares_pinned=True)
            self._evict(spares_pinned=False)

    def _evict(self, *, spares_pinned: bool) -> None:
        """Down to the bound, but for the newest."""
        now_ms = self._host.clock.monotonic_ms()
        newest = next(reversed(self._kept), None)
        for key in list(self._kept):
            if self.size_bytes <= self._bytes_max or key == newest:
                return
            kept = self._kept[key]
            if spares_pinned and isinstance(kept, _Kept) and now_ms < kept.pinned_until_ms:
                continue
            self.forget(key)

    def forget(self, key: RunKey | ObjectId) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes

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


class _NobodyAsksError(Exception):
    """Ends the attempts to load a run."""
