"""Administration: topics, configs, partitions, the cluster. Any broker carries these requests out.

Requests that are not idempotent (creating a topic, deleting one) are not retried after a lost connection:
ConnectionLostError then says that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sexton.client import apis
from sexton.client.client import Client, Peer
from sexton.client.errors import RefusedError, check, refusal
from sexton.protocol.errors import ErrorCode
from sexton.settings.layers import ConfigSource
from sexton.types import TopicPartition

BROKER_DEFAULT = -1
"""As a number of partitions or replicas: the brokers' configured default."""


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class LogSize:
    broker_id: int
    directory: str
    topic: str
    partition: int
    size_bytes: int
    lag: int


@dataclass(frozen=True, slots=True)
class LogDirectory:
    broker_id: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    logs: tuple[LogSize, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Admin:
    def __init__(self, client: Client) -> None:
        self.client = client
        self._must_be_controller = False
        """Before Kafka 2.8 brokers do not pass on to the controller what only that may do."""

    async def _ask(
        self,
        api: apis.Api,
        body: Mapping[str, Any],
        verify: Callable[[Any], None],
        *,
        broker_id: int | None = None,
        is_repeatable: bool = True,
    ) -> Any:
        """Sends a request to any broker, or to a certain one, and returns the response. `verify` raises the error in a
        response; if it is retriable (a topic that this broker does not know yet), the request is retried."""

        async def attempt() -> Any:
            peer = await (self._peer() if broker_id is None else self.client.peer(broker_id))
            answer = await peer.call(api, body)
            try:
                verify(answer)
            except RefusedError as error:
                self._must_be_controller |= error.code == ErrorCode.not_controller
                raise
            return answer

        return await self.client.retry(attempt, is_repeatable=is_repeatable)

    async def _peer(self) -> Peer:
        if not self._must_be_controller:
            return await self.client.any_peer()
        controller_id = (await self.client.refresh(())).controller_id
        return await self.client.peer(controller_id)

    # Topics

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        replicas: int = BROKER_DEFAULT,
        settings: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> tuple[int, int]:
        """Returns (partitions, replication factor) as created. `assignment` gives each partition its brokers
        instead."""
        assigned = [{"partition_index": index, "broker_ids": list(ids)} for index, ids in enumerate(assignment or ())]
        topic = {
            "name": name,
            "num_partitions": BROKER_DEFAULT if assigned else partitions,
            "replication_factor": BROKER_DEFAULT if assigned else replicas,
            "assignments": assigned,
            "configs": [{"name": each, "value": value} for each, value in (settings or {}).items()],
        }
        body = {"topics": [topic], "timeout": self.client.timeout_ms, "validate_only": validate_only}

        def verify(answer: Any) -> None:
            check(answer.topics[0].error_code, name, answer.topics[0].error_message)

        response = (await self._ask(apis.CREATE_TOPICS, body, verify, is_repeatable=False)).topics[0]
        return getattr(response, "num_partitions", partitions), getattr(response, "replication_factor", replicas)

    async def delete_topic(self, name: str) -> None:
        body = {"topics": [{"name": name, "topic_id": None}], "timeout": self.client.timeout_ms}

        def verify(answer: Any) -> None:
            check(answer.responses[0].error_code, name, answer.responses[0].error_message)

        await self._ask(apis.DELETE_TOPICS, body, verify, is_repeatable=False)

    async def create_partitions(self, name: str, count: int) -> None:
        """Increases the number of partitions to `count`."""
        topic = {"name": name, "count": count, "assignments": None}
        body = {"topics": [topic], "timeout": self.client.timeout_ms, "validate_only": False}

        def verify(answer: Any) -> None:
            check(answer.results[0].error_code, name, answer.results[0].error_message)

        await self._ask(apis.CREATE_PARTITIONS, body, verify, is_repeatable=False)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Deletes all records below an offset (-1: the high watermark). Returns the new log start of each partition."""
        starts: dict[TopicPartition, int] = {}
        for place, offset in before.items():
            starts[place] = await self._delete_records_of(place, offset)
        return starts

    async def _delete_records_of(self, place: TopicPartition, offset: int) -> int:
        topics = [{"name": place[0], "partitions": [{"partition_index": place[1], "offset": offset}]}]

        async def attempt() -> int:
            peer = await self.client.leader(*place)
            answer = await peer.call(apis.DELETE_RECORDS, {"topics": topics, "timeout": self.client.timeout_ms})
            part = answer.topics[0].partitions[0]
            check(part.error_code, f"{place[0]}-{place[1]}")
            return int(part.low_watermark)

        return await self.client.retry(attempt)

    # Replicas

    async def elect_leaders(
        self, places: Sequence[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, RefusedError | None]:
        """Makes the preferred replica of each partition (None: of all) the leader. The result is None where that
        succeeded, else the error."""
        grouped = None if places is None else [{"topic": name, "partitions": ids} for name, ids in by_topic(places)]
        body = {"election_type": int(unclean), "topic_partitions": grouped, "timeout": self.client.timeout_ms}

        def verify(answer: Any) -> None:
            check(answer.error_code, "election")

        answer = await self._ask(apis.ELECT_LEADERS, body, verify)
        results: dict[TopicPartition, RefusedError | None] = {}
        for topic in answer.replica_election_results:
            for part in topic.partition_result:
                place = f"{topic.topic}-{part.partition_id}"
                is_fine = part.error_code == ErrorCode.none
                failure = None if is_fine else refusal(part.error_code, place, part.error_message)
                results[(topic.topic, part.partition_id)] = failure
        return results

    async def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Starts moving replicas; None cancels a reassignment in progress. Raises the first error."""
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": each, "replicas": targets[(name, each)]} for each in partitions],
            }
            for name, partitions in by_topic(list(targets))
        ]

        def verify(answer: Any) -> None:
            check(answer.error_code, "reassignment", answer.error_message)
            for topic in answer.responses:
                for part in topic.partitions:
                    check(part.error_code, f"{topic.name}-{part.partition_index}", part.error_message)

        body = {"timeout": self.client.timeout_ms, "topics": topics}
        await self._ask(apis.ALTER_PARTITION_REASSIGNMENTS, body, verify)

    async def list_reassignments(self) -> list[Reassignment]:
        body = {"timeout": self.client.timeout_ms, "topics": None}

        def verify(answer: Any) -> None:
            check(answer.error_code, "reassignments", answer.error_message)

        answer = await self._ask(apis.LIST_PARTITION_REASSIGNMENTS, body, verify)
        return [
            Reassignment(
                topic.name,
                part.partition_index,
                tuple(part.replicas),
                tuple(part.adding_replicas),
                tuple(part.removing_replicas),
            )
            for topic in answer.topics
            for part in topic.partitions
        ]

    async def log_directories(self, broker_id: int, topics: Sequence[str] | None = None) -> list[LogDirectory]:
        wanted = None
        if topics is not None:
            metadata = await self.client.refresh(topics)
            known = [metadata.topics[name] for name in topics if name in metadata.topics]
            wanted = [{"topic": info.name, "partitions": list(info.partitions)} for info in known]

        def verify(answer: Any) -> None:
            check(answer.error_code, f"broker {broker_id}")

        answer = await self._ask(apis.DESCRIBE_LOG_DIRS, {"topics": wanted}, verify, broker_id=broker_id)
        return [_log_directory(broker_id, response) for response in answer.results]

    # Configs

    async def settings(self, resource: Resource, name: str) -> list[Setting]:
        """Returns all configs of a topic, a broker (empty name: the cluster's defaults) or a group."""
        wanted = {"resource_type": int(resource), "resource_name": name, "configuration_keys": None}
        body = {"resources": [wanted], "include_synonyms": False, "include_documentation": True}

        def verify(answer: Any) -> None:
            check(answer.results[0].error_code, name or "cluster", answer.results[0].error_message)

        owner = int(name) if resource is Resource.BROKER and name else None
        response = (await self._ask(apis.DESCRIBE_CONFIGS, body, verify, broker_id=owner)).results[0]
        return [
            Setting(
                name=each.name,
                value=each.value,
                source=ConfigSource(each.config_source) if each.config_source in _SOURCES else ConfigSource.UNKNOWN,
                is_read_only=each.read_only,
                is_sensitive=each.is_sensitive,
                documentation=getattr(each, "documentation", None),
            )
            for each in sorted(response.configs, key=lambda each: str(each.name))
        ]

    async def change_settings(self, resource: Resource, name: str, changes: Mapping[str, str | None]) -> None:
        """Changes configs. None deletes a config, so that the default applies again."""
        configs = [
            {"name": each, "config_operation": _DELETE if value is None else _SET, "value": value}
            for each, value in changes.items()
        ]
        wanted = {"resource_type": int(resource), "resource_name": name, "configs": configs}

        def verify(answer: Any) -> None:
            check(answer.responses[0].error_code, name or "cluster", answer.responses[0].error_message)

        owner = int(name) if resource is Resource.BROKER and name else None
        body = {"resources": [wanted], "validate_only": False}
        await self._ask(apis.INCREMENTAL_ALTER_CONFIGS, body, verify, broker_id=owner)

    # The cluster

    async def cluster(self) -> Any:
        """Returns the DescribeCluster response: cluster_id, controller_id, brokers."""

        def verify(answer: Any) -> None:
            check(answer.error_code, "cluster", answer.error_message)

        return await self._ask(apis.DESCRIBE_CLUSTER, {}, verify)


_SET, _DELETE = 0, 1
_SOURCES = frozenset(int(source) for source in ConfigSource)


def by_topic(places: Sequence[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _log_directory(broker_id: int, response: Any) -> LogDirectory:
    logs = tuple(
        LogSize(
            broker_id=broker_id,
            directory=response.log_dir,
            topic=topic.name,
            partition=part.partition_index,
            size_bytes=part.partition_size,
            lag=part.offset_lag,
        )
        for topic in response.topics
        for part in topic.partitions
    )
    error = None if response.error_code == ErrorCode.none else refusal(response.error_code, response.log_dir).what
    return LogDirectory(
        broker_id=broker_id,
        path=response.log_dir,
        error=error,
        total_bytes=response.total_bytes,
        usable_bytes=response.usable_bytes,
        logs=logs,
    )
