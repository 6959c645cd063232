"""OffsetCommit, versions 2 to 10: commits a group's offsets. From version 9 on for members of consumer groups, from 10
on with topic ids.

The response is sent when the offsets are on all in-sync replicas. A topic that does not exist gets
UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID), the others are committed. Versions 2 to 4 may ask for a retention time of
their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.api.group_common import topic_key, topic_name
from sexton.broker.network.request import Body, milliseconds
from sexton.coordinators.groups.messages import CommittedOffset, OffsetCommitRequest
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request

API_KEY = 8
VERSIONS = (2, 10)

TOPIC_IDS_SINCE = 10
NO_RETENTION_MS = -1


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    names = [topic_name(broker.view, topic) for topic in body.topics]
    found = [(name, topic) for name, topic in zip(names, body.topics, strict=True) if name is not None]
    codes: dict[tuple[str, int], ErrorCode] = {}
    failed = ErrorCode.none
    if found:
        try:
            codes = await _commit(broker, request, found)
        except KafkaError as error:
            failed = error.code
    unknown = ErrorCode.unknown_topic_id if request.version >= TOPIC_IDS_SINCE else ErrorCode.unknown_topic_or_partition

    def code_of(name: str | None, partition: int) -> ErrorCode:
        return unknown if name is None else codes.get((name, partition), failed)

    return {
        "topics": [
            {
                **topic_key(topic),
                "partitions": [
                    {"partition_index": one.partition_index, "error_code": code_of(name, one.partition_index)}
                    for one in topic.partitions
                ],
            }
            for name, topic in zip(names, body.topics, strict=True)
        ]
    }


async def _commit(broker: Broker, request: Request, topics: list[tuple[str, Any]]) -> dict[tuple[str, int], ErrorCode]:
    body = request.body
    retention = getattr(body, "retention_time", None)
    commit = OffsetCommitRequest(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation_or_epoch=body.generation_id_or_member_epoch,
        topics=[(name, [_committed(one) for one in topic.partitions]) for name, topic in topics],
        version=request.version,
        retention_ms=NO_RETENTION_MS if retention is None else milliseconds(retention),
    )
    results = await broker.groups.commit_offsets(commit)
    return {(name, partition): code for name, codes in results for partition, code in codes}


def _committed(one: Any) -> CommittedOffset:
    return CommittedOffset(
        one.partition_index, one.committed_offset, getattr(one, "committed_leader_epoch", -1), one.committed_metadata
    )
