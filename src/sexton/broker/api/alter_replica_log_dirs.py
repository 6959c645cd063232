"""AlterReplicaLogDirs, versions 1 and 2: moves replicas between the log directories of a broker; a broker here has only
one.

If the replica is in the named directory already, this succeeds. Another directory: LOG_DIR_NOT_FOUND, as in Kafka for
one that is not among its log.dirs. A replica that is not on this broker: REPLICA_NOT_AVAILABLE.

Deviation from Kafka: a directory for a replica that this broker does not have yet is not remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 34
VERSIONS = (1, 2)


def handle(broker: Broker, request: Request) -> Body:
    here = {(replica.topic, replica.partition) for replica in broker.replicas.all()}

    def outcome(path: str, topic: str, partition: int) -> ErrorCode:
        if path != broker.config.log_dir:
            return ErrorCode.log_dir_not_found
        if broker.view.partition(topic, partition) is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.none if (topic, partition) in here else ErrorCode.replica_not_available

    results: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.body.dirs:
        for topic in directory.topics:
            codes = results.setdefault(topic.name, {})
            codes.update((index, outcome(directory.path, topic.name, index)) for index in topic.partitions)
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [{"partition_index": index, "error_code": code} for index, code in codes.items()],
            }
            for name, codes in results.items()
        ]
    }
