"""IncrementalAlterConfigs, versions 0 and 1: sets and deletes configs, appends to and subtracts from list configs.

The changes to one resource are made together or not at all. A broker's configs are changed at that broker, those for
all brokers (the empty name) at any.

Deviations from Kafka:
- An unknown config name is refused everywhere; Kafka keeps unknown names in a broker's configs.
- Configs that Sexton does not implement are refused with INVALID_CONFIG and a reason: preallocation, flushing by
  interval or count.
- There are no broker loggers to set at run time, and no client metrics (INVALID_REQUEST).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.api.alter_configs import alter_each, check_entries
from sexton.broker.resources import Operation, Settings, apply_operation, change_settings, resource_of
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 44
VERSIONS = (0, 1)


async def handle(broker: Broker, request: Request) -> Body:
    return await alter_each(broker, request, _change)


async def _change(broker: Broker, resource: Any, validate_only: bool) -> None:
    entries = resource.configs
    null_names = [e.name for e in entries if e.value is None and e.config_operation != Operation.DELETE]
    check_entries(entries, null_names)
    for entry in entries:
        if entry.config_operation not in set(Operation):
            raise KafkaError(ErrorCode.invalid_request, f"Unknown operations type {entry.config_operation}")
    target = resource_of(broker, resource.resource_type, resource.resource_name)

    def change(before: Settings) -> Settings:
        after = dict(before)
        for entry in entries:
            apply_operation(target, after, entry.name, entry.config_operation, entry.value)
        return after

    await change_settings(broker, target, change, validate_only=validate_only)
