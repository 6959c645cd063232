"""Kafka's schemas of the records of `__transaction_state`. The names are those of its JSON files."""

from dataclasses import field
from typing import Final

from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.protocol.record_schemas import BOOL, INT8, INT16, INT32, INT64, STRING, STRUCT, RecordSchema, schema, tagged
from sexton.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


@schema
class TransactionLogKey:
    transactional_id: str = field(metadata=STRING)


@schema
class PartitionsSchema:
    topic: str = field(metadata=STRING)
    partition_ids: tuple[int, ...] = field(metadata=INT32)


@schema
class TransactionLogValue:
    """The last two are our own: Kafka counts its tags from 0, and skips these."""

    producer_id: int = field(metadata=INT64)
    producer_epoch: int = field(metadata=INT16)
    transaction_timeout_ms: int = field(metadata=INT32)
    transaction_status: int = field(metadata=INT8)
    transaction_partitions: tuple[PartitionsSchema, ...] | None = field(metadata=STRUCT)
    transaction_last_update_timestamp_ms: int = field(metadata=INT64)
    transaction_start_timestamp_ms: int = field(metadata=INT64)
    previous_producer_id: int = field(metadata=tagged(0, 1, INT64, NO_PRODUCER_ID))
    next_producer_id: int = field(metadata=tagged(1, 1, INT64, NO_PRODUCER_ID))
    client_transaction_version: int = field(metadata=tagged(2, 1, INT16, 0))
    last_epoch: int = field(metadata=tagged(10_001, 1, INT16, NO_PRODUCER_EPOCH))
    has_timed_out: bool = field(metadata=tagged(10_002, 1, BOOL, False))


KEY: Final = RecordSchema(TransactionLogKey, TRANSACTIONS_TOPIC)
VALUE: Final = RecordSchema(TransactionLogValue, TRANSACTIONS_TOPIC, newest=1, flexible_since=1)
