"""DescribeConfigs, versions 1 to 4: configs of topics, brokers and groups, with the source of each value.

A broker describes its own configs, and, under the empty name, the dynamic defaults for all brokers. Synonyms and
documentation are included on request. Without a list of names, all configs are described.

Deviations from Kafka: there are no broker loggers to set at run time (INVALID_REQUEST), and no client metrics.
Documentation is Sexton's own. `metastore.url` is sensitive, so its value is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.admin import failure
from sexton.broker.resources import Resource, current_settings, resource_of
from sexton.ports.metastore import ConfigScope
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.layers import Resolved, describe_broker, describe_cluster_default, describe_group, describe_topic
from sexton.settings.schema import Update

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 32
VERSIONS = (1, 4)


def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    with_synonyms = body.include_synonyms
    with_docs = getattr(body, "include_documentation", False)
    return {"results": [_describe(broker, resource, with_synonyms, with_docs) for resource in body.resources]}


def _describe(broker: Broker, asked: Any, with_synonyms: bool, with_docs: bool) -> Body:
    place = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
    try:
        found = _settings_of(broker, resource_of(broker, asked.resource_type, asked.resource_name))
    except KafkaError as error:
        return {**failure(error), **place, "configs": []}
    if asked.configuration_keys:
        wanted = frozenset(asked.configuration_keys)
        found = [resolved for resolved in found if resolved.setting.name in wanted]
    configs = [_entry(resolved, with_synonyms, with_docs) for resolved in found]
    return {"error_code": ErrorCode.none, **place, "configs": configs}


def _settings_of(broker: Broker, resource: Resource) -> list[Resolved]:
    view, static, own = broker.view, broker.config.static, broker.config.node_id
    if resource.scope is ConfigScope.TOPIC:
        return describe_topic(view, static, own, current_settings(broker, resource))
    if resource.scope is ConfigScope.GROUP:
        return describe_group(view, static, own, resource.name)
    if resource.is_for_all_brokers:
        return describe_cluster_default(view)
    return describe_broker(view, static, own)


def _entry(resolved: Resolved, with_synonyms: bool, with_docs: bool) -> Body:
    setting = resolved.setting
    synonyms = resolved.candidates if with_synonyms else ()
    return {
        "name": setting.name,
        "value": resolved.value,
        "read_only": setting.update is Update.READ_ONLY,
        "config_source": resolved.source,
        "is_sensitive": setting.is_sensitive,
        "synonyms": [{"name": c.name, "value": c.value, "source": c.source} for c in synonyms],
        "config_type": setting.kind,
        "documentation": setting.doc if with_docs else None,
    }
