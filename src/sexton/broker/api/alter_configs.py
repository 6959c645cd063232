"""AlterConfigs, versions 0 to 2: replaces all configs of topics, brokers and groups.

A config that is not named goes back to its default. Old clients still send it; newer ones use IncrementalAlterConfigs.

Deviations from Kafka: as in IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import outcome, repeated
from sexton.broker.resources import Settings, change_settings, resource_of
from sexton.ports.cloud import STORAGE_MODE
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 33
VERSIONS = (0, 2)


async def handle(broker: Broker, request: Request) -> Body:
    return await alter_each(broker, request, _replace)


async def alter_each(broker: Broker, request: Request, alter: Callable[[Broker, Any, bool], Awaitable[None]]) -> Body:
    """Calls `alter` for each resource that is named exactly once, with the request's `validate_only`."""
    asked = request.body.resources
    twice = repeated((resource.resource_type, resource.resource_name) for resource in asked)

    async def alter_one(resource: Any) -> None:
        if (resource.resource_type, resource.resource_name) in twice:
            raise KafkaError(ErrorCode.invalid_request, "Each resource must appear at most once.")
        await alter(broker, resource, request.body.validate_only)

    responses = [
        {
            **await outcome(alter_one(resource)),
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        for resource in asked
    ]
    return {"responses": responses}


async def _replace(broker: Broker, resource: Any, validate_only: bool) -> None:
    check_entries(resource.configs, [entry.name for entry in resource.configs if entry.value is None])
    target = resource_of(broker, resource.resource_type, resource.resource_name)
    settings = {entry.name: entry.value for entry in resource.configs}

    def replaced(before: Settings) -> Settings:
        """Where a topic's data is stays, though who replaces all settings may not know that there is such a one."""
        return {**{name: before[name] for name in (STORAGE_MODE,) if name in before}, **settings}

    await change_settings(broker, target, replaced, validate_only=validate_only)


def check_entries(entries: Any, null_names: list[str]) -> None:
    if repeated(entry.name for entry in entries):
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    if null_names:
        raise KafkaError(ErrorCode.invalid_request, "Null value not supported for : " + ", ".join(null_names))
