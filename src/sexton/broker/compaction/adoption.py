"""A follower adopts its leader's compacted segments instead of compacting again (docs/rules.md).

It asks its leaders what is new, copies the segments that differ from its own into a staging directory, and swaps them
in for all that it holds below the bound, with the code that commits its own compactions. Where the two logs roll their
segments at different offsets, adjacent segments are joined until both logs have a segment that begins there: what lies
below the bound is then byte for byte the leader's, though not file for file; what its own last segment holds above the
bound is appended after it.

Whatever goes wrong, nothing was changed, and the follower asks again; if it keeps going wrong, it compacts by itself.
That holds for bugs, too: each is logged with its trace, and only the partition in which it occurred pauses.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from sexton.broker.compaction.host import Host
from sexton.broker.compaction.service import CompactionService
from sexton.compaction.acceptance import SwapTerms, may_adopt
from sexton.compaction.contract import Committed, NewSegment, Offer, OfferedSegment, decode_offer
from sexton.compaction.rate import ByteRate
from sexton.compaction.swap import SwapRefusedError
from sexton.errors import SextonError
from sexton.log.batches import SCAN_BYTES, Walk
from sexton.log.log import Log
from sexton.log.segments import ClosedSegments
from sexton.log.swap_disk import staging_path
from sexton.ports.disk import File
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.ports.work_queue import RunRow
from sexton.protocol import private
from sexton.protocol.errors import KafkaError
from sexton.protocol.private import PrivateApi, RefusedError
from sexton.records import names
from sexton.replication.local_replica import LocalReplica
from sexton.supervision import Pauses
from sexton.types import PartitionId

logger = logging.getLogger(__name__)


AT_ONCE: Final = 4
"""The most adoptions at the same time. Each flushes a few files, and the disk is shared with producers."""

ABOUT_MAX: Final = 1000
"""The most partitions in one request."""

UNKNOWN_END: Final = -1

WHOLE_SUFFIX: Final = ".whole"
"""Of a copy in the staging directory that a part is taken from."""

Ask = Callable[[int, int, bytes], Awaitable[memoryview]]
"""Arguments: broker, API key, body. Raises SextonError if there is no response."""


class NotYetError(SextonError):
    """The offer is not for this replica, or not now."""


class Group(NamedTuple):
    """Adjacent segments of the leader and of this replica that cover the same offsets: both begin at the same offset,
    and so do the segments after them."""

    offered: tuple[OfferedSegment, ...]
    own: tuple[int, ...]
    """Base offsets of this replica's segments."""


def grouped(offered: Sequence[OfferedSegment], own: Sequence[int]) -> list[Group]:
    """Divides both logs into groups as small as possible. A difference of where the logs start belongs to the first
    group."""
    shared = {one.base_offset for one in offered[1:]} & set(own[1:])
    edges = [0, *sorted(shared)]
    ends = [*edges[1:], 1 << 63]
    return [
        Group(
            tuple(one for one in offered if start <= one.base_offset < end),
            tuple(base for base in own if start <= base < end),
        )
        for start, end in zip(edges, ends, strict=True)
    ]


def reaching(offered: Sequence[OfferedSegment], offset: int) -> list[OfferedSegment]:
    """Those without the ones that end below `offset`."""
    ends = [one.base_offset for one in offered[1:]] + [1 << 63]
    return [one for one, end in zip(offered, ends, strict=True) if end > offset]


def groups_to_take(offer: Offer, closed: ClosedSegments) -> list[Group]:
    """No groups if our log starts at the bound: there is nothing below it to replace. The rest of the offer (MTRO,
    MXRO, that its compaction has been seen) is taken all the same, or it would be offered for ever."""
    return grouped(offer.segments, closed.base_offsets) if closed.segments else []


@dataclass(slots=True)
class _Leader:
    """State about a broker that leads some of our partitions."""

    process: int = -1
    number: int = 0
    heard_of: dict[PartitionId, tuple[int, uuid.UUID]] = field(default_factory=dict)
    """The leader epoch, and the incarnation of our log, for which it was last asked about a partition."""


