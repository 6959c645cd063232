"""DescribeClientQuotas, versions 0 and 1: an empty list, as from a Kafka without quotas.

An invalid filter is refused as Kafka refuses it, so that a mistake is not taken for "no quotas".

Deviation from Kafka: quotas cannot be set, so AlterClientQuotas is not offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import failure, repeated
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 48
VERSIONS = (0, 1)

IP = "ip"
ENTITY_TYPES = frozenset({"user", "client-id", IP})


class MatchType(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def handle(broker: Broker, request: Request) -> Body:
    try:
        _check(request.body.components)
    except KafkaError as error:
        return {**failure(error), "entries": None}
    return {"error_code": ErrorCode.none, "error_message": "", "entries": []}


def _check(components: Sequence[Any]) -> None:
    def refuse(message: str, code: ErrorCode = ErrorCode.invalid_request) -> None:
        raise KafkaError(code, message)

    for one in components:
        if not one.entity_type:
            refuse("An entity type is empty")
        if one.entity_type not in ENTITY_TYPES:
            known = ", ".join(sorted(ENTITY_TYPES))
            refuse(f"There is no entity type {one.entity_type}: it is one of {known}", ErrorCode.unsupported_version)
        if one.match_type not in list(MatchType):
            refuse(f"There is no match type {one.match_type}")
        if (one.match_type == MatchType.EXACT) is (one.match is None):
            refuse("A name goes with an exact match, and with no other")
    types = [one.entity_type for one in components]
    if twice := repeated(types):
        refuse(f"{', '.join(sorted(twice))}: an entity type can be filtered by only once")
    if IP in types and len(types) > 1:
        refuse("ip cannot be combined with user or client-id")
