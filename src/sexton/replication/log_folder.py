"""What is in a log directory: the logs of this broker's replicas, and the checkpoints about all of them.

Checkpoints name logs by topic and partition, as Kafka's do, and outlive the logs that they describe. So whatever is
read from one is compared with the incarnation of the log that is there now.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE, Kept
from sexton.compaction.watermarks.checkpoint import encode as encode_watermarks
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.errors import NotALogError, SextonError
from sexton.log import flushed, opening
from sexton.log.flushed import FlushedPoint
from sexton.log.log import Log
from sexton.metadata.incarnations import is_another_log
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import PartitionRow
from sexton.records import checkpoints, names
from sexton.records.checkpoints import EpochEntry
from sexton.replication.messages import NO_INCARNATION
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch, TopicPartition

logger = logging.getLogger(__name__)


HIGH_WATERMARKS_FILE = "replication-offset-checkpoint"
FLUSHED_POINTS_FILE = "flushed-points"
INCARNATION_FILE = names.INCARNATION_FILE

FIRST_EPOCH = LeaderEpoch(0)
"""The leader epoch of a partition's first leader."""


@dataclass(frozen=True, slots=True)
class Unopened:
    """A log that this broker should host and could not open."""

    topic: str
    incarnation: uuid.UUID | None
    error: Exception

    @property
    def is_damaged(self) -> bool:
        """True if only an operator can repair it. Other errors may pass: a full disk, too few file descriptors."""
        return isinstance(self.error, SextonError)


class Opened(NamedTuple):
    log: Log
    kept: Kept
    """The watermarks of compaction beside the log."""
    high_watermark: int
    """As in the checkpoint; 0 if it has none for this log."""
    is_made_here: bool
    """True if the log was created now, in place of what was there."""


