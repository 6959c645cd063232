"""AlterConfigs, versions 0 to 2: replaces all settings of topics, brokers and groups.

What is not named goes back to its default. Old clients still send it; newer ones use IncrementalAlterConfigs.

Deviations from Kafka: as in IncrementalAlterConfigs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.admin import Answer, outcome, repeated
from sexton.broker.resources import change_settings, resource_of
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.request import Request

API_KEY = 33
VERSIONS = (0, 2)


async def handle(broker: Broker, request: Request) -> Answer:
    asked = request.body.resources
    twice = repeated((resource.resource_type, resource.resource_name) for resource in asked)
    responses = []
    for resource in asked:
        key = (resource.resource_type, resource.resource_name)
        made = await outcome(_replace(broker, resource, key in twice, request.body.validate_only))
        responses.append({**made, "resource_type": key[0], "resource_name": key[1]})
    return {"responses": responses}


async def _replace(broker: Broker, resource: Any, is_repeated: bool, validate_only: bool) -> None:
    check_entries(resource.configs, is_repeated, [entry.name for entry in resource.configs if entry.value is None])
    target = resource_of(broker, resource.resource_type, resource.resource_name)
    settings = {entry.name: entry.value for entry in resource.configs}
    await change_settings(broker, target, lambda before: settings, validate_only=validate_only)


def check_entries(entries: Any, is_repeated: bool, null_names: list[str]) -> None:
    if is_repeated:
        raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
    if repeated(entry.name for entry in entries):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    if null_names:
        raise KafkaError(ErrorCode.invalid_request, "Null value not supported for : " + ", ".join(null_names))
