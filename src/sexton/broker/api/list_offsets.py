"""ListOffsets, versions 1 to 11: the offset for a timestamp, or a special offset such as the earliest or the latest.

Served by the leader; for replica id -2 (debugging) by any replica. With isolation level read_committed the latest
offset is the last stable one. All data is local, so the earliest local offset is the earliest one (KIP-405), and those
in or on their way to remote storage are unknown (-1). A leader whose high watermark has not reached the end of the
previous epoch yet returns OFFSET_NOT_AVAILABLE (KIP-207), for otherwise the latest offset could go back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from sexton.broker.network.request import Body, Request, Response
from sexton.log.types import TimedOffset
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_EPOCH, LeaderEpoch

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.replication.replica import Replica

API_KEY = 2
VERSIONS = (1, 11)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)

_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_DEBUGGING = -2
_READ_COMMITTED = 1
_OFFSET_NOT_AVAILABLE_SINCE = 5
_NOTHING: Final = TimedOffset(-1, -1, NO_EPOCH)


def handle(broker: Broker, request: Request) -> Response | Awaitable[Response]:
    topics = [
        (topic.name, [_offset_of(broker, request, topic.name, one) for one in topic.partitions])
        for topic in request.body.topics
    ]
    if any(isinstance(one, Awaitable) for _, found in topics for one in found):
        return _when_loaded(topics)
    return {"topics": [{"name": name, "partitions": found} for name, found in topics]}


async def _when_loaded(topics: list[tuple[str, list[Body | Awaitable[Body]]]]) -> Response:
    """Records that are not on this broker are looked for all at once."""

    async def loaded(one: Body | Awaitable[Body]) -> Body:
        return await one if isinstance(one, Awaitable) else one

    return {
        "topics": [
            {"name": name, "partitions": await asyncio.gather(*(loaded(one) for one in found))}
            for name, found in topics
        ]
    }


def _offset_of(broker: Broker, request: Request, topic: str, asked: Any) -> Body | Awaitable[Body]:
    version = request.version
    try:
        if asked.timestamp < EARLIEST and version < _SINCE_VERSION.get(asked.timestamp, 1 << 15):
            raise KafkaError(ErrorCode.unsupported_version)
        replica = broker.replicas.local(topic, asked.partition_index)
        replica.check_epoch(asked.current_leader_epoch if version >= 4 else NO_EPOCH)
        if request.body.replica_id != _DEBUGGING:
            replica.check_serving_as_leader()
        read_committed = version >= 2 and request.body.isolation_level == _READ_COMMITTED
        found = _find(replica, asked.timestamp, read_committed, version)
    except KafkaError as error:
        return {"partition_index": asked.partition_index, "error_code": error.code}
    except OSError:
        return {"partition_index": asked.partition_index, "error_code": ErrorCode.kafka_storage_error}
    return _later(found, asked.partition_index) if isinstance(found, Awaitable) else _told(found, asked.partition_index)


async def _later(found: Awaitable[TimedOffset | None], partition_index: int) -> Body:
    try:
        return _told(await found, partition_index)
    except KafkaError as error:
        return {"partition_index": partition_index, "error_code": error.code}


def _told(found: TimedOffset | None, partition_index: int) -> Body:
    timestamp_ms, offset, epoch = found or _NOTHING
    return {"partition_index": partition_index, "timestamp": timestamp_ms, "offset": offset, "leader_epoch": epoch}


def _find(
    replica: Replica, timestamp: int, read_committed: bool, version: int
) -> TimedOffset | Awaitable[TimedOffset | None] | None:
    log = replica.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimedOffset(-1, log.start_offset, log.epochs.epoch_of(log.start_offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    _check_former_epochs_are_committed(replica, version)
    end_offset = replica.last_stable_offset if read_committed else replica.high_watermark
    if timestamp == LATEST:
        return TimedOffset(-1, end_offset, replica.leader_epoch)
    return log.offset_of_max_timestamp(end_offset) if timestamp < 0 else log.offset_for_time(timestamp, end_offset)


def _check_former_epochs_are_committed(replica: Replica, version: int) -> None:
    if not replica.is_leader:
        return
    found = replica.log.epochs.end_offset_of(LeaderEpoch(replica.leader_epoch - 1), replica.log.end_offset)
    if found is not None and replica.high_watermark < found[1]:
        code = ErrorCode.offset_not_available
        raise KafkaError(code if version >= _OFFSET_NOT_AVAILABLE_SINCE else ErrorCode.leader_not_available)
