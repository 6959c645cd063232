"""DeleteTopics, versions 1 to 6: deletes topics by name or, from version 6, by id.

The topic is gone from the metastore when the response is sent; its files are deleted in the background. Internal topics
can be deleted, as in Kafka.

Deviation from Kafka: results come in the order of the request (Kafka shuffles them, because of ACLs).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import failure, make_change, outcome, repeated
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 20
VERSIONS = (1, 6)

TOPIC_IDS_SINCE = 6
DISABLED_HAS_ITS_OWN_CODE_SINCE = 3


async def handle(broker: Broker, request: Request) -> Body:
    asked = _asked(request)
    if not broker.config.delete_topic_enable:
        has_code = request.version >= DISABLED_HAS_ITS_OWN_CODE_SINCE
        code = ErrorCode.topic_deletion_disabled if has_code else ErrorCode.invalid_request
        disabled = failure(KafkaError(code, "Topic deletion is disabled."))
        return {"responses": [{"name": name, "topic_id": topic_id, **disabled} for name, topic_id in asked]}
    twice = repeated(asked)
    resolved = [_resolve(broker, name, topic_id) for name, topic_id in asked]
    same_topic = repeated(topic_id for _, topic_id, error in resolved if error is None)
    responses = []
    for key, (name, topic_id, error) in zip(asked, resolved, strict=True):
        if key in twice:
            what = "name" if key[0] is not None else "id"
            error = KafkaError(ErrorCode.invalid_request, f"Duplicate topic {what}.")
            name, topic_id = key
        elif topic_id in same_topic and error is None:
            error = KafkaError(
                ErrorCode.invalid_request, "The provided topic name maps to an ID that was already supplied."
            )
        made = failure(error) if error is not None else await outcome(_delete(broker, topic_id))
        responses.append({"name": name, "topic_id": topic_id, **made})
    return {"responses": _once(responses)}


def _asked(request: Request) -> list[tuple[str | None, uuid.UUID | None]]:
    if request.version < TOPIC_IDS_SINCE:
        return [(name, None) for name in request.body.topic_names]
    return [(topic.name, topic.topic_id) for topic in request.body.topics]


def _resolve(
    broker: Broker, name: str | None, topic_id: uuid.UUID | None
) -> tuple[str | None, uuid.UUID | None, KafkaError | None]:
    if name is None and topic_id is None:
        return name, topic_id, KafkaError(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if name is not None and topic_id is not None:
        return (
            name,
            topic_id,
            KafkaError(ErrorCode.invalid_request, "You may not specify both topic name and topic id."),
        )
    if name is not None:
        topic = broker.view.topic(name)
        if topic is None:
            return name, None, KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic.")
    else:
        assert topic_id is not None
        topic = broker.view.topic_by_id(topic_id)
        if topic is None:
            return None, topic_id, KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    return topic.name, topic.topic_id, None


async def _delete(broker: Broker, topic_id: uuid.UUID | None) -> None:
    async def attempt() -> None:
        assert topic_id is not None
        if broker.view.topic_by_id(topic_id) is None:
            return  # deleted by another broker meanwhile
        await broker.metastore.delete_topic(topic_id)

    await make_change(broker, attempt, ErrorCode.not_controller)


def _once(responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drops equal results: a topic that was requested twice gets one."""
    return list({(answer["name"], answer["topic_id"], answer["error_code"]): answer for answer in responses}.values())
