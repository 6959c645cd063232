"""AddOffsetsToTxn, versions 0 to 4: adds a group's partition of `__consumer_offsets` to a transaction.

Producers of transaction version 2 do not send it: TxnOffsetCommit adds the partition by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from sexton.broker.api.txn_common import OLD_CLIENT_VERSION, for_version
from sexton.coordinators.transactions.messages import AddRequest
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 25
VERSIONS = (0, 4)

FENCED_SINCE = 2


def handle(broker: Broker, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    try:
        broker.transactions.check_coordinated(
            body.transactional_id, body.producer_id, body.producer_epoch, request.connection
        )
    except KafkaError as error:
        return {"error_code": error.code}
    return _add(broker, request)


async def _add(broker: Broker, request: Request) -> Body:
    body = request.body
    try:
        partition = await offsets_partition(broker, body.group_id)
        producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        added = AddRequest(body.transactional_id, producer, [partition], OLD_CLIENT_VERSION)
        await broker.transactions.service.add(added)
    except KafkaError as error:
        return {"error_code": for_version(error.code, request.version, FENCED_SINCE)}
    return {"error_code": ErrorCode.none}


async def offsets_partition(broker: Broker, group: str) -> TopicPartition:
    if broker.view.topic(OFFSETS_TOPIC) is None:
        try:
            await broker.ensure_internal_topic(OFFSETS_TOPIC)
        except KafkaError as error:
            raise KafkaError(ErrorCode.coordinator_not_available, error.message) from error
    return (OFFSETS_TOPIC, broker.groups.partition_of(group))
