"""DescribeAcls, versions 1 to 3: SECURITY_DISABLED (`acl_common`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.api.acl_common import SECURITY_DISABLED

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 29
VERSIONS = (1, 3)


def handle(broker: Broker, request: Request) -> Body:
    return {**SECURITY_DISABLED, "resources": []}
