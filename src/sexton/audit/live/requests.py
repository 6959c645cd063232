"""The requests that an audit sends to brokers, all of them, and what must be true of each. Pure.

None changes anything. A Fetch names no session (epoch -1), so nobody's is evicted, and never a replica id of a broker:
to a leader that would be that follower, and move what it believes of it.

Which Fetch a follower answers: since Kafka 2.4 it is the version that decides. A consumer's (id -1) is served by any
replica from version 11 on, whatever rack it names; before, only a debugging consumer's (id -2) is. Kafka 2.3 has
version 11, too, and serves no consumers with it: so what counts is whether a broker has the requests that came with
2.4. Some other systems serve followers only to who names a rack (Redpanda); a rack that no broker has makes no leader
send us elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sexton.client import apis
from sexton.client.apis import Api
from sexton.types import TopicPartition

RACK: Final = "sexton-audit"
CLIENT_ID: Final = "sexton-audit"

CONSUMER: Final = -1
DEBUGGING_CONSUMER: Final = -2
"""Replica ids. Those of brokers are not negative."""

NO_SESSION_EPOCH: Final = -1

FETCH_OF_ANY_REPLICA: Final = Api(1, "Fetch", 11, 12)
"""Version 13 names topics by id."""
FETCH_AS_DEBUGGER: Final = Api(1, "Fetch", 4, 10)
SINCE_2_4: Final = (apis.ALTER_PARTITION_REASSIGNMENTS, Api(47, "OffsetDelete", 0, 0))
"""A broker that has one of them serves consumers from its followers."""
LIST_TRANSACTIONS: Final = apis.LIST_TRANSACTIONS
DESCRIBE_LOG_DIRS: Final = Api(35, "DescribeLogDirs", 1, 4)

ALLOWED: Final = frozenset(
    api.key
    for api in (
        apis.API_VERSIONS,
        apis.METADATA,
        apis.DESCRIBE_CLUSTER,
        apis.DESCRIBE_CONFIGS,
        apis.LIST_OFFSETS,
        apis.FETCH,
        apis.DESCRIBE_PRODUCERS,
        LIST_TRANSACTIONS,
        DESCRIBE_LOG_DIRS,
        apis.SASL_HANDSHAKE,
        apis.SASL_AUTHENTICATE,
    )
)
"""API keys. ListTransactions says which producers a coordinator knows; FindCoordinator and DescribeTransactions would
say it, too, but the former may create an internal topic."""


class FetchAs(NamedTuple):
    """How to ask a broker for what any of its replicas holds."""

    api: Api
    replica_id: int


def fetch_as(serves_consumers: bool) -> FetchAs:
    if serves_consumers:
        return FetchAs(FETCH_OF_ANY_REPLICA, CONSUMER)
    return FetchAs(FETCH_AS_DEBUGGER, DEBUGGING_CONSUMER)


def fetch_from_leader() -> FetchAs:
    return FetchAs(apis.FETCH, CONSUMER)


def fetch_body(
    offsets: Mapping[TopicPartition, int], replica_id: int, isolation: int, max_bytes: int, wait_ms: int = 0
) -> dict[str, Any]:
    """The broker responds at once, with what there is, unless it is to wait for more."""
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        topics.setdefault(topic, []).append(part)
    return {
        "replica_id": replica_id,
        "max_wait": wait_ms,
        "min_bytes": min(1, wait_ms),
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": NO_SESSION_EPOCH,
        "topics": [{"topic": topic, "partitions": parts} for topic, parts in topics.items()],
        "rack_id": RACK,
    }


def list_offsets_body(places: Iterable[TopicPartition], timestamp: int) -> dict[str, Any]:
    """Answered by any replica, for itself, in all versions: a debugging consumer asks."""
    topics: dict[str, list[dict[str, int]]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append({"partition_index": partition, "timestamp": timestamp})
    return {
        "replica_id": DEBUGGING_CONSUMER,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
    }


def partitions_body(places: Iterable[TopicPartition], topic_field: str, partitions_field: str) -> dict[str, Any]:
    """For DescribeProducers and DescribeLogDirs, which name the same things differently."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return {"topics": [{topic_field: topic, partitions_field: parts} for topic, parts in topics.items()]}
