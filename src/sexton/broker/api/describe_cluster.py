"""DescribeCluster, versions 0 to 2: the cluster's id and its brokers; from version 2 also fenced ones, on request.

Deviations from Kafka: the controller is the broker that was asked, as in Metadata. There are no dedicated controllers,
so a request for controllers (endpoint type 2) gets MISMATCHED_ENDPOINT_TYPE, as from a Kafka broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.admin import CLUSTER_OPERATIONS, NO_AUTHORIZED_OPERATIONS, cluster_id_text, controller_id, is_serving
from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 60
VERSIONS = (0, 2)

BROKERS = 1
CONTROLLERS = 2


def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    endpoint_type = getattr(body, "endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        is_known = endpoint_type == CONTROLLERS
        return {
            "error_code": ErrorCode.mismatched_endpoint_type if is_known else ErrorCode.unsupported_endpoint_type,
            "error_message": f"Unsupported endpoint type {endpoint_type}: this is a broker",
        }
    wants_fenced = getattr(body, "include_fenced_brokers", False)
    rows = sorted(broker.view.brokers.values(), key=lambda row: row.broker_id)
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": BROKERS,
        "cluster_id": cluster_id_text(broker.cluster_id),
        "controller_id": controller_id(broker),
        "brokers": [
            {
                "broker_id": row.broker_id,
                "host": row.host,
                "port": row.port,
                "rack": row.rack,
                "is_fenced": not is_serving(row),
            }
            for row in rows
            if wants_fenced or is_serving(row)
        ],
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS if body.include_cluster_authorized_operations else NO_AUTHORIZED_OPERATIONS
        ),
    }
