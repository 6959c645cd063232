"""FindCoordinator, versions 0 to 6: the coordinator of a group or of a transactional id. From version 4 on for many at
once.

The coordinator is the leader of the key's partition of `__consumer_offsets`, or of `__transaction_state`. If the topic
does not exist yet it is created, and the response waits for it. While the partition has no leader:
COORDINATOR_NOT_AVAILABLE, and clients ask again.

Deviation from Kafka: share groups (key type 2) get INVALID_REQUEST, as from an older Kafka.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sexton.broker.admin import is_serving
from sexton.coordinators.bounds import STRING_BYTES_MAX, is_too_long
from sexton.coordinators.hashing import partition_for
from sexton.metadata.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from sexton.ports.metastore import BrokerRow
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 10
VERSIONS = (0, 6)

BATCHED_SINCE = 4
GROUP = 0
TRANSACTION = 1
TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
NO_NODE = -1
KEYS_PER_TURN = 100
"""A request for many keys yields to other requests after this many."""


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    key_type = getattr(body, "key_type", GROUP)
    if request.version < BATCHED_SINCE:
        return await _find(broker, body.key, key_type)
    found = []
    for number, key in enumerate(body.coordinator_keys, 1):
        found.append(await _find(broker, key, key_type))
        if number % KEYS_PER_TURN == 0:
            await asyncio.sleep(0)
    return {"coordinators": found}


async def _find(broker: Broker, key: str, key_type: int) -> Body:
    try:
        topic = TOPICS.get(key_type)
        if topic is None:
            raise KafkaError(ErrorCode.invalid_request, f"There are no coordinators of type {key_type}")
        if is_too_long(key):
            code = ErrorCode.invalid_group_id if key_type == GROUP else ErrorCode.invalid_request
            raise KafkaError(code, f"It has more than {STRING_BYTES_MAX} bytes.")
        row = await _coordinator(broker, topic, key)
    except KafkaError as error:
        return {
            "key": key,
            "error_code": error.code,
            "error_message": error.message or error.code.name.upper(),
            "node_id": NO_NODE,
            "host": "",
            "port": -1,
        }
    return {
        "key": key,
        "error_code": ErrorCode.none,
        "error_message": "NONE",
        "node_id": row.broker_id,
        "host": row.host,
        "port": row.port,
    }


async def _coordinator(broker: Broker, topic: str, key: str) -> BrokerRow:
    if _partitions_count(broker, topic) == 0:
        try:
            await broker.ensure_internal_topic(topic)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, error.message) from error
    count = _partitions_count(broker, topic)
    partition = broker.view.partition(topic, partition_for(key, count)) if count else None
    row = None if partition is None else broker.view.broker(partition.leader)
    if row is None or not is_serving(row):
        raise KafkaError(ErrorCode.coordinator_not_available, f"Its partition of {topic} has no leader at present")
    return row


def _partitions_count(broker: Broker, topic: str) -> int:
    row = broker.view.topic(topic)
    return 0 if row is None else len(broker.view.partitions_of(row.topic_id))
