"""Metadata, versions 0 to 13: the brokers, and topics with their partitions, replicas and leaders.

A request asks for all topics (null; before version 1 an empty list), for some by name, or from version 12 by id. The
response shows this broker's view: a change is in it by the time its client gets the response to that change
(`broker/lifecycle/news.py`), unless this broker could not be reached; then it is `metadata.poll.ms` behind at most. A
topic that does not exist is created if the client and `auto.create.topics.enable` allow it, and the response waits for
that.

Deviations from Kafka:
- Auto-creation is finished before the response, which then describes the new topic; Kafka returns
  UNKNOWN_TOPIC_OR_PARTITION and lets the client ask again. If creation fails, the topic's error says why.
- The controller is the broker that was asked: every broker can do what a controller is asked to do.
- A partition whose leader is being fenced has no leader (LEADER_NOT_AVAILABLE) at once.
- There are no ACLs: a request for authorized operations gets all of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import (
    CLUSTER_OPERATIONS,
    NO_AUTHORIZED_OPERATIONS,
    TOPIC_OPERATIONS,
    cluster_id_text,
    controller_id,
    is_valid_topic_name,
    serving_brokers,
    serving_ids,
)
from sexton.broker.topics import ensure_topic
from sexton.metadata.topics import INTERNAL_TOPICS
from sexton.ports.metastore import PartitionRow, TopicRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_LEADER

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request
    from sexton.metadata.view import ClusterView

API_KEY = 3
VERSIONS = (0, 13)

TOPIC_IDS_SINCE = 12


def handle(broker: Broker, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    wanted = body.topics
    if wanted is None or (request.version == 0 and not wanted):
        found = sorted(broker.view.topics(), key=lambda topic: topic.name)
        serving = serving_ids(broker.view)
        return _answer(broker, request, [_known(broker.view, topic, request.version, serving) for topic in found])
    if request.version < TOPIC_IDS_SINCE and any(_names_by_id(topic) for topic in wanted):
        topics = [_unknown(topic.name or "", ErrorCode.invalid_request, topic.topic_id) for topic in wanted]
        return _answer(broker, request, topics)
    ids = list(dict.fromkeys(topic.topic_id for topic in wanted if getattr(topic, "topic_id", None) is not None))
    if ids:
        return _answer(broker, request, [_by_id(broker.view, topic_id, request.version) for topic_id in ids])
    names = list(dict.fromkeys(topic.name for topic in wanted if topic.name is not None))
    missing = [name for name in names if broker.view.topic(name) is None]
    may_create = broker.config.auto_create_topics_enable and getattr(body, "allow_auto_topic_creation", True)
    if missing and may_create:
        return _create_and_answer(broker, request, names, missing)
    return _answer(broker, request, [_by_name(broker.view, name, request.version) for name in names])


def _names_by_id(topic: Any) -> bool:
    return topic.name is None or getattr(topic, "topic_id", None) is not None


async def _create_and_answer(broker: Broker, request: Request, names: Sequence[str], missing: Sequence[str]) -> Body:
    errors: dict[str, ErrorCode] = {}
    for name in missing:
        try:
            await ensure_topic(broker, name)
        except KafkaError as error:
            errors[name] = error.code
    topics = [
        _unknown(name, errors[name]) if name in errors else _by_name(broker.view, name, request.version)
        for name in names
    ]
    return _answer(broker, request, topics)


def _answer(broker: Broker, request: Request, topics: list[Body]) -> Body:
    body = request.body
    if getattr(body, "include_topic_authorized_operations", False):
        for topic in topics:
            topic["topic_authorized_operations"] = TOPIC_OPERATIONS
    asked = getattr(body, "include_cluster_authorized_operations", False)
    return {
        "brokers": [
            {"node_id": row.broker_id, "host": row.host, "port": row.port, "rack": row.rack}
            for row in serving_brokers(broker.view)
        ],
        "cluster_id": cluster_id_text(broker.cluster_id),
        "controller_id": controller_id(broker),
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else NO_AUTHORIZED_OPERATIONS,
    }


def _by_name(view: ClusterView, name: str, version: int) -> Body:
    topic = view.topic(name)
    if topic is not None:
        return _known(view, topic, version, serving_ids(view))
    is_valid = is_valid_topic_name(name)
    return _unknown(name, ErrorCode.unknown_topic_or_partition if is_valid else ErrorCode.invalid_topic_exception)


def _by_id(view: ClusterView, topic_id: uuid.UUID, version: int) -> Body:
    topic = view.topic_by_id(topic_id)
    if topic is None:
        return _unknown(None, ErrorCode.unknown_topic_id, topic_id)
    return _known(view, topic, version, serving_ids(view))


def _unknown(name: str | None, error: ErrorCode, topic_id: uuid.UUID | None = None) -> Body:
    return {"error_code": error, "name": name, "topic_id": topic_id, "is_internal": name in INTERNAL_TOPICS}


def _known(view: ClusterView, topic: TopicRow, version: int, serving: frozenset[int]) -> Body:
    describe = describe_for_version_0 if version == 0 else describe_partition
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [describe(row, serving) for row in view.partitions_of(topic.topic_id)],
    }


def describe_partition(row: PartitionRow, serving: frozenset[int]) -> Body:
    has_leader = row.leader in serving
    return {
        "error_code": ErrorCode.none if has_leader else ErrorCode.leader_not_available,
        "partition_index": row.partition,
        "leader_id": row.leader if has_leader else NO_LEADER,
        "leader_epoch": row.leader_epoch,
        "replica_nodes": row.replicas,
        "isr_nodes": row.isr,
        "offline_replicas": () if serving.issuperset(row.replicas) else [r for r in row.replicas if r not in serving],
    }


def describe_for_version_0(row: PartitionRow, serving: frozenset[int]) -> Body:
    """Version 0 has no list of offline replicas: they are left out, and if there are any the partition has
    REPLICA_NOT_AVAILABLE."""
    described = describe_partition(row, serving)
    if described["offline_replicas"] and row.leader in serving:
        described["error_code"] = ErrorCode.replica_not_available
    for name in ("replica_nodes", "isr_nodes"):
        described[name] = [replica for replica in described[name] if replica in serving]
    return described
