"""Which topics an audit looks at: those that are compacted, unless it is told otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sexton.audit.live.errors import NothingMatchesError, no_permission
from sexton.audit.pattern import compile_pattern
from sexton.client import apis
from sexton.client.admin import Resource
from sexton.client.client import Client
from sexton.client.errors import check
from sexton.client.metadata import TopicInfo
from sexton.protocol.errors import ErrorCode

CLEANUP_POLICY: Final = "cleanup.policy"
STORAGE_MODE: Final = "storage.mode"
"""A topic setting of Sexton's: its cloud topics lie in an object store, once."""

TOPICS_MAX: Final = 100
"""Largest number of topics in one request."""

LITERAL: Final = re.compile(r"[A-Za-z0-9._-]+")
"""Dots match anything in a pattern, and are in many names: a pattern without anything else is taken for a name, too."""


@dataclass(frozen=True, slots=True)
class Scope:
    pattern: str = ""
    """Of whole names (`audit.pattern`). Empty: all compacted topics that are not internal."""
    takes_all: bool = False
    """Also topics that are not compacted."""

    def matcher(self) -> Callable[[TopicInfo], bool]:
        """Raises BadPatternError."""
        if not self.pattern:
            return lambda topic: not topic.is_internal
        matches = compile_pattern(self.pattern)
        return lambda topic: matches(topic.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Topics that are named, not described: `orders|users` names two. A cluster does not list what we may not
        see, but answers if asked by name."""
        parts = self.pattern.split("|")
        return tuple(parts) if all(LITERAL.fullmatch(part) for part in parts) else ()


@dataclass(frozen=True, slots=True)
class Found:
    topics: tuple[TopicInfo, ...]
    single_copies: Mapping[str, str]
    """Topics of which there is nothing to compare, and why."""


async def find_topics(client: Client, scope: Scope) -> Found:
    """Raises NoPermissionError, NothingMatchesError and BadPatternError."""
    matches = scope.matcher()
    metadata = await client.refresh(None)
    missing = [name for name in scope.names if name not in metadata.topics]
    if missing:
        metadata = await client.refresh(missing)
        for name in missing:
            if metadata.errors.get(name) == ErrorCode.topic_authorization_failed:
                raise no_permission("Describe", name)
    topics = [topic for topic in metadata.topics.values() if matches(topic)]
    settings = await _settings(client, [topic.name for topic in topics])
    chosen = [topic for topic in topics if scope.takes_all or _is_compacted(topic.name, scope, settings)]
    if not chosen:
        raise _nothing(scope, topics, settings)
    return Found(tuple(sorted(chosen, key=lambda topic: topic.name)), _single_copies(chosen, settings))


def _is_compacted(name: str, scope: Scope, settings: Mapping[str, Mapping[str, str] | None]) -> bool:
    """A topic whose settings we may not see is looked at if it was asked for by name."""
    known = settings.get(name)
    return name in scope.names if known is None else "compact" in known.get(CLEANUP_POLICY, "")


def _single_copies(topics: Sequence[TopicInfo], settings: Mapping[str, Mapping[str, str] | None]) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic in topics:
        if (settings.get(topic.name) or {}).get(STORAGE_MODE) == "cloud":
            found[topic.name] = "a cloud topic is in the object store, once: there is nothing to compare"
        elif all(len(partition.replicas) < 2 for partition in topic.partitions.values()):
            found[topic.name] = "it has one replica: there is nothing to compare"
    return found


def _nothing(scope: Scope, topics: Sequence[TopicInfo], settings: Mapping[str, Mapping[str, str] | None]) -> Exception:
    hidden = [name for name, known in settings.items() if known is None]
    if hidden:
        remedy = "Name topics with --topic a|b, take all with --all, or grant DescribeConfigs on topics"
        what = f"no permission to see which of {len(hidden):,} topics are compacted (DescribeConfigs)"
        return NothingMatchesError(what, "", remedy)
    if topics and scope.pattern:
        what = f"none of the {len(topics):,} topics that match is compacted"
        return NothingMatchesError(what, scope.pattern, "--all looks at topics that are not compacted, too")
    if scope.pattern:
        return NothingMatchesError("no topic has a name like this", scope.pattern, "The pattern is of whole names")
    return NothingMatchesError("the cluster has no compacted topic", "", "--all looks at others, too")


async def _settings(client: Client, names: Sequence[str]) -> dict[str, dict[str, str] | None]:
    """Of each topic, what we need to know; None if we may not see it."""
    found: dict[str, dict[str, str] | None] = {}
    for start in range(0, len(names), TOPICS_MAX):
        found |= await client.retry(partial(_settings_of, client, names[start : start + TOPICS_MAX]))
    return found


async def _settings_of(client: Client, names: Sequence[str]) -> dict[str, dict[str, str] | None]:
    resources: list[dict[str, Any]] = [
        {"resource_type": Resource.TOPIC, "resource_name": name, "configuration_keys": [CLEANUP_POLICY, STORAGE_MODE]}
        for name in names
    ]
    answer = await (await client.any_peer()).call(apis.DESCRIBE_CONFIGS, {"resources": resources})
    found: dict[str, dict[str, str] | None] = {}
    for result in answer.results:
        if result.error_code == ErrorCode.topic_authorization_failed:
            found[result.resource_name] = None
            continue
        check(result.error_code, result.resource_name, result.error_message)
        found[result.resource_name] = {each.name: each.value or "" for each in result.configs}
    return found
