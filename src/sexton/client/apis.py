"""The Kafka APIs that this client uses, with the versions of each that have the fields it reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Api:
    """`lowest` and `highest` limit the version that is negotiated with a broker; requests are written for the
    highest."""

    key: int
    name: str
    lowest: int
    highest: int


PRODUCE = Api(0, "Produce", 3, 12)
"""Version 13 names topics by id."""
PRODUCE_IN_TRANSACTION = Api(0, "Produce", 3, 11)
"""From version 12 on producing to a partition adds it to the transaction, and each end of a transaction raises the
epoch."""
FETCH = Api(1, "Fetch", 4, 12)
"""Version 13 names topics by id."""
FETCH_FROM_ANY_REPLICA = Api(1, "Fetch", 11, 12)
"""Before version 11 only leaders answer consumers (KIP-392)."""
LIST_OFFSETS = Api(2, "ListOffsets", 2, 9)
METADATA = Api(3, "Metadata", 7, 12)
OFFSET_COMMIT = Api(8, "OffsetCommit", 2, 9)
"""Version 10 names topics by id."""
OFFSET_FETCH = Api(9, "OffsetFetch", 8, 9)
OFFSET_FETCH_OF_ONE_GROUP = Api(9, "OffsetFetch", 2, 9)
"""Before version 8 (Kafka 3.0) the group is not in a list."""
FIND_COORDINATOR = Api(10, "FindCoordinator", 4, 6)
FIND_ONE_COORDINATOR = Api(10, "FindCoordinator", 1, 6)
"""Before version 4 (Kafka 3.0) neither the key nor the answer is in a list."""
JOIN_GROUP = Api(11, "JoinGroup", 2, 9)
HEARTBEAT = Api(12, "Heartbeat", 0, 4)
LEAVE_GROUP = Api(13, "LeaveGroup", 3, 5)
SYNC_GROUP = Api(14, "SyncGroup", 0, 5)
DESCRIBE_GROUPS = Api(15, "DescribeGroups", 0, 5)
LIST_GROUPS = Api(16, "ListGroups", 4, 5)
SASL_HANDSHAKE = Api(17, "SaslHandshake", 1, 1)
"""With version 0 the mechanism's messages would follow bare, without requests around them."""
API_VERSIONS = Api(18, "ApiVersions", 2, 2)
"""Version 2 is the newest that all brokers from 2018 to today support."""
CREATE_TOPICS = Api(19, "CreateTopics", 2, 7)
DELETE_TOPICS = Api(20, "DeleteTopics", 6, 6)
DELETE_RECORDS = Api(21, "DeleteRecords", 0, 2)
INIT_PRODUCER_ID = Api(22, "InitProducerId", 0, 4)
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", 0, 3)
"""Version 4 is for brokers."""
END_TXN = Api(26, "EndTxn", 0, 4)
"""Version 5 raises the producer's epoch, and goes with Produce 12."""
WRITE_TXN_MARKERS = Api(27, "WriteTxnMarkers", 1, 1)
"""Version 2 is for coordinators, which know the transaction version."""
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 1, 4)
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 4, 4)
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", 0, 2)
CREATE_PARTITIONS = Api(37, "CreatePartitions", 0, 3)
DELETE_GROUPS = Api(42, "DeleteGroups", 0, 2)
ELECT_LEADERS = Api(43, "ElectLeaders", 1, 2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 0, 1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, "AlterPartitionReassignments", 0, 0)
LIST_PARTITION_REASSIGNMENTS = Api(46, "ListPartitionReassignments", 0, 0)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0, 1)
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", 0, 0)
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", 0, 0)
LIST_TRANSACTIONS = Api(66, "ListTransactions", 0, 2)
CONSUMER_GROUP_HEARTBEAT = Api(68, "ConsumerGroupHeartbeat", 1, 1)
"""From version 1 on a member chooses its own id."""
CONSUMER_GROUP_DESCRIBE = Api(69, "ConsumerGroupDescribe", 0, 1)
