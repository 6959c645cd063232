"""The records of `__transaction_state`, byte for byte as Kafka writes them (TransactionLogKey and TransactionLogValue).

A key is one transactional id, a value its whole state; a tombstone deletes it. Kafka's `DumpLogSegments
--transaction-log-decoder` reads what is written here, and what Kafka wrote is read here. Version 1 is written; both
versions are read. Two fields that Kafka keeps in memory only are written as tagged fields of our own, which Kafka
skips: they let a producer come back after its transaction timed out even if the coordinator has moved meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

from sexton.coordinators.transactions.schemas import KEY, VALUE
from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import Transaction
from sexton.errors import CorruptLogError
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.protocol.record_schemas import version_of

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

_STATES = frozenset(State)


def encode_key(transactional_id: str) -> bytes:
    return KEY.encode(KEY_VERSION, {"transactional_id": transactional_id})


def decode_key(data: bytes) -> str | None:
    """Returns None for a kind of record that this version does not know."""
    if version_of(data, TRANSACTIONS_TOPIC) != KEY_VERSION:
        return None
    transactional_id: str = KEY.decode(data).transactional_id
    return transactional_id


def encode_value(transaction: Transaction) -> bytes:
    return VALUE.encode(
        VALUE_VERSION,
        {
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.epoch,
            "transaction_timeout_ms": transaction.timeout_ms,
            "transaction_status": transaction.state,
            # Null is Kafka's way to say that there can be none.
            "transaction_partitions": None if transaction.state is State.EMPTY else _by_topic(transaction),
            "transaction_last_update_timestamp_ms": transaction.update_ms,
            "transaction_start_timestamp_ms": transaction.start_ms,
            "previous_producer_id": transaction.previous_producer_id,
            "next_producer_id": transaction.next_producer_id,
            "client_transaction_version": transaction.client_version,
            "last_epoch": transaction.last_epoch,
            "has_timed_out": transaction.has_timed_out,
        },
    )


def _by_topic(transaction: Transaction) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partition_ids": partitions} for topic, partitions in topics.items()]


def decode_value(transactional_id: str, data: bytes) -> Transaction:
    version = version_of(data, TRANSACTIONS_TOPIC)
    if not 0 <= version <= VALUE_VERSION:
        raise _corrupt(f"version {version} of a transaction's record is not known")
    found = VALUE.decode(data)
    if found.transaction_status not in _STATES:
        raise _corrupt(f"state {found.transaction_status} of a transaction is not known")
    return Transaction(
        transactional_id=transactional_id,
        producer_id=found.producer_id,
        epoch=found.producer_epoch,
        last_epoch=found.last_epoch,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
        timeout_ms=found.transaction_timeout_ms,
        state=State(found.transaction_status),
        partitions=frozenset(
            (topic.topic, partition)
            for topic in found.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=found.transaction_start_timestamp_ms,
        update_ms=found.transaction_last_update_timestamp_ms,
        client_version=found.client_transaction_version,
        has_timed_out=found.has_timed_out,
    )


def _corrupt(why: str) -> CorruptLogError:
    return CorruptLogError(
        why, TRANSACTIONS_TOPIC, "Restore the partition from another replica, or use the software that wrote it"
    )
