"""ApiVersions: which APIs and versions this broker offers.

Versions 0 to 4. Offered is exactly what has a module in this package; features are none so far. A request in a
version that we do not have is answered in version 0 with UNSUPPORTED_VERSION and our own range (KIP-511), so that the
client can ask again.
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

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, request: Request) -> Answer:
    if request.version >= 3:
        name, version = request.body.client_software_name, request.body.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return {"error_code": ErrorCode.invalid_request}
        request.connection.client_software = name, version
    return {"api_keys": [_range(module) for module in api.modules().values()]}


def _range(module: Any) -> dict[str, int]:
    lowest, highest = module.VERSIONS
    return {"api_key": module.API_KEY, "min_version": lowest, "max_version": highest}


def unsupported_version(correlation_id: int) -> bytes:
    ours = {"api_key": API_KEY, "min_version": VERSIONS[0], "max_version": VERSIONS[1]}
    answer = {"error_code": ErrorCode.unsupported_version, "api_keys": [ours]}
    return encode_response(API_KEY, 0, correlation_id, answer)
