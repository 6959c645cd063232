"""ListTransactions, versions 0 to 2 (KIP-664): the transactional ids that this broker coordinates.

Filters: states by name (unknown names are listed in the response), producer ids, from version 1 on transactions that
have lasted longer than a number of milliseconds, from version 2 on transactional ids that match a regular expression as
a whole (RE2 syntax; INVALID_REGULAR_EXPRESSION if it is invalid).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.coordinators.transactions.messages import ListRequest
from sexton.coordinators.transactions.states import BY_LABEL
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 66
VERSIONS = (0, 2)

ANY_DURATION = -1


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    states = [BY_LABEL[name] for name in body.state_filters if name in BY_LABEL]
    unknown = [name for name in body.state_filters if name not in BY_LABEL]
    asked = ListRequest(
        states,
        body.producer_id_filters,
        getattr(body, "duration_filter", ANY_DURATION),
        getattr(body, "transactional_id_pattern", None) or "",
    )
    try:
        nothing_matches = bool(unknown) and not states
        listed = [] if nothing_matches else await broker.transactions.service.list_all(asked)
    except KafkaError as error:
        return {"error_code": error.code, "unknown_state_filters": [], "transaction_states": []}
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": one.transactional_id,
                "producer_id": one.producer_id,
                "transaction_state": one.state.label,
            }
            for one in listed
        ],
    }
