"""ApiVersions: which APIs and versions this broker offers.

Versions 0 to 4. Offered is exactly what has a module in this package. From version 3 on features are told: transaction
version 2 (KIP-890), always on, by which clients know that partitions are added by Produce itself and that every end
of a transaction raises the epoch. That version 0 is supported as well is left out before version 4, as in Kafka: Java's
older clients stumble over a feature that begins at 0. A request in a version that we do not have is answered in
version 0 with UNSUPPORTED_VERSION and our own range (KIP-511), so that the client can ask again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sexton.broker import api
from sexton.broker.request import Answer, Request
from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import encode_response

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

API_KEY = 18
VERSIONS = (0, 4)

TRANSACTION_VERSION = "transaction.version"
SUPPORTED = [{"name": TRANSACTION_VERSION, "min_version": 0, "max_version": 2}]
LEVEL_ZERO_SINCE = 4
FINALIZED = {
    "finalized_features_epoch": 1,
    "finalized_features": [{"name": TRANSACTION_VERSION, "max_version_level": 2, "min_version_level": 2}],
}
"""They never change, so neither does their epoch."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, request: Request) -> Answer:
    if request.version >= 3:
        name, version = request.body.client_software_name, request.body.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return {"error_code": ErrorCode.invalid_request}
        request.connection.client_software = name, version
    offered = {"api_keys": [_range(module) for module in api.modules().values()], **FINALIZED}
    return {**offered, "supported_features": SUPPORTED} if request.version >= LEVEL_ZERO_SINCE else offered


def _range(module: Any) -> dict[str, int]:
    lowest, highest = module.VERSIONS
    return {"api_key": module.API_KEY, "min_version": lowest, "max_version": highest}


def unsupported_version(correlation_id: int) -> bytes:
    ours = {"api_key": API_KEY, "min_version": VERSIONS[0], "max_version": VERSIONS[1]}
    answer = {"error_code": ErrorCode.unsupported_version, "api_keys": [ours]}
    return encode_response(API_KEY, 0, correlation_id, answer)
