"""What the admin APIs have in common: how a change is made, and how its failure is told.

Any broker carries out admin requests itself, by compare-and-set on the metastore. Somebody else may have changed the
same rows meanwhile; then the broker catches up, looks again and decides again, a bounded number of times. Before it
answers "done" it catches up once more, so that a client that asks it next sees the change.

**With the metastore away** the outcome is unknown, and the client should try again. NOT_CONTROLLER makes Java's client
and kafka-python do so by themselves. REQUEST_TIMED_OUT must not be the answer to CreateTopics, DeleteTopics and
CreatePartitions: librdkafka takes it for success, because Kafka once said so when it had begun but not finished. It is
right for the others, whose clients leave retrying to their user.
"""

from __future__ import annotations

import asyncio
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sexton.cluster.topics import check_topic_name
from sexton.ports.metastore import BrokerRow, BrokerStatus, MetastoreUnavailableError, PartitionRow, StaleError
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.cluster.view import ClusterView

K = TypeVar("K")
T = TypeVar("T")
Answer = dict[str, Any]

ATTEMPTS_MAX = 8
"""Each lost race means that somebody else's change went through; more than this in a row is not bad luck."""

ROWS_MAX = 500
"""In one transaction: a larger one would keep others waiting."""

METADATA_TOPIC = "__cluster_metadata"

NO_AUTHORIZED_OPERATIONS = -(2**31)
"""What Kafka says when nobody asked."""
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Every operation there is on a topic, on the cluster (Kafka's numbers): with no access rules, all are allowed."""


async def make_change(broker: Broker, attempt: Callable[[], Awaitable[T]], if_away: ErrorCode) -> T:
    """Runs `attempt`, which decides by the view and writes, until it is not too late; then all brokers are told."""
    for _ in range(ATTEMPTS_MAX):
        try:
            try:
                result = await attempt()
            except StaleError:
                await broker.catch_up()
                continue
        except MetastoreUnavailableError as error:
            raise KafkaError(if_away, f"The metastore does not answer ({error}). Try again") from error
        await catch_up_if_possible(broker)
        await broker.news.tell()
        return result
    raise KafkaError(if_away, "Others kept changing the same thing. Try again")


class PlannedRow(NamedTuple):
    """A row to write."""

    row: PartitionRow
    relied_on: Mapping[int, int] = MappingProxyType({})
    """The processes (broker epochs) that must be the registered ones: they have answered just now, and whoever starts
    again may have lost what it held."""


async def update_rows(
    broker: Broker, plans: Mapping[K, Callable[[], PlannedRow | None]], if_away: ErrorCode
) -> dict[K, KafkaError | None]:
    """Changes many partitions, each as its plan says: a row to write, None if there is nothing to do, or KafkaError.

    Rows go in few transactions. What lost a race is planned again. Each plan's outcome is None or its error."""
    outcomes: dict[K, KafkaError | None] = {}
    for _ in range(ATTEMPTS_MAX):
        together: dict[tuple[tuple[int, int], ...], list[tuple[K, PartitionRow]]] = {}
        for key, plan in plans.items():
            if key not in outcomes:
                try:
                    planned = plan()
                except KafkaError as error:
                    outcomes[key] = error
                    continue
                if planned is None:
                    outcomes[key] = None
                else:
                    together.setdefault(tuple(planned.relied_on.items()), []).append((key, planned.row))
        try:
            for processes, rows in together.items():
                for start in range(0, len(rows), ROWS_MAX):
                    batch = rows[start : start + ROWS_MAX]
                    try:
                        stored = await broker.metastore.update_partitions([row for _, row in batch], dict(processes))
                    except StaleError:
                        break  # one of the processes is gone: those that rest on it are planned anew
                    outcomes.update((key, None) for (key, _), row in zip(batch, stored, strict=True) if row is not None)
            if together:
                await broker.catch_up()
                await broker.news.tell()
        except MetastoreUnavailableError as error:
            away = KafkaError(if_away, f"The metastore does not answer ({error}). Try again")
            return {key: outcomes.get(key, away) for key in plans}
        if len(outcomes) == len(plans):
            return {key: outcomes[key] for key in plans}
    lost = KafkaError(if_away, "Others kept changing the same thing. Try again")
    return {key: outcomes.get(key, lost) for key in plans}


async def catch_up_if_possible(broker: Broker) -> None:
    """After a change that was made: that the metastore has gone away since does not make it undone."""
    with suppress(MetastoreUnavailableError):
        await broker.catch_up()


def failure(error: KafkaError) -> Answer:
    return {"error_code": error.code, "error_message": error.message or None}


SUCCESS: Answer = {"error_code": ErrorCode.none, "error_message": None}


def told(error: KafkaError | None) -> Answer:
    return SUCCESS if error is None else failure(error)


async def outcome(change: Awaitable[object]) -> Answer:
    """The error fields that Kafka's admin answers end with."""
    try:
        await change
    except KafkaError as error:
        return failure(error)
    return SUCCESS


def repeated(names: Iterable[T]) -> frozenset[T]:
    """Those that occur more than once."""
    seen: set[T] = set()
    twice: set[T] = set()
    for name in names:
        (twice if name in seen else seen).add(name)
    return frozenset(twice)


def is_valid_topic_name(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def cluster_id_text(cluster_id: uuid.UUID) -> str:
    """As Kafka writes ids: URL-safe base64 without padding."""
    return urlsafe_b64encode(cluster_id.bytes).decode().rstrip("=")


def is_serving(row: BrokerRow | None) -> bool:
    """Whether clients can be sent to it: it has joined, and has not left."""
    return row is not None and row.status in (BrokerStatus.ACTIVE, BrokerStatus.DRAINING)


def serving_brokers(view: ClusterView) -> list[BrokerRow]:
    return [row for row in view.live_brokers() if is_serving(row)]


def serving_ids(view: ClusterView) -> frozenset[int]:
    return frozenset(row.broker_id for row in serving_brokers(view))


def controller_id(broker: Broker) -> int:
    """Any broker does what a controller is asked to do, so each names itself: nothing depends on one of them."""
    own = broker.config.node_id
    serving = [row.broker_id for row in serving_brokers(broker.view)]
    return own if own in serving or not serving else serving[0]


async def before_deadline(broker: Broker, condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Polls until the condition holds. False if it did not within the time."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while not condition():
                await asyncio.sleep(POLL_MS / 1000)
                await catch_up_if_possible(broker)
    except TimeoutError:
        return condition()
    return True


POLL_MS = 50
"""While a client waits for partitions to have leaders."""
