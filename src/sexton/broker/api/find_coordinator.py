"""FindCoordinator, versions 0 to 6: which broker keeps a group. From version 4 on for many at once.

That is the leader of the group's partition of `__consumer_offsets`. If the topic does not exist yet it is made, and the
answer waits for it. While the partition has no leader: COORDINATOR_NOT_AVAILABLE, and clients ask again.

Deviations from Kafka: transactional ids (key type 1) are answered with COORDINATOR_NOT_AVAILABLE, for this version has
no transactions; share groups (key type 2) with INVALID_REQUEST, as an older Kafka would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.admin import is_serving
from sexton.broker.api.group_common import Answer
from sexton.coordinators.hashing import partition_for
from sexton.coordinators.groups.view_topics import OFFSETS_TOPIC, offsets_partitions_count
from sexton.ports.metastore import BrokerRow
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.request import Request

API_KEY = 10
VERSIONS = (0, 6)

BATCHED_SINCE = 4
GROUP = 0
TRANSACTION = 1
NO_NODE = -1


async def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    key_type = getattr(body, "key_type", GROUP)
    if request.version < BATCHED_SINCE:
        return await _find(broker, body.key, key_type)
    return {"coordinators": [await _find(broker, key, key_type) for key in body.coordinator_keys]}


async def _find(broker: Broker, key: str, key_type: int) -> Answer:
    try:
        if key_type == TRANSACTION:
            raise KafkaError(ErrorCode.coordinator_not_available, "There are no transactions in this version")
        if key_type != GROUP:
            raise KafkaError(ErrorCode.invalid_request, f"There are no coordinators of type {key_type}")
        row = await _coordinator(broker, key)
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


async def _coordinator(broker: Broker, group: str) -> BrokerRow:
    if offsets_partitions_count(broker.view) == 0:
        try:
            await broker.ensure_internal_topic(OFFSETS_TOPIC)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, error.message) from error
    count = offsets_partitions_count(broker.view)
    partition = broker.view.partition(OFFSETS_TOPIC, partition_for(group, count)) if count else None
    row = None if partition is None else broker.view.broker(partition.leader)
    if row is None or not is_serving(row):
        raise KafkaError(ErrorCode.coordinator_not_available, "The group's partition has no leader at present")
    return row
