"""ApiVersions, versions 0 to 4: which APIs and versions this broker offers.

Offered is exactly what has a module in this package. From version 3 on the response lists features, which are always
on:

- `transaction.version` 2 (KIP-890): Produce itself adds partitions, every end of a transaction raises the epoch;
- `group.version` 1: the group protocol of KIP-848;
- `metadata.version`: tools (kafka-ui, for one) take it for the version of the brokers. It is that of the Kafka whose
  APIs these are, though there is no metadata log here.

Deviation from Kafka: features that are not implemented are not listed: share and streams groups, eligible leader
replicas, KRaft's quorum.

A feature that is supported from version 0 on is left out before version 4 of this API, as in Kafka: Java's older
clients fail on it. A request in a version that we do not support gets a version 0 response with UNSUPPORTED_VERSION and
our own range (KIP-511), so that the client can ask again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from sexton.broker import api
from sexton.broker.network.request import Request, Response
from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import encode_response

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

API_KEY = 18
VERSIONS = (0, 4)


class Feature(NamedTuple):
    name: str
    lowest: int
    highest: int


FEATURES = (
    Feature("group.version", 0, 1),
    Feature("metadata.version", 7, 30),  # Kafka 3.3 to 4.3, by its own count
    Feature("transaction.version", 0, 2),
)
LEVEL_ZERO_SINCE = 4
FINALIZED = {
    "finalized_features_epoch": 1,
    "finalized_features": [
        {"name": one.name, "max_version_level": one.highest, "min_version_level": one.highest} for one in FEATURES
    ],
}
"""The finalized features never change, so neither does their epoch."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, request: Request) -> Response:
    if request.version >= 3:
        name, version = request.body.client_software_name, request.body.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return {"error_code": ErrorCode.invalid_request}
    offered = {"api_keys": [_range(module) for module in api.modules().values()], **FINALIZED}
    return {
        **offered,
        "supported_features": [_supported(one) for one in FEATURES if _is_advertised(one, request.version)],
    }


def _is_advertised(feature: Feature, version: int) -> bool:
    return feature.lowest > 0 or version >= LEVEL_ZERO_SINCE


def _supported(feature: Feature) -> dict[str, Any]:
    return {"name": feature.name, "min_version": feature.lowest, "max_version": feature.highest}


def _range(module: Any) -> dict[str, int]:
    lowest, highest = module.VERSIONS
    return {"api_key": module.API_KEY, "min_version": lowest, "max_version": highest}


def unsupported_version(correlation_id: int) -> bytes:
    ours = {"api_key": API_KEY, "min_version": VERSIONS[0], "max_version": VERSIONS[1]}
    answer = {"error_code": ErrorCode.unsupported_version, "api_keys": [ours]}
    return encode_response(API_KEY, 0, correlation_id, answer)
