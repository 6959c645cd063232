"""DescribeUserScramCredentials, version 0: no user has credentials, because there is no authentication.

An empty list of users means all. A named user gets RESOURCE_NOT_FOUND, one that is named twice DUPLICATE_RESOURCE.

Deviation from Kafka: credentials cannot be set, so AlterUserScramCredentials is not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.admin import repeated
from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 50
VERSIONS = (0, 0)


def handle(broker: Broker, request: Request) -> Body:
    names = [user.name for user in request.body.users or ()]
    twice = repeated(names)
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "results": [_described(name, name in twice) for name in dict.fromkeys(names)],
    }


def _described(name: str, is_repeated: bool) -> Body:
    if is_repeated:
        code, message = ErrorCode.duplicate_resource, f"{name} is named more than once"
    else:
        code, message = ErrorCode.resource_not_found, f"{name} has no SCRAM credentials: there is no authentication"
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": []}
