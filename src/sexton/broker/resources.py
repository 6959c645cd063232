"""The resources that can have configs, and how a change of their configs is validated and written.

Used by DescribeConfigs, AlterConfigs and IncrementalAlterConfigs. A change is validated as a whole: all configs that
the resource would have afterwards must be valid together, or nothing changes, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from sexton.broker.admin import make_change
from sexton.broker.topics import check_may_move, mark_store
from sexton.metadata.topics import check_topic_name
from sexton.ports.cloud import CLOUD, STORAGE_MODE
from sexton.ports.metastore import ConfigScope
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.checks import (
    MIN_INSYNC,
    broker_setting,
    check_broker,
    check_group,
    check_min_insync,
    check_movable,
    check_storage_mode,
    check_topic,
    group_setting,
    topic_setting,
)
from sexton.settings.layers import with_overrides
from sexton.settings.schema import BadSettingError, Kind, Setting
from sexton.types import INT32_MAX

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

Settings = Mapping[str, str]


class ResourceType(IntEnum):
    """Kafka's numbers. Types that have no configs in Sexton are here for the error message."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Resource(NamedTuple):
    scope: ConfigScope
    name: str

    @property
    def is_for_all_brokers(self) -> bool:
        return self.scope is ConfigScope.BROKER and not self.name


_SCOPES = {
    ResourceType.TOPIC: ConfigScope.TOPIC,
    ResourceType.BROKER: ConfigScope.BROKER,
    ResourceType.GROUP: ConfigScope.GROUP,
}

_SETTING_OF: dict[ConfigScope, Callable[[str], Setting]] = {
    ConfigScope.TOPIC: topic_setting,
    ConfigScope.BROKER: broker_setting,
    ConfigScope.GROUP: group_setting,
}


def resource_of(broker: Broker, resource_type: int, name: str) -> Resource:
    """Returns the resource that a request names. Raises INVALID_REQUEST if it cannot have configs, or not at this
    broker."""
    if resource_type not in _SCOPES:
        known = {int(member): member for member in ResourceType}
        called = known[resource_type].name if resource_type in known else resource_type
        raise KafkaError(ErrorCode.invalid_request, f"Unknown resource type {called}: there is nothing to set")
    scope = _SCOPES[ResourceType(resource_type)]
    if scope is ConfigScope.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        check_topic_name(name)
    elif scope is ConfigScope.GROUP:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
    elif name:
        _check_broker_name(broker, name)
    return Resource(scope, name)


def _check_broker_name(broker: Broker, name: str) -> None:
    own = broker.config.node_id
    if not name.isascii() or not name.isdigit():
        raise KafkaError(ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}")
    if int(name) != own:
        raise KafkaError(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {own} or empty string, but received {name}"
        )


def current_settings(broker: Broker, resource: Resource) -> Settings:
    if resource.scope is ConfigScope.TOPIC and broker.view.topic(resource.name) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{resource.name}' does not exist.")
    return broker.view.settings_of(resource.scope, resource.name)


async def change_settings(
    broker: Broker, resource: Resource, change: Callable[[Settings], Settings], *, validate_only: bool
) -> None:
    """Replaces a resource's configs by what `change` returns for them. `change` is called again if another broker
    changed them meanwhile."""

    async def attempt() -> None:
        before = current_settings(broker, resource)
        after = change(before)
        _check(broker, resource, before, after)
        changes: dict[str, str | None] = {name: after.get(name) for name in (*before, *after)}
        changes = {name: text for name, text in changes.items() if before.get(name) != text}
        if resource.scope is ConfigScope.TOPIC and changes.get(STORAGE_MODE) == CLOUD:
            check_may_move(broker, resource.name)
            if not validate_only:
                await mark_store(broker)
        if changes and not validate_only:
            await broker.metastore.change_settings(resource.scope, resource.name, changes, before)

    if validate_only:
        await attempt()
    else:
        await make_change(broker, attempt, ErrorCode.request_timed_out)


def _check(broker: Broker, resource: Resource, before: Settings, settings: Settings) -> None:
    """As in Kafka, invalid configs of a broker are an INVALID_REQUEST, others an INVALID_CONFIG."""
    view, static, own = broker.view, broker.config.static, broker.config.node_id
    try:
        if resource.scope is ConfigScope.TOPIC:
            check_storage_mode(before, settings)
            check_topic(view, static, own, settings, before)
            if settings.get(STORAGE_MODE) == CLOUD != before.get(STORAGE_MODE):
                check_movable(with_overrides(view, static, own, settings))
            if settings.get(MIN_INSYNC) != before.get(MIN_INSYNC):
                check_min_insync(settings, _replicas_count(broker, resource.name))
        elif resource.scope is ConfigScope.GROUP:
            check_group(view, static, own, settings)
        else:
            check_broker(view, static, own, settings)
    except BadSettingError as error:
        is_broker = resource.scope is ConfigScope.BROKER
        raise KafkaError(ErrorCode.invalid_request if is_broker else ErrorCode.invalid_config, str(error)) from error


def _replicas_count(broker: Broker, topic: str) -> int:
    """Returns the smallest number of replicas of the topic's partitions, counted as after the reassignments in
    progress."""
    row = broker.view.topic(topic)
    rows = broker.view.partitions_of(row.topic_id) if row is not None else []
    return min((len(set(row.replicas) - set(row.removing)) for row in rows), default=INT32_MAX)


def apply_operation(resource: Resource, settings: dict[str, str], name: str, operation: int, text: str | None) -> None:
    """Applies one operation of IncrementalAlterConfigs to a copy of the configs. APPEND and SUBTRACT act on the
    elements of a list."""
    if operation == Operation.DELETE:
        settings.pop(name, None)
        return
    assert text is not None, "the API module refuses null before it comes here"
    if operation == Operation.SET:
        settings[name] = text
        return
    parts = _parts_of(resource, settings.get(name), name, Operation(operation))
    for part in text.split(","):
        if operation == Operation.APPEND and part not in parts:
            parts.append(part)
        elif operation == Operation.SUBTRACT and part in parts:
            parts.remove(part)
    settings[name] = ",".join(parts)


def _parts_of(resource: Resource, text: str | None, name: str, operation: Operation) -> list[str]:
    """Returns the elements of the value that is set, or else of the default."""
    try:
        setting = _SETTING_OF[resource.scope](name)
    except BadSettingError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from error
    if setting.kind is not Kind.LIST:
        raise KafkaError(
            ErrorCode.invalid_config, f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    if text is None:
        text = setting.text_of(setting.default) or ""
    return [part for part in text.split(",") if part]
