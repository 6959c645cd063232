"""InitProducerId, versions 0 to 5: an id and epoch for an idempotent or a transactional producer.

A producer without a transactional id gets a new id and epoch 0, whatever it had before, as in Kafka. One with a
transactional id gets that id's producer id and a new epoch, which fences every other instance; their open transaction
is aborted first, and the response waits for that, for a moment. From version 3 on a producer that continues after an
error sends its id and epoch (KIP-360), and is refused with PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before version 4) if
another instance has been initialised since. After a timeout of its transaction it is not refused (KIP-588).

Deviations from Kafka. A broker that was fenced, and has no id left because it cannot reach the metastore, closes the
connection of an idempotent producer. Kafka answers COORDINATOR_LOAD_IN_PROGRESS for as long as that lasts; librdkafka
then asks the broker to which it is connected again and again, though any other would do. (Java asks a random one.)
And version 6 is not offered. It exists for two-phase commit with other systems (KIP-939), which Kafka
4.3 offers only where unstable versions are switched on, and which Sexton does not implement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.api.txn_common import for_version
from sexton.broker.network.request import DropConnectionError, Request, Response, milliseconds
from sexton.coordinators.transactions.messages import InitRequest
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerId, ProducerIdAndEpoch

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

API_KEY = 22
VERSIONS = (0, 5)

FENCED_SINCE = 4

_FAILED = {"producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}


async def handle(broker: Broker, request: Request) -> Response:
    try:
        if request.body.transactional_id is None:
            return {"producer_id": await _next_id(broker), "producer_epoch": 0}
        asked = _asked(request)
        await broker.transactions.until_ready(asked.transactional_id)
        producer = await broker.transactions.service.init(asked)
    except KafkaError as error:
        return {**_FAILED, "error_code": for_version(error.code, request.version, FENCED_SINCE)}
    broker.transactions.initialised(request.body.transactional_id, *producer)
    return {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}


async def _next_id(broker: Broker) -> ProducerId:
    try:
        return await broker.producer_ids.next()
    except KafkaError:
        if broker.lease_is_valid():
            raise
        raise DropConnectionError("no producer id: this broker is fenced and cannot reach the metastore") from None


def _asked(request: Request) -> InitRequest:
    body = request.body
    expected = ProducerIdAndEpoch(
        getattr(body, "producer_id", NO_PRODUCER_ID), getattr(body, "producer_epoch", NO_PRODUCER_EPOCH)
    )
    if (expected.producer_id == NO_PRODUCER_ID) != (expected.epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(ErrorCode.invalid_request, "a producer id goes with an epoch")
    is_known = expected.producer_id != NO_PRODUCER_ID
    timeout_ms = milliseconds(body.transaction_timeout)
    return InitRequest(body.transactional_id, timeout_ms, expected if is_known else None)
