"""A client's cached metadata: brokers, topics, leaders. Pure: takes a response, returns a newer view."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sexton.protocol.errors import ErrorCode

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class Metadata:
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)
    """Errors of topics in the last response."""

    def leader(self, topic: str, partition: int) -> PartitionInfo | None:
        known = self.topics.get(topic)
        return known.partitions.get(partition) if known is not None else None

    def merged(self, answer: Any, *, is_complete: bool) -> Metadata:
        """Merges a Metadata response; `is_complete` if the request was for all topics.

        A broker that lags behind may return an older leader than is known already: of the same topic (by id) the
        partition with the higher leader epoch is kept.
        """
        topics = {} if is_complete else dict(self.topics)
        errors: dict[str, ErrorCode] = {}
        for response in answer.topics:
            if response.error_code != ErrorCode.none:
                topics.pop(response.name, None)
                errors[response.name] = ErrorCode(response.error_code)
            else:
                topics[response.name] = _newer(self.topics.get(response.name), _topic(response))
        brokers = {each.node_id: BrokerInfo(each.node_id, each.host, each.port, each.rack) for each in answer.brokers}
        return Metadata(answer.cluster_id, answer.controller_id, brokers, topics, errors)


def _topic(response: Any) -> TopicInfo:
    partitions = {
        each.partition_index: PartitionInfo(
            partition=each.partition_index,
            leader=each.leader_id,
            leader_epoch=each.leader_epoch,
            replicas=tuple(each.replica_nodes),
            isr=tuple(each.isr_nodes),
            offline=tuple(each.offline_replicas),
        )
        for each in sorted(response.partitions, key=lambda each: int(each.partition_index))
    }
    return TopicInfo(response.name, getattr(response, "topic_id", None), response.is_internal, partitions)


def _newer(known: TopicInfo | None, response: TopicInfo) -> TopicInfo:
    if known is None or known.topic_id != response.topic_id:
        return response
    partitions = dict(response.partitions)
    for number, before in known.partitions.items():
        now = partitions.get(number)
        if now is None or before.leader_epoch > now.leader_epoch:
            partitions[number] = before
    return TopicInfo(response.name, response.topic_id, response.is_internal, partitions)
