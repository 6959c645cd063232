"""OffsetFetch, versions 1 to 10: committed offsets of groups. From version 8 on many groups at once, from 9 on checked
against the member's epoch, from 10 on with topic ids.

Only offsets that are on all in-sync replicas are returned: a response waits for commits that are in progress. With
`require_stable` (from version 7 on) a partition with offsets of a transaction that has not completed gets
UNSTABLE_OFFSET_COMMIT instead, and clients ask again. A partition without an offset gets -1. Offsets belong to a topic
id: a topic that was deleted has none, and one that was created again under the same name has none yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.api.group_common import topic_key, topic_name
from sexton.coordinators.groups.messages import FetchedOffset, OffsetFetchRequest
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_OFFSET

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 9
VERSIONS = (1, 10)

GROUP_ERROR_SINCE = 2
MANY_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    stable = getattr(body, "require_stable", False)
    if request.version >= MANY_GROUPS_SINCE:
        return {"groups": [await _fetch(broker, one, request.version, stable) for one in body.groups]}
    answer = await _fetch(broker, body, request.version, stable)
    if answer["error_code"] is not ErrorCode.none and request.version < GROUP_ERROR_SINCE:
        # Version 1 has no error of the whole group, so each partition gets it.
        return {"topics": [_failed(topic, answer["error_code"]) for topic in body.topics]}
    return answer


async def _fetch(broker: Broker, asked: Any, version: int, require_stable: bool) -> Body:
    """`asked` is one group of a request for many, or the request itself before version 8."""
    named = None if asked.topics is None else [(topic, _name(broker, topic, version)) for topic in asked.topics]
    fetch = OffsetFetchRequest(
        asked.group_id,
        getattr(asked, "member_id", None),
        getattr(asked, "member_epoch", -1),
        None if named is None else [(name, topic.partition_indexes) for topic, name in named if name is not None],
        require_stable,
    )
    try:
        fetched = await broker.groups.fetch_offsets(fetch)
    except KafkaError as error:
        return {"group_id": asked.group_id, "error_code": error.code, "topics": []}
    if named is None:
        topics = [found for entry in fetched if (found := _found(broker, *entry, version)) is not None]
    else:
        results = iter(fetched)
        topics = [
            _failed(topic, ErrorCode.unknown_topic_id)
            if name is None
            else {**topic_key(topic), "partitions": [_partition(one) for one in next(results)[1]]}
            for topic, name in named
        ]
    return {"group_id": asked.group_id, "error_code": ErrorCode.none, "topics": topics}


def _name(broker: Broker, topic: Any, version: int) -> str | None:
    """Before topic ids a deleted topic is returned as one without offsets; by id it is unknown."""
    return topic_name(broker.view, topic) if version >= TOPIC_IDS_SINCE else str(topic.name)


def _found(broker: Broker, name: str, offsets: list[FetchedOffset], version: int) -> Body | None:
    partitions = [_partition(one) for one in offsets]
    if version < TOPIC_IDS_SINCE:
        return {"name": name, "partitions": partitions}
    row = broker.view.topic(name)
    return None if row is None else {"topic_id": row.topic_id, "partitions": partitions}


def _partition(one: FetchedOffset) -> Body:
    return {
        "partition_index": one.partition,
        "committed_offset": one.offset,
        "committed_leader_epoch": one.leader_epoch,
        "metadata": one.metadata,
        "error_code": one.error,
    }


def _failed(topic: Any, code: ErrorCode) -> Body:
    return {
        **topic_key(topic),
        "partitions": [
            {
                "partition_index": partition,
                "committed_offset": NO_OFFSET,
                "committed_leader_epoch": -1,
                "metadata": "",
                "error_code": code,
            }
            for partition in topic.partition_indexes
        ],
    }
