"""DescribeTransactions, version 0 (KIP-664): the coordinator's state of transactional ids.

The partitions listed are those in which the transaction may still be open: while markers are being written, those
without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 65
VERSIONS = (0, 0)


async def handle(broker: Broker, request: Request) -> Body:
    return {"transaction_states": [await _describe(broker, name) for name in request.body.transactional_ids]}


async def _describe(broker: Broker, name: str) -> Body:
    try:
        found, partitions = await broker.transactions.service.describe(name)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_PRODUCER_EPOCH,
            "topics": [],
        }
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": name,
        "transaction_state": found.state.label,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
    }
