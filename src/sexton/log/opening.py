"""Opens or creates one partition's log."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sexton.errors import NotALogError
from sexton.log import flushed
from sexton.log.epochs import EpochHistory
from sexton.log.flushed import FlushedPoint
from sexton.log.log import Log
from sexton.log.producers import ProducerStates
from sexton.log.recovery import Recovered, Recovery
from sexton.log.segment import Segment
from sexton.ports.disk import Disk
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


async def open_log(
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
    keeps_its_start: bool = False,
) -> Log:
    """Opens the log, or creates it if there is none, and repairs what a crash left behind. `start_offset` is the
    value in Kafka's log-start checkpoint, for a directory that comes from Kafka; the log keeps its own durably.
    `flushed_point` is the last one recorded for this very log; `keeps_its_start`, that a broker of ours has made it."""
    if not disk.exists(directory):
        return await create_log(
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
    await _own_directory(disk, directory, topic, topic_id, stopped_cleanly)
    producers = ProducerStates(f"{topic}-{partition}", producer_expiry_ms)
    recovery = Recovery(
        disk=disk,
        directory=directory,
        topic=topic,
        partition=partition,
        config=config,
        now_ms=now_ms,
        stopped_cleanly=stopped_cleanly,
        producers=producers,
        start_offset=start_offset,
        flushed_point=flushed_point,
        keeps_its_start=keeps_its_start,
    )
    try:
        recovered = await recovery.run()
    except OSError:
        flushed.distrust(disk, directory)  # a flush may have failed
        raise
    return Log(
        disk=disk,
        directory=directory,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        config=config,
        recovered=recovered,
    )


async def create_log(
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
    segment = Segment(disk, directory, start_offset, config, now_ms)
    files = [(PARTITION_METADATA, encode_partition_metadata(PartitionMetadata(topic_id)))]
    if epochs:
        files.append((LEADER_EPOCH_CHECKPOINT, encode_leader_epochs(epochs)))
    disk.make_directory(directory)
    segment.create()
    await disk.replace_files(directory, [*files, *beside])
    await disk.flush_directory(directory.rpartition("/")[0])
    producers = ProducerStates(f"{topic}-{partition}", producer_expiry_ms)
    producers.load((), now_ms)
    recovered = Recovered([segment], producers, EpochHistory(epochs), start_offset, start_offset)
    return Log(
        disk=disk,
        directory=directory,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        config=config,
        recovered=recovered,
    )


async def _own_directory(disk: Disk, directory: str, topic: str, topic_id: uuid.UUID, stopped_cleanly: bool) -> None:
    path = f"{directory}/{PARTITION_METADATA}"
    data = disk.read_file(path)
    if data is None:
        await disk.replace_file(path, encode_partition_metadata(PartitionMetadata(topic_id)))
    if data is None or not stopped_cleanly:
        # That the directory exists does not mean that its name was flushed.
        await disk.flush_directory(directory.rpartition("/")[0])
    if data is None:
        return
    found = decode_partition_metadata(data, path).topic_id
    if found != topic_id:
        raise NotALogError(
            f"it belongs to the topic with id {found}, not to {topic} with id {topic_id}",
            directory,
            "Move the directory away: it is of a topic that was deleted, or of another cluster",
        )
