"""CreateTopics, versions 2 to 7: creates topics, with replicas that are chosen here or given, and configs.

Each topic is validated and created on its own. The response waits, within the request's timeout, until all partitions
have a leader. From version 5 it has the topic's configs, from version 7 its id. `validate_only` changes nothing.

Deviations from Kafka:
- At most 10,000 partitions in one *topic*; Kafka counts all topics of a request together.
- With `validate_only` the response has no topic id, for there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.admin import failure, repeated
from sexton.broker.network.request import Body, milliseconds
from sexton.broker.topics import NewTopic, create_topic, wait_for_leaders
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.layers import describe_topic

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request

API_KEY = 19
VERSIONS = (2, 7)


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    twice = repeated(topic.name for topic in body.topics)
    timeout_ms = milliseconds(body.timeout)
    answers: dict[str, Body] = {}
    for topic in body.topics:
        if topic.name in twice:
            error = KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
            answers[topic.name] = {"name": topic.name, **failure(error)}
            continue
        try:
            answers[topic.name] = await _create(broker, topic, body.validate_only, timeout_ms)
        except KafkaError as error:
            answers[topic.name] = {"name": topic.name, **failure(error)}
    return {"topics": list(answers.values())}


async def _create(broker: Broker, asked: Any, validate_only: bool, timeout_ms: int) -> Body:
    wanted = _wanted(asked)
    topic, rows = await create_topic(broker, wanted, validate_only=validate_only)
    if not validate_only:
        await wait_for_leaders(broker, topic.topic_id, timeout_ms)
    described = describe_topic(broker.view, broker.config.static, broker.config.node_id, wanted.settings)
    return {
        "name": topic.name,
        "topic_id": None if validate_only else topic.topic_id,
        "error_code": ErrorCode.none,
        "num_partitions": len(rows),
        "replication_factor": len(rows[0].replicas),
        "configs": [
            {
                "name": resolved.setting.name,
                "value": resolved.value,
                "read_only": False,
                "config_source": resolved.source,
                "is_sensitive": False,
            }
            for resolved in described
        ],
    }


def _wanted(asked: Any) -> NewTopic:
    null_names = [config.name for config in asked.configs if config.value is None]
    if null_names:
        what = "Null value not supported for topic configs: " + ",".join(null_names)
        raise KafkaError(ErrorCode.invalid_config, what)
    assignments = {assignment.partition_index: assignment.broker_ids for assignment in asked.assignments}
    if len(assignments) != len(asked.assignments):
        (first, *_) = sorted(repeated(assignment.partition_index for assignment in asked.assignments))
        what = f"Found multiple manual partition assignments for partition {first}"
        raise KafkaError(ErrorCode.invalid_replica_assignment, what)
    return NewTopic(
        asked.name,
        asked.num_partitions,
        asked.replication_factor,
        assignments,
        {config.name: config.value for config in asked.configs},
    )
