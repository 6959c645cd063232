"""Shared by the admin APIs: how a change is written to the metastore, and how a failure is reported.

Any broker carries out admin requests itself, by compare-and-set on the metastore. If another broker has changed the
same rows meanwhile, this one catches up with the metastore and plans the change again, a bounded number of times.
Before it sends a successful response it catches up once more, so that a client that asks this broker next sees the
change.

**If the metastore does not answer** the outcome is unknown, and the client should retry. NOT_CONTROLLER makes Java's
client and kafka-python do so by themselves. REQUEST_TIMED_OUT must not be the response to CreateTopics, DeleteTopics
and CreatePartitions: librdkafka takes it for success, because Kafka once returned it for an operation that had begun
but not finished. It is right for the other APIs, whose clients leave retrying to the user.
"""

from __future__ import annotations

import asyncio
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sexton.metadata.topics import check_topic_name
from sexton.ports.metastore import BrokerRow, BrokerStatus, MetastoreUnavailableError, PartitionRow, StaleError
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body
    from sexton.metadata.view import ClusterView

K = TypeVar("K")
T = TypeVar("T")

ATTEMPTS_MAX = 8
"""Give up after this many lost compare-and-set races. Each one means that another broker's change went through."""

ROWS_MAX = 500
"""Number of rows written in one metastore transaction; a larger one would keep other writers waiting."""

METADATA_TOPIC = "__cluster_metadata"

NO_AUTHORIZED_OPERATIONS = -(2**31)
"""Value of the authorized-operations fields when the request did not ask for them, as in Kafka."""
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Bit sets of all operations on a topic and on the cluster (Kafka's numbers): without ACLs, all are allowed."""


async def make_change(broker: Broker, attempt: Callable[[], Awaitable[T]], if_away: ErrorCode) -> T:
    """Runs `attempt`, which plans by the view and writes, until it loses no race; then all brokers are notified. Raises
    KafkaError with `if_away` if the metastore does not answer, or after too many lost races."""
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
    """A partition row to write."""

    row: PartitionRow
    relied_on: Mapping[int, int] = MappingProxyType({})
    """Broker epochs, by broker id, that must still be registered when the row is written. These brokers have answered
    just now; one that restarts may have lost its log."""


async def update_rows(
    broker: Broker, plans: Mapping[K, Callable[[], PlannedRow | None]], if_away: ErrorCode
) -> dict[K, KafkaError | None]:
    """Changes many partitions, each by its plan, which returns a row to write or None if nothing is to do, or raises
    KafkaError.

    Rows are written in few transactions. Plans that lost a race are made again. Returns None or the error of each plan.
    """
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
                        break  # a broker of `processes` has restarted: the rows that rely on it are planned again
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
    """Used after a change that was written: it stays written even if the metastore is unreachable now."""
    with suppress(MetastoreUnavailableError):
        await broker.catch_up()


def failure(error: KafkaError) -> Body:
    return {"error_code": error.code, "error_message": error.message or None}


SUCCESS: Body = {"error_code": ErrorCode.none, "error_message": None}


def error_fields(error: KafkaError | None) -> Body:
    return SUCCESS if error is None else failure(error)


async def outcome(change: Awaitable[object]) -> Body:
    """Awaits the change and returns the error fields that Kafka's admin responses have."""
    try:
        await change
    except KafkaError as error:
        return failure(error)
    return SUCCESS


def repeated(names: Iterable[T]) -> frozenset[T]:
    """Returns the names that occur more than once."""
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
    """Formats an id as Kafka does: URL-safe base64 without padding."""
    return urlsafe_b64encode(cluster_id.bytes).decode().rstrip("=")


def is_serving(row: BrokerRow | None) -> bool:
    """Whether clients can be sent to this broker: it has joined, and has not left."""
    return row is not None and row.status in (BrokerStatus.ACTIVE, BrokerStatus.DRAINING)


def serving_brokers(view: ClusterView) -> list[BrokerRow]:
    return [row for row in view.live_brokers() if is_serving(row)]


def serving_ids(view: ClusterView) -> frozenset[int]:
    return frozenset(row.broker_id for row in serving_brokers(view))


def controller_id(broker: Broker) -> int:
    """Returns this broker's own id: any broker does what a controller is asked to do, so nothing depends on one of
    them."""
    own = broker.config.node_id
    serving = [row.broker_id for row in serving_brokers(broker.view)]
    return own if own in serving or not serving else serving[0]


async def before_deadline(broker: Broker, condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Polls until the condition holds. Returns False if it did not within the timeout."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while not condition():
                await asyncio.sleep(POLL_MS / 1000)
                await catch_up_if_possible(broker)
    except TimeoutError:
        return condition()
    return True


POLL_MS = 50
"""Interval at which a request that waits for partitions to get leaders polls."""
