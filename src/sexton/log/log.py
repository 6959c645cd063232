"""One partition's log.

A log is a list of segments, of which the last is appended to. Appends and reads reach the page cache and return at
once; `flush` waits for the device. Whatever must be durable in a certain order (the log start before its old segments
are removed, a certificate after what it certifies; see `recovery`) happens in coroutines, one at a time.

After an I/O error it is unknown what is on the device, so the log gives up: `failure` is set and appends are refused
until the log is opened again. A full disk is no such error: the append is undone as a whole, and the next may succeed.

Batches are written as received, except for what a leader sets: base offset and leader epoch, which the CRC does not
cover, and with LogAppendTime the timestamp, after which the CRC is computed again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TypeVar

from sexton.compaction import retention
from sexton.compaction.eligibility import SegmentSummary
from sexton.errors import CorruptLogError, NotALogError
from sexton.log import flushed, reading
from sexton.log.appending import Appending
from sexton.log.epochs import EpochHistory
from sexton.log.flushed import FlushedPoint
from sexton.log.producers import ProducerStates
from sexton.log.recovery import Recovered, Recovery
from sexton.log.segment import Segment
from sexton.log.swapping import Swapping
from sexton.log.types import AbortedTransaction, Appended, Read, TimedOffset
from sexton.ports.disk import Disk
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    EpochEntry,
    PartitionMetadata,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_partition_metadata,
)
from sexton.settings.schema import DAY_MS
from sexton.settings.topic import TopicConfig

__all__ = ["AbortedTransaction", "Appended", "Log", "Read", "TimedOffset"]

T = TypeVar("T")


class Log(Appending, Swapping):
    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: TopicConfig,
        *,
        now_ms: int,
        stopped_cleanly: bool,
        producer_expiry_ms: int = DAY_MS,
        start_offset: int = 0,
        flushed_point: FlushedPoint | None = None,
    ) -> Log:
        """Opens the log, or creates it if there is none, and repairs what a crash left behind. `start_offset` is the
        value in Kafka's log-start checkpoint, for a directory that comes from Kafka; the log keeps its own durably.
        `flushed_point` is the last one recorded for this very log."""
        if not disk.exists(directory):
            return await cls.create(
                disk,
                directory,
                topic,
                partition,
                topic_id,
                config,
                now_ms=now_ms,
                producer_expiry_ms=producer_expiry_ms,
                start_offset=start_offset,
            )
        log = cls(disk, directory, topic, partition, topic_id, config)
        await log._own_directory(stopped_cleanly)
        producers = ProducerStates(log._place, producer_expiry_ms)
        recovery = Recovery(
            disk, directory, topic, partition, config, now_ms, stopped_cleanly, producers, start_offset, flushed_point
        )
        try:
            log._take(await recovery.run())
        except OSError:
            flushed.distrust(disk, directory)  # a flush may have failed
            raise
        return log

    @classmethod
    async def create(
        cls,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        config: TopicConfig,
        *,
        now_ms: int,
        producer_expiry_ms: int = DAY_MS,
        start_offset: int = 0,
        epochs: Sequence[EpochEntry] = (),
        beside: Sequence[tuple[str, bytes]] = (),
    ) -> Log:
        """Creates a log where there is no directory, durable on return, with its initial epoch history and the files
        `beside` it. The last of these files exists only if all the rest does."""
        log = cls(disk, directory, topic, partition, topic_id, config)
        segment = Segment(disk, directory, start_offset, config, now_ms)
        files = [(PARTITION_METADATA, encode_partition_metadata(PartitionMetadata(topic_id)))]
        if epochs:
            files.append((LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(epochs)))
        disk.make_directory(directory)
        segment.create()
        await disk.replace_files(directory, [*files, *beside])
        await disk.flush_directory(directory.rpartition("/")[0])
        producers = ProducerStates(log._place, producer_expiry_ms)
        log._take(Recovered([segment], producers, EpochHistory(epochs), start_offset, start_offset))
        return log

    async def _own_directory(self, stopped_cleanly: bool) -> None:
        path = f"{self.directory}/{PARTITION_METADATA}"
        data = self._disk.read_file(path)
        if data is None:
            await self._disk.replace_file(path, encode_partition_metadata(PartitionMetadata(self.topic_id)))
        if data is None or not stopped_cleanly:
            # That the directory exists does not mean that its name was flushed.
            await self._disk.flush_directory(self.directory.rpartition("/")[0])
        if data is None:
            return
        found = decode_partition_metadata(data, path).topic_id
        if found != self.topic_id:
            raise NotALogError(
                f"it belongs to the topic with id {found}, not to {self.topic} with id {self.topic_id}",
                self.directory,
                "Move the directory away: it is of a topic that was deleted, or of another cluster",
            )

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool) -> Read:
        end_offset = min(end_offset, self.end_offset)
        if not self.start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self._place}: offset {offset} is not between {self.start_offset} and {end_offset}",
            )
        if offset == end_offset:
            return Read([], 0, offset, offset)
        try:
            found = reading.read(self._segments, offset, max_bytes, end_offset, min_one)
        except (CorruptLogError, OSError) as error:
            raise self._unreadable(error) from error
        if offset < self._active.base_offset:
            index = reading.segment_index(self._segments, offset)
            for segment in self._segments[index : index + len(found.parts) + 1]:
                self._keep_open(segment)
        return found

    def verify(self, offset: int, end_offset: int) -> None:
        """Called when a receiver could not take the records read there. If they are corrupt here, raises as `read`
        would."""
        with self._reading():
            reading.verify(self._segments, max(offset, self.start_offset), min(end_offset, self.end_offset))

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction has ended, and its marker is committed."""
        unstable = self.producers.first_unstable_offset(high_watermark)
        if unstable is None:
            return high_watermark
        return min(high_watermark, max(unstable, self.start_offset))

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        with self._reading():
            found = reading.aborted_transactions(self._segments, start_offset, end_offset)
        return found if start_offset >= self._active.base_offset else self._released(found)

    def offset_for_time(self, timestamp_ms: int, end_offset: int) -> TimedOffset | None:
        """The first record with this timestamp or a later one, below `end_offset`."""
        with self._reading():
            return self._released(reading.offset_for_time(self._segments, timestamp_ms, self.start_offset, end_offset))

    def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | None:
        with self._reading():
            return self._released(reading.newest_record(self._segments, self.start_offset, end_offset))

    def _released(self, answer: T) -> T:
        """Returns `answer`, after adding the segments that were opened to find it to those that may stay open."""
        for segment in self._segments:
            if segment.is_loaded:
                self._keep_open(segment)
        return answer

    def retention_start(self, high_watermark: int, now_ms: int) -> int:
        """Where retention would put the log start. Only a leader calls this; followers take over its log start. As in
        Kafka, the active segment is removed too once all of it is due."""
        with self._reading():
            summaries = [
                SegmentSummary(one.base_offset, one.size_bytes, one.first_timestamp_ms, one.newest_ms())
                for one in self._segments
            ]
        if summaries[-1].size_bytes:
            summaries.append(SegmentSummary(self.end_offset, 0, -1, now_ms))
        return max(self.start_offset, retention.retained_from(summaries, self.config, high_watermark, now_ms))
