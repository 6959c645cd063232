"""The topic that a copy goes to: made like its source. Settings that would change what is copied are left for later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sexton.client.admin import Admin, Resource
from sexton.client.client import Client
from sexton.protocol.errors import ErrorCode
from sexton.settings.layers import ConfigSource
from sexton.topics.finding import TopicLog

TIMESTAMP_TYPE: Final = "message.timestamp.type"
LATER: Final = frozenset(
    {
        TIMESTAMP_TYPE,
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.difference.max.ms",
    }
)
"""They would stamp old records anew, or refuse them."""

BATCH_BYTES: Final = 500_000
"""Half of what brokers take by default, because only an estimate is made of what compression does."""


async def exists(client: Client, name: str) -> bool:
    metadata = await client.refresh([name])
    return name in metadata.topics or metadata.errors.get(name) not in (
        None,
        ErrorCode.unknown_topic_or_partition,
    )


async def make(
    client: Client, source: TopicLog, name: str, partitions: int, replicas: int | None, more: Mapping[str, str]
) -> None:
    settings = {each: value for each, value in source.own_settings.items() if each not in LATER}
    settings |= {each: value for each, value in more.items() if each not in LATER}
    known = (source.settings or {}).get(TIMESTAMP_TYPE)
    if known is not None and known.value == "LogAppendTime":
        settings[TIMESTAMP_TYPE] = "CreateTime"
    await Admin(client).create_topic(name, partitions, replicas or source.replica_count, settings)


async def make_ready(client: Client, target: TopicLog) -> None:
    """Records keep their own times while they are copied."""
    known = (target.settings or {}).get(TIMESTAMP_TYPE)
    if known is not None and known.value == "LogAppendTime":
        await Admin(client).change_settings(Resource.TOPIC, target.name, {TIMESTAMP_TYPE: "CreateTime"})


async def finish(client: Client, source: TopicLog, target: str, more: Mapping[str, str]) -> None:
    """What was left for later. What is the same already is not set again."""
    wanted = {**source.own_settings, **more}
    known = {each.name: each for each in await Admin(client).settings(Resource.TOPIC, target)}
    changes: dict[str, str | None] = {}
    for name in LATER & set(known):
        is_own = known[name].source is ConfigSource.TOPIC
        if name in wanted and known[name].value != wanted[name]:
            changes[name] = wanted[name]
        elif name == TIMESTAMP_TYPE and name not in wanted and is_own:
            changes[name] = None
    if changes:
        await Admin(client).change_settings(Resource.TOPIC, target, changes)


def batch_bytes(target: TopicLog) -> int:
    known = (target.settings or {}).get("max.message.bytes")
    limit = int(known.value) if known is not None and known.value else 2 * BATCH_BYTES
    return max(1, min(BATCH_BYTES, limit // 2))
