"""ListConfigResources, versions 0 and 1 (KIP-1142): the names of resources that can have configs.

Version 0 asks for client metrics alone. From version 1 on a request names resource types, or none for all: topics, live
brokers, and groups that have configs of their own. A resource type that the version does not know gets
UNSUPPORTED_VERSION, as in Kafka.

Deviation from Kafka: there are no client metrics and no broker loggers to set, so none are listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sexton.broker.resources import ResourceType
from sexton.ports.metastore import ConfigScope
from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 74
VERSIONS = (0, 1)

KNOWN_SINCE_0 = (ResourceType.CLIENT_METRICS,)
KNOWN_SINCE_1 = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


def handle(broker: Broker, request: Request) -> Body:
    known = KNOWN_SINCE_1 if request.version >= 1 else KNOWN_SINCE_0
    asked = getattr(request.body, "resource_types", ()) or known
    if not set(asked) <= set(known):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": []}
    return {
        "error_code": ErrorCode.none,
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind in known
            if kind in asked
            for name in _names_of(broker, kind)
        ],
    }


def _names_of(broker: Broker, kind: ResourceType) -> Iterable[str]:
    if kind is ResourceType.TOPIC:
        return broker.view.topic_names()
    if kind is ResourceType.BROKER:
        return (str(row.broker_id) for row in broker.view.live_brokers())
    if kind is ResourceType.GROUP:
        return broker.view.names_with_settings(ConfigScope.GROUP)
    return ()
