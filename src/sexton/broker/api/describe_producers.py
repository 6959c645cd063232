"""DescribeProducers, version 0: a partition's producer state, with open transactions.

Any replica of the partition answers, from its own log.

Deviations from Kafka: none known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.admin import failure
from sexton.metadata.topics import check_topic_name
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 61
VERSIONS = (0, 0)


def handle(broker: Broker, request: Request) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_describe(broker, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in request.body.topics
        ]
    }


def _describe(broker: Broker, topic: str, partition: int) -> Body:
    try:
        check_topic_name(topic)
        if broker.view.topic(topic) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        replica = broker.replicas.local(topic, partition)
    except KafkaError as error:
        return {"partition_index": partition, **failure(error)}
    return {
        "partition_index": partition,
        "error_code": ErrorCode.none,
        "active_producers": [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp_ms,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": producer.transaction_start,
            }
            for producer in replica.log.producers
        ],
    }
