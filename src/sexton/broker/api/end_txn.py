"""EndTxn, versions 0 to 5: commits or aborts a transaction.

The response is sent when the decision is on all in-sync replicas of `__transaction_state`: from then on nothing can
undo it, and the markers are written in the background. From version 5 on (transaction version 2) the response has the
producer's next epoch. What each combination of state, epoch and request means is in
`coordinators/transactions/ending.py`; how older clients are kept from ending the wrong transaction, in
`connection_binding.py` beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from sexton.broker.api.txn_common import OLD_CLIENT_VERSION, for_version
from sexton.broker.network.request import Body, DropConnectionError
from sexton.coordinators.transactions.coordinator import LateEnd
from sexton.coordinators.transactions.messages import EndRequest
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTION_VERSION_2, ProducerIdAndEpoch

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request

API_KEY = 26
VERSIONS = (0, 5)

NEW_CLIENTS_SINCE = 5
FENCED_SINCE = 2

_NOBODY = {"producer_id": NO_PRODUCER_ID, "producer_epoch": NO_PRODUCER_EPOCH}


def handle(broker: Broker, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    doubt = None
    if request.version < NEW_CLIENTS_SINCE:
        try:
            doubt = broker.transactions.may_be_late(
                body.transactional_id, body.producer_id, body.producer_epoch, request.connection
            )
        except KafkaError as error:
            return {"error_code": error.code}
    return _end(broker, request, doubt)


async def _end(broker: Broker, request: Request, doubt: DropConnectionError | None) -> Body:
    body = request.body
    is_new = request.version >= NEW_CLIENTS_SINCE
    producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
    client_version = TRANSACTION_VERSION_2 if is_new else OLD_CLIENT_VERSION
    try:
        after = await broker.transactions.service.end(
            EndRequest(body.transactional_id, producer, body.committed, client_version, may_be_late=doubt is not None)
        )
    except LateEnd:
        assert doubt is not None
        raise doubt from None
    except KafkaError as error:
        return {**_NOBODY, "error_code": for_version(error.code, request.version, FENCED_SINCE)}
    return {"error_code": ErrorCode.none, "producer_id": after.producer_id, "producer_epoch": after.epoch}
