"""AlterPartitionReassignments, versions 0 and 1 (KIP-455): moves replicas to other brokers, or cancels a move (null).

The response says that the reassignment has begun; ListPartitionReassignments says what is still in progress. A
reassignment that only changes the order of replicas, or removes some, completes at once.

Deviations from Kafka: if none of the original replicas is in sync, cancelling a reassignment is refused on compacted
topics, whatever `unclean.leader.election.enable` says. On others it is refused while one of the new replicas that are
in sync runs, for what only those have would be lost; and if none of the original ones is alive. In-sync replicas are
not removed while no in-sync replica that would stay answers (REPLICA_NOT_AVAILABLE, which clients retry): it may have
lost its disk a moment ago while its lease has not expired yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from sexton.broker.admin import PlannedRow, error_fields, update_rows
from sexton.broker.lifecycle.handover import first_heard, heard_of
from sexton.broker.topics import with_incarnations
from sexton.metadata import reassignment
from sexton.metadata.elections import allows_unclean
from sexton.ports.metastore import MetastoreUnavailableError, PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 45
VERSIONS = (0, 1)


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    may_change_factor = getattr(body, "allow_replication_factor_change", True)
    try:
        # Java's client retries after a NOT_CONTROLLER of the whole request, not of a partition.
        await broker.catch_up()
    except MetastoreUnavailableError as error:
        return {"error_code": ErrorCode.not_controller, "error_message": f"The metastore does not answer ({error})"}
    heard = await _heard(broker, body)
    plans = {
        (topic.name, asked.partition_index): partial(_planned, broker, topic.name, asked, may_change_factor, heard)
        for topic in body.topics
        for asked in topic.partitions
    }
    outcomes = await update_rows(broker, plans, ErrorCode.not_controller)
    responses: dict[str, list[Body]] = {topic.name: [] for topic in body.topics}
    for (name, partition), problem in outcomes.items():
        responses[name].append({"partition_index": partition, **error_fields(problem)})
    return {
        "error_code": ErrorCode.none,
        "allow_replication_factor_change": may_change_factor,
        "responses": [{"name": name, "partitions": partitions} for name, partitions in responses.items()],
    }


async def _heard(broker: Broker, body: Any) -> dict[int, int]:
    """Brokers that answer now, with their epochs. Brokers are asked only if an in-sync replica would be removed."""
    for topic in body.topics:
        for asked in topic.partitions:
            row = broker.view.partition(topic.name, asked.partition_index)
            if row is not None and not set(row.isr) <= set(asked.replicas or ()):
                return await heard_of(broker)
    return {}


def _planned(
    broker: Broker, topic: str, asked: Any, may_change_factor: bool, heard: Mapping[int, int]
) -> PlannedRow | None:
    if broker.view.topic(topic) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {topic}.")
    row = broker.view.partition(topic, asked.partition_index)
    if row is None:
        what = f"Unable to find partition {topic}:{asked.partition_index}."
        raise KafkaError(ErrorCode.unknown_topic_or_partition, what)
    changed = _changed(broker, topic, row, asked.replicas, may_change_factor)
    if changed is None:
        return None
    left = sorted(reassignment.relied_on(row, changed))
    processes = first_heard(broker, heard, left)
    if left and not processes:
        what = f"Of the in-sync replicas that would stay, {left}, none answers. Try again when one does"
        raise KafkaError(ErrorCode.replica_not_available, what)
    return PlannedRow(with_incarnations(changed, broker.rng), processes)


def _changed(
    broker: Broker, topic: str, row: PartitionRow, target: tuple[int, ...] | None, may_change_factor: bool
) -> PartitionRow | None:
    brokers = broker.view.brokers
    if target is None:
        return reassignment.cancel(row, brokers, unclean=allows_unclean(broker.topic_config(topic)))
    kept = [id_ for id_ in row.replicas if id_ not in row.adding]
    if not may_change_factor and len(target) != len(kept):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(kept)} to {len(target)}",
        )
    return reassignment.start(row, target, brokers)
