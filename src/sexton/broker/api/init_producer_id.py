"""InitProducerId: an id for an idempotent producer.

Versions 0 to 6. A producer without a transactional id gets a new id and epoch 0, whatever it had before, as in Kafka.
One with a transactional id is told COORDINATOR_NOT_AVAILABLE: transactions are not offered yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.request import Answer, Request
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

API_KEY = 22
VERSIONS = (0, 6)

_FAILED = {"producer_id": -1, "producer_epoch": -1}


async def handle(broker: Broker, request: Request) -> Answer:
    transactional_id = request.body.transactional_id
    if transactional_id is not None:
        code = ErrorCode.coordinator_not_available if transactional_id else ErrorCode.invalid_request
        return {**_FAILED, "error_code": code}
    try:
        return {"producer_id": await request.connection.dispatch.producer_ids.next(), "producer_epoch": 0}
    except KafkaError as error:
        return {**_FAILED, "error_code": error.code}
