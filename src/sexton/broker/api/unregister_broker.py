"""UnregisterBroker, version 0: removes the registration of a broker that will not come back.

DescribeCluster then no longer lists it among the fenced brokers. If the broker starts again all the same, it registers
again.

Deviations from Kafka, which removes the registration in any case and may leave partitions offline: a broker that is
alive is refused, and so is one that is a replica of any partition (INVALID_REQUEST, with what to do first). A broker's
row is what tells an old image of its disk from the disk itself (docs/decisions, 8), which matters as long as any
partition has a replica on that disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.admin import make_change, outcome
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 64
VERSIONS = (0, 0)


async def handle(broker: Broker, request: Request) -> Body:
    async def unregister() -> None:
        await _unregister(broker, int(request.body.broker_id))

    return await outcome(make_change(broker, unregister, ErrorCode.request_timed_out))


async def _unregister(broker: Broker, broker_id: int) -> None:
    row = broker.view.broker(broker_id)
    if row is None:
        raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker {broker_id} is not registered")
    if row.is_live:
        raise KafkaError(ErrorCode.invalid_request, f"Broker {broker_id} runs at {row.host}:{row.port}. Stop it first")
    held_count = len(broker.view.replicas_on(broker_id))
    if held_count:
        what = f"Broker {broker_id} is a replica of {held_count} partitions. Reassign them to other brokers first"
        raise KafkaError(ErrorCode.invalid_request, what)
    await broker.metastore.remove_broker(broker_id, row.epoch)
