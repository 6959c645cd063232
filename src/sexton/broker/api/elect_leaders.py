"""ElectLeaders, versions 0 to 2: makes the preferred replica lead, or, from version 1, elects an unclean leader.

Null topics means all partitions; then those that need no election are left out of the response.

Deviations from Kafka: an unclean election that is asked for is carried out whatever the topic's configs say, as in
Kafka's KRaft mode. A broker that does not answer is not elected: it may have lost its disk a moment ago, before its
lease has expired, and other in-sync replicas that cannot renew their leases would then leave the ISR to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from sexton.broker.admin import PlannedRow, error_fields, update_rows
from sexton.broker.lifecycle.handover import first_heard, heard_of
from sexton.metadata.elections import elect_on_request
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 43
VERSIONS = (0, 2)

PREFERRED = 0
UNCLEAN = 1


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    election_type = getattr(body, "election_type", PREFERRED)
    if election_type not in (PREFERRED, UNCLEAN):
        return {"error_code": ErrorCode.invalid_request}
    unclean, wanted = election_type == UNCLEAN, _wanted(broker, request)
    heard = await heard_of(broker) if any(_is_needed(broker, *key, unclean=unclean) for key in wanted) else {}
    plans = {key: partial(_planned, broker, heard, *key, unclean=unclean) for key in wanted}
    outcomes = await update_rows(broker, plans, ErrorCode.request_timed_out)
    results: dict[str, list[Body]] = {}
    for (topic, partition), error in outcomes.items():
        if error is not None and error.code is ErrorCode.election_not_needed and body.topic_partitions is None:
            continue
        results.setdefault(topic, []).append({"partition_id": partition, **error_fields(error)})
    return {
        "error_code": ErrorCode.none,
        "replica_election_results": [{"topic": name, "partition_result": found} for name, found in results.items()],
    }


def _wanted(broker: Broker, request: Request) -> list[tuple[str, int]]:
    asked = request.body.topic_partitions
    if asked is not None:
        return [(topic.topic, partition) for topic in asked for partition in topic.partitions]
    return [
        (topic.name, row.partition)
        for topic in sorted(broker.view.topics(), key=lambda topic: topic.name)
        for row in broker.view.partitions_of(topic.topic_id)
    ]


def _is_needed(broker: Broker, topic: str, partition: int, *, unclean: bool) -> bool:
    try:
        _elected(broker, topic, partition, unclean=unclean)
    except KafkaError:
        return False
    return True


def _planned(broker: Broker, heard: Mapping[int, int], topic: str, partition: int, *, unclean: bool) -> PlannedRow:
    elected = _elected(broker, topic, partition, unclean=unclean)
    processes = first_heard(broker, heard, [elected.leader])
    if not processes:
        code = ErrorCode.eligible_leaders_not_available if unclean else ErrorCode.preferred_leader_not_available
        raise KafkaError(code, f"broker {elected.leader} does not answer. Try again when it does")
    return PlannedRow(elected, processes)


def _elected(broker: Broker, topic: str, partition: int, *, unclean: bool) -> PartitionRow:
    row = broker.view.partition(topic, partition)
    if row is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{partition}")
    is_compacted = broker.topic_config(topic).compacts
    return elect_on_request(row, broker.view.brokers, unclean=unclean, is_compacted=is_compacted)