class Adopter:
    def __init__(
        self,
        service: CompactionService,
        host: Host,
        ask: Ask,
    ) -> None:
        self._host = host
        self._service = service
        self._memory = service.memory
        self._disk = host.disk
        self._clock = host.clock
        self._ask_broker = ask
        self.rate = ByteRate(None)
        self._leaders: dict[int, _Leader] = {}
        self._open: dict[PartitionId, None] = {}
        """Partitions with an offer that has not been adopted yet."""
        self._pauses = Pauses()
        self._runs: list[RunRow] = []

    async def step(self) -> None:
        """Asks every leader once, and adopts what it can."""
        by_leader: dict[int, dict[PartitionId, LocalReplica]] = {}
        for replica in self._host.replicas.all():
            if self._service.publisher.takes_offers(replica):
                by_leader.setdefault(replica.row.leader, {})[replica.topic_id, replica.partition] = replica
        self._leaders = {leader: known for leader, known in self._leaders.items() if leader in by_leader}
        self._open = {key: None for key in self._open if any(key in followed for followed in by_leader.values())}
        for leader, followed in by_leader.items():
            try:
                await self._follow(leader, followed)
            except (SextonError, ValueError, KeyError, TypeError) as error:
                logger.debug("cannot ask broker %d for its compactions: %s", leader, error)
            except Exception as bug:
                self._host.supervisor.survived(bug, "adoption", f"what broker {leader} offers")
        await self._write_history()

    async def _follow(self, leader: int, followed: Mapping[PartitionId, LocalReplica]) -> None:
        known = self._leaders.setdefault(leader, _Leader())
        new = [key for key, one in followed.items() if known.heard_of.get(key) != _asker(one)]
        waiting = [key for key in self._memory.patience.waiting if key in followed]
        # New ones first: each is new once, so that the others have their turn, too.
        about = list(dict.fromkeys([*new, *(key for key in self._open if key in followed), *waiting]))[:ABOUT_MAX]
        answer = await self._ask(leader, PrivateApi.COMPACTION_ANNOUNCED, {"since": known.number, "about": about})
        if answer["process"] != known.process:
            # A new process counts from its own start. It is asked again at once, about everything: this response was to
            # a count of the former process.
            self._leaders[leader] = _Leader(int(answer["process"]))
            if known.process >= 0:
                return await self._follow(leader, followed)
            known = self._leaders[leader]
        known.number = int(answer["number"])
        known.heard_of.update((key, _asker(followed[key])) for key in about)
        wanted = []
        for news in answer["news"]:
            key = uuid.UUID(news["topic_id"]), int(news["partition"])
            if key not in followed:
                continue
            is_worth = self._is_worth(followed[key], int(news["bound"]), int(news["made_ms"]))
            self._memory.patience.heard(key, self._clock.monotonic_ms(), is_coming=is_worth or bool(news["is_coming"]))
            if is_worth:
                self._open[key] = None
                if not self._pauses.last(_asker(followed[key])[1], self._clock.monotonic_ms()):
                    wanted.append(key)
            else:
                self._open.pop(key, None)
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._take(leader, followed[key], gate) for key in wanted))

    def _is_worth(self, replica: LocalReplica, bound: int, made_ms: int) -> bool:
        """Whether the leader has compacted further; or as far, by a later compaction."""
        compacted = min(replica.coordination.watermarks.compacted)
        return bound > compacted or (bound == compacted and made_ms > self._memory.last_of_log(replica).made_ms)

    async def _take(self, leader: int, replica: LocalReplica, gate: asyncio.Semaphore) -> None:
        key = replica.topic_id, replica.partition
        async with gate:
            try:
                await self.adopt(leader, replica)
                self._open.pop(key, None)
                self._pauses.succeeded(replica.coordination.watermarks.incarnation)
            except SwapRefusedError as error:
                logger.info("%s-%d: not adopted from broker %d: %s", replica.topic, replica.partition, leader, error)
                self._memory.patience.failed(key)
            except (SextonError, KafkaError, OSError, ValueError, KeyError, TypeError) as error:
                logger.info(
                    "%s-%d: cannot fetch compacted segments from broker %d: %s",
                    replica.topic,
                    replica.partition,
                    leader,
                    error,
                )
            except Exception as bug:
                self._host.supervisor.survived(bug, "adoption", f"{replica.topic}-{replica.partition}")
                self._memory.patience.failed(key)
                self._pauses.failed(replica.coordination.watermarks.incarnation, self._clock.monotonic_ms())

    # One partition

    async def adopt(self, leader: int, replica: LocalReplica) -> None:
        """Raises SwapRefusedError if the offer does not fit, another error if it cannot be fetched. Then nothing was
        changed."""
        started_ms = self._clock.monotonic_ms()
        offer, swapped = await self._swap_in(leader, replica)
        how = f"adopted from broker {leader}"
        self._memory.compacted(replica, offer.made_ms, how, swapped)
        self._memory.totals.adopted_count += 1
        logger.info("%s-%d: %s up to %d", replica.topic, replica.partition, how, offer.bound)
        self._runs.append(
            RunRow(
                run_id=uuid.UUID(int=self._host.rng.getrandbits(128), version=4),
                finished_ms=self._clock.now_ms(),
                broker_id=self._service.broker_id,
                topic=replica.topic,
                partition=replica.partition,
                outcome=how,
                bound=offer.bound,
                bytes_before=swapped.bytes_before,
                bytes_after=swapped.bytes_after,
                duration_ms=self._clock.monotonic_ms() - started_ms,
            )
        )

    async def _swap_in(self, leader: int, replica: LocalReplica) -> tuple[Offer, Committed]:
        place = {"topic_id": replica.topic_id, "partition": replica.partition}
        offer = decode_offer((await self._ask(leader, PrivateApi.COMPACTION_OFFER, place))["offer"])
        obstacle = self._obstacle(replica, offer)
        if obstacle:
            raise NotYetError(obstacle)
        await replica.advance_start(offer.log_start_offset)
        log, bound = replica.log, offer.bound
        if log.summaries()[-1].base_offset < bound:
            log.close_active(self._clock.now_ms())
            replica.flush_and_commit()
        closed = log.segments.closed(bound)
        staging = staging_path(log.directory, f"{self._host.rng.getrandbits(128):032x}")
        self._disk.make_directory(staging)
        try:
            segments = [
                await self._stage(leader, replica, group, closed, offer, staging)
                for group in groups_to_take(offer, closed)
                if not await _is_same(log, group, closed)
            ]
            await replica.coordination.before_adoption(
                offer.generation,
                offer.removable,
                offer.fence_below,
                offer.planned_high_watermark,
                replica.high_watermark,
            )
            settled_to = replica.coordination.watermarks.compacted.transactions
            terms = SwapTerms(bound, offer.mxro, settled_to, is_adopted=True)
            swapped = await log.swap(
                closed,
                staging,
                segments,
                terms,
                lambda: self._check(replica, offer),
                self._service.plans.validating,
                lambda: self._memory.keep(replica, bound, offer.leftovers),
            )
        finally:
            self._remove(staging)
        return offer, swapped

    def _obstacle(self, replica: LocalReplica, offer: Offer) -> str:
        """Why the offer is not for this replica; empty if it is."""
        if not self._service.publisher.takes_offers(replica):
            return "it is no in-sync follower of a coordinated topic, or may not adopt"
        own = replica.coordination.watermarks
        stable, reached = replica.last_stable_offset, replica.high_watermark
        if may_adopt(
            own,
            generation=offer.generation,
            bound=offer.bound,
            planned_high_watermark=offer.planned_high_watermark,
            last_stable_offset=stable,
            high_watermark=reached,
        ):
            return ""
        return (
            f"what was compacted up to {offer.bound} at high watermark {offer.planned_high_watermark} in generation "
            f"{offer.generation} is not for a log with high watermark {reached}, stable up to {stable}, compacted up "
            f"to {own.compacted.keys}, in generation {own.generation}"
        )

    def _check(self, replica: LocalReplica, offer: Offer) -> None:
        """Checked at the moment of the swap, whatever held before."""
        obstacle = self._obstacle(replica, offer)
        if obstacle:
            raise SwapRefusedError(obstacle)

    async def _stage(
        self, leader: int, replica: LocalReplica, group: Group, closed: ClosedSegments, offer: Offer, staging: str
    ) -> NewSegment:
        """Copies the leader's segments one after the other, then what our last segment holds above the bound. Where the
        leader's log has more below our first segment, that is left out: a file holds nothing below its name."""
        base_offset = group.own[0]
        file = self._disk.open(f"{staging}/{names.log_file_name(base_offset, names.CLEANED_SUFFIX)}", create=True)
        try:
            for segment in reaching(group.offered, base_offset):
                if segment.base_offset < base_offset:
                    await self._copy_from(base_offset, leader, replica, segment, file, staging)
                else:
                    await self._copy(leader, replica, segment, file)
            last = closed.segments[-1]
            if last.base_offset == group.own[-1] and last.end_offset > offer.bound:
                await _append(file, last.file, last.position_of(offer.bound), last.size_bytes)
        finally:
            file.close()
        return NewSegment(base_offset, UNKNOWN_END, group.own)

    async def _copy_from(
        self, offset: int, leader: int, replica: LocalReplica, segment: OfferedSegment, file: File, staging: str
    ) -> None:
        """Copies the batches that reach `offset`. Its checksum can only be compared by who has all of it."""
        whole = self._disk.open(f"{staging}/{names.log_file_name(segment.base_offset, WHOLE_SUFFIX)}", create=True)
        try:
            await self._copy(leader, replica, segment, whole)
            walk = Walk(whole, 0, segment.size_bytes, check_crc=False, chunk_bytes=SCAN_BYTES)
            start = next((head.position for head in walk if head.last_offset >= offset), segment.size_bytes)
            if walk.fault is not None:
                raise SwapRefusedError(f"the segment at {segment.base_offset}, byte {walk.position}: {walk.fault}")
            await _append(file, whole, start, segment.size_bytes)
        finally:
            whole.close()

    async def _copy(self, leader: int, replica: LocalReplica, segment: OfferedSegment, file: File) -> None:
        position = checksum = 0
        while position < segment.size_bytes:
            data = await self._piece(leader, replica, segment, position)
            checksum = crc32c(data, checksum)
            position += len(data)
            file.append([data])
            await asyncio.sleep(self.rate.wait_ms(len(data), self._clock.monotonic_ms()) / 1000)
        if (position, checksum) != (segment.size_bytes, segment.checksum):
            raise SwapRefusedError(f"the segment at {segment.base_offset} came damaged, or changed meanwhile")

    async def _piece(self, leader: int, replica: LocalReplica, segment: OfferedSegment, position: int) -> memoryview:
        asked = {
            "topic_id": replica.topic_id,
            "partition": replica.partition,
            "base_offset": segment.base_offset,
            "size_bytes": segment.size_bytes,
            "position": position,
        }
        answer = await self._ask_broker(leader, PrivateApi.COMPACTION_PIECE, private.encode(asked))
        if len(answer) < 2 or answer[0] != 0:
            raise RefusedError(f"no bytes at {position} of segment {segment.base_offset}", f"broker {leader}")
        return answer[1:]

    async def _ask(self, leader: int, api_key: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
        data = await self._ask_broker(leader, api_key, private.encode(dict(body)))
        return private.decode_answer(data, f"broker {leader}")

    def _remove(self, staging: str) -> None:
        try:
            self._disk.remove_tree(staging)
        except OSError as error:
            logger.warning("cannot remove %s: %s", staging, error)

    async def _write_history(self) -> None:
        runs, self._runs = self._runs, []
        if runs:
            try:
                await self._host.metastore.end_work(uuid.UUID(int=0), [], runs)
            except MetastoreUnavailableError as error:
                logger.debug("%d adoptions are missing in the history: %s", len(runs), error)


def _asker(replica: LocalReplica) -> tuple[int, uuid.UUID]:
    return replica.leader_epoch, replica.coordination.watermarks.incarnation


async def _append(file: File, source: File, position: int, end: int) -> None:
    for at in range(position, end, SCAN_BYTES):
        file.append([source.read(at, min(SCAN_BYTES, end - at))])
        await asyncio.sleep(0)


async def _is_same(log: Log, group: Group, closed: ClosedSegments) -> bool:
    """Whether our segment is identical to the offered one. Reads files only if the sizes are equal."""
    if len(group.offered) != 1 or len(group.own) != 1:
        return False
    offered = group.offered[0]
    segment = closed.segments[closed.base_offsets.index(group.own[0])]
    if (segment.base_offset, segment.size_bytes) != (offered.base_offset, offered.size_bytes):
        return False
    return await log.segments.checksum(segment) == offered.checksum