class LogFolder:
    def __init__(self, disk: Disk, path: str, clock: Clock, producer_expiry_ms: int) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._producer_expiry_ms = producer_expiry_ms
        self.high_watermarks: dict[TopicPartition, int] = {}
        """High watermarks as last written to disk."""
        self._writing_high_watermarks = asyncio.Lock()
        self._going: set[TopicPartition] = set()
        self.flushed_points: dict[TopicPartition, FlushedPoint] = {}
        """Flushed points as last written to disk."""
        self.stopped_cleanly = False
        """Whether the previous process stopped cleanly. Set to False once this process has opened all logs at startup:
        how the previous process stopped says nothing about logs opened later."""

    def read(self, stopped_cleanly: bool) -> None:
        path = f"{self._path}/{HIGH_WATERMARKS_FILE}"
        content = self._disk.read_file(path)
        self.high_watermarks = {} if content is None else checkpoints.decode_offset_checkpoint(content, path)
        self.flushed_points = flushed.decode_points(self._disk.read_file(f"{self._path}/{FLUSHED_POINTS_FILE}") or b"")
        self.stopped_cleanly = stopped_cleanly

    def directory(self, topic: str, partition: int) -> str:
        return f"{self._path}/{topic}-{partition}"

    def acknowledged_unflushed(self, topic: str, partition: int) -> bool:
        """Whether this log may lack records that it acknowledged, if it was not closed cleanly."""
        return flushed.is_marked(self._disk, self.directory(topic, partition))

    def keeps_unflushed(self, topic: str, partition: int) -> bool:
        """Whether the log has those records even so, because only its process ended and the page cache survived."""
        return flushed.is_kept(self._disk, self.directory(topic, partition))

    def incarnation_on_disk(self, topic: str, partition: int) -> uuid.UUID | None:
        """The incarnation of the log on disk. None if there is no log; the zero UUID, which no replica has, if it
        cannot be read."""
        content = self._disk.read_file(f"{self.directory(topic, partition)}/{INCARNATION_FILE}")
        if content is None:
            return None
        try:
            return uuid.UUID(content.decode().strip())
        except ValueError:
            logger.warning(
                "%s/%s is no log id: the log counts as unknown", self.directory(topic, partition), INCARNATION_FILE
            )
            return uuid.UUID(int=0)

    def holds_a_former_topic(self, topic: str, row: PartitionRow) -> bool:
        """Whether this partition's directory holds the log of a deleted topic of the same name. Then this partition's
        own log was never here: creating it would have removed the other."""
        path = f"{self.directory(topic, row.partition)}/{checkpoints.PARTITION_METADATA}"
        content = self._disk.read_file(path)
        try:
            return content is not None and checkpoints.decode_partition_metadata(content, path).topic_id != row.topic_id
        except SextonError:
            return False

    def was_lost(self, topic: str, row: PartitionRow, broker_id: int, on_disk: uuid.UUID | None) -> bool:
        """Whether this log directory once held the replica that the metastore names, and no longer does."""
        if on_disk is None:
            return (topic, row.partition) in self.high_watermarks
        return is_another_log(row, broker_id, on_disk)

    async def open_log(self, topic: str, row: PartitionRow, broker_id: int, config: TopicConfig) -> Opened:
        """Opens the log that the row names. If another one, or none, is in its place, an empty log takes that place."""
        on_disk = self.incarnation_on_disk(topic, row.partition)
        expected = row.incarnations.get(broker_id)
        is_made_here = is_another_log(row, broker_id, on_disk)
        if is_made_here:
            assert expected is not None
            is_of_another_topic = self.holds_a_former_topic(topic, row)
            await self.discard(topic, row.partition, on_disk, sets_aside=is_of_another_topic)
            log, kept = await self._make_log(topic, row, expected, config)
        else:
            directory = self.directory(topic, row.partition)
            point = self.flushed_points.get((topic, row.partition))
            log = await opening.open_log(
                self._disk,
                directory,
                topic,
                row.partition,
                row.topic_id,
                config,
                now_ms=self._clock.now_ms(),
                stopped_cleanly=self.stopped_cleanly,
                producer_expiry_ms=self._producer_expiry_ms,
                flushed_point=point if point is not None and point.incarnation == on_disk else None,
                keeps_its_start=on_disk is not None,
            )
            incarnation = on_disk or NO_INCARNATION
            kept = await Kept.open(self._disk, directory, incarnation, log.start_offset, log.end_offset)
        return Opened(log, kept, self.high_watermarks.get((topic, row.partition), 0), is_made_here)

    async def _make_log(
        self, topic: str, row: PartitionRow, incarnation: uuid.UUID, config: TopicConfig
    ) -> tuple[Log, Kept]:
        """Creates a new log with the files beside it. The incarnation file comes last: it says that the rest is
        there."""
        watermarks = ReplicaWatermarks(incarnation)
        beside = [(WATERMARKS_FILE, encode_watermarks(watermarks)), (INCARNATION_FILE, f"{incarnation}\n".encode())]
        if not config.flush_before_ack:
            beside.insert(0, (flushed.MARK_FILE, flushed.mark_content(self._disk)))
        log = await opening.create_log(
            self._disk,
            self.directory(topic, row.partition),
            topic,
            row.partition,
            row.topic_id,
            config,
            now_ms=self._clock.now_ms(),
            producer_expiry_ms=self._producer_expiry_ms,
            epochs=[EpochEntry(FIRST_EPOCH, 0)] if _is_as_made(row) else (),
            beside=beside,
        )
        return log, Kept(self._disk, log.directory, watermarks)

    async def write_high_watermarks(self, present: Callable[[], dict[TopicPartition, int]]) -> None:
        """Calls `present` only when it is this write's turn, so that a write that waited does not restore an entry that
        another write removed."""
        async with self._writing_high_watermarks:
            watermarks = present()
            if watermarks != self.high_watermarks:
                await self._replace_high_watermarks(watermarks)

    async def discard(self, topic: str, partition: int, on_disk: uuid.UUID | None, *, sets_aside: bool = False) -> None:
        """Removes what is in the place of a log about to be created. First its checkpointed high watermark: a crash
        would leave it for the new log, which was never committed that far and would look lost until it is created. Then
        its directory, renamed in one step before it is removed, so that half of it is never taken for a log. That of
        another topic is set aside: with a metastore from an old backup it is a later one, not a former one."""
        await self._forget_high_watermark((topic, partition))
        path = self.directory(topic, partition)
        if not self._disk.exists(path):
            return
        if sets_aside:
            self._disk.rename(path, self.path_aside(topic, partition))
            await self._disk.flush_directory(self._path)
            return
        logger.warning("%s holds the log of another incarnation (%s): starting from an empty log", path, on_disk)
        unique_id = (on_disk or uuid.UUID(int=0)).hex
        doomed = f"{self._path}/{names.name_in_state(topic, partition, names.DirState.DELETE, unique_id)}"
        self._disk.remove_tree(doomed)
        self._disk.rename(path, doomed)
        await self._disk.flush_directory(self._path)
        self._disk.remove_tree(doomed)

    async def _forget_high_watermark(self, name: TopicPartition) -> None:
        """Durable on return. Callers that arrive during a write share the next one."""
        if name not in self.high_watermarks:
            return
        self._going.add(name)
        try:
            async with self._writing_high_watermarks:
                if name in self.high_watermarks:
                    left = {one: offset for one, offset in self.high_watermarks.items() if one not in self._going}
                    await self._replace_high_watermarks(left)
        finally:
            self._going.discard(name)

    async def _replace_high_watermarks(self, watermarks: dict[TopicPartition, int]) -> None:
        content = checkpoints.encode_offset_checkpoint(watermarks)
        await self._disk.replace_file(f"{self._path}/{HIGH_WATERMARKS_FILE}", content)
        self.high_watermarks = watermarks

    async def write_flushed_points(self, points: dict[TopicPartition, FlushedPoint]) -> None:
        if points != self.flushed_points:
            await self._disk.replace_file(f"{self._path}/{FLUSHED_POINTS_FILE}", flushed.encode_points(points))
            self.flushed_points = points

    def set_strays_aside(
        self, is_placed_here: Callable[[str, int], bool], was_moved: Callable[[str, int], bool]
    ) -> None:
        """Renames the directories of partitions that are not placed on this broker (any more). They are not removed:
        only an operator knows whether the topic was deleted while this broker was down or the metastore was restored
        from an old backup. Removes directories whose deletion a crash interrupted, and those of partitions that were
        moved to the store while this broker was down."""
        for name in self._disk.list(self._path):
            try:
                found = names.parse_partition_dir(name)
            except NotALogError:
                continue
            path = f"{self._path}/{name}"
            if found.state is names.DirState.DELETE:
                self._disk.remove_tree(path)
            elif found.state is names.DirState.LIVE and was_moved(found.topic, found.partition):
                logger.info("%s was moved to the store: its log is deleted", path)
                self._disk.remove_tree(path)
            elif found.state is names.DirState.LIVE and not is_placed_here(found.topic, found.partition):
                self._disk.rename(path, self.path_aside(found.topic, found.partition))

    def path_aside(self, topic: str, partition: int) -> str:
        """Where to a log goes that is not placed on this broker. What was set aside before stays: of two logs of one
        incarnation, one may have gone on where the other ends."""
        taken = set(self._disk.list(self._path))
        unique_id = self.incarnation_on_disk(topic, partition) or uuid.UUID(int=0)
        while (name := names.name_in_state(topic, partition, names.DirState.STRAY, unique_id.hex)) in taken:
            unique_id = uuid.uuid5(unique_id, topic)
        logger.warning(
            "%s is not placed on this broker: set aside as %s", self.directory(topic, partition), f"{self._path}/{name}"
        )
        return f"{self._path}/{name}"


def _is_as_made(row: PartitionRow) -> bool:
    """Whether the partition is as it was created: written by no leader before the first, and unchanged since. Then
    every replica's history begins with the first epoch at offset 0, and followers need not receive it."""
    return row.leader_epoch == FIRST_EPOCH and row.partition_epoch == 0


async def some_at_once(count: int, steps: Iterable[Awaitable[None]]) -> None:
    """Runs the steps, `count` at a time. A semaphore would scan all its waiters at each step: with a thousand logs that
    is most of the work."""
    rest = iter(steps)

    async def take_steps() -> None:
        for step in rest:
            await step

    await asyncio.gather(*(take_steps() for _ in range(count)))
