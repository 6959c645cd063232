"""The records of `__transaction_state`, byte for byte as Kafka writes them (TransactionLogKey and TransactionLogValue).

A key is one transactional id, a value its whole state; a tombstone deletes it. Kafka's `DumpLogSegments
--transaction-log-decoder` reads what is written here, and what Kafka wrote is read here. Version 1 is written; both
versions are read. Two fields that Kafka keeps in memory only are written as tagged fields of our own, which Kafka
skips: they let a producer come back after its transaction timed out even if the coordinator has moved meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import Transaction
from sexton.coordinators.wire import Reader, Writer
from sexton.errors import CorruptLogError
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.types import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
FLEXIBLE_SINCE: Final = 1

_PREVIOUS_PRODUCER_ID = 0
_NEXT_PRODUCER_ID = 1
_CLIENT_VERSION = 2
_LAST_EPOCH = 10_001
_HAS_TIMED_OUT = 10_002
"""Tags. Kafka's count from 0; ours start at 10,001 so that they do not clash."""

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")


def encode_key(transactional_id: str) -> bytes:
    writer = Writer()
    writer.i16(KEY_VERSION)
    writer.string(transactional_id)
    return bytes(writer.out)


def decode_key(data: bytes) -> str | None:
    """Returns None for a kind of record that this version does not know."""
    reader = Reader(data, place=TRANSACTIONS_TOPIC)
    return reader.string() if reader.i16() == KEY_VERSION else None


def encode_value(transaction: Transaction) -> bytes:
    writer = Writer(flexible=True)
    writer.i16(VALUE_VERSION)
    writer.i64(transaction.producer_id)
    writer.i16(transaction.epoch)
    writer.i32(transaction.timeout_ms)
    writer.i8(transaction.state)
    if transaction.state is State.EMPTY:
        writer.uvarint(0)  # null: Kafka's way to say that there can be none
    else:
        writer.array(_by_topic(transaction), lambda entry: _write_topic(writer, *entry))
    writer.i64(transaction.update_ms)
    writer.i64(transaction.start_ms)
    writer.tags(_tags(transaction))
    return bytes(writer.out)


def _by_topic(transaction: Transaction) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())


def _write_topic(writer: Writer, topic: str, partitions: list[int]) -> None:
    writer.string(topic)
    writer.array(partitions, writer.i32)
    writer.tags()


def _tags(transaction: Transaction) -> dict[int, bytes]:
    tags: dict[int, bytes] = {}
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_PRODUCER_ID] = _I64.pack(transaction.previous_producer_id)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_PRODUCER_ID] = _I64.pack(transaction.next_producer_id)
    if transaction.client_version:
        tags[_CLIENT_VERSION] = _I16.pack(transaction.client_version)
    if transaction.last_epoch != NO_EPOCH:
        tags[_LAST_EPOCH] = _I16.pack(transaction.last_epoch)
    if transaction.has_timed_out:
        tags[_HAS_TIMED_OUT] = b"\x01"
    return tags


def decode_value(transactional_id: str, data: bytes) -> Transaction:
    reader = Reader(data, place=TRANSACTIONS_TOPIC)
    version = reader.i16()
    if not 0 <= version <= VALUE_VERSION:
        raise _corrupt(f"version {version} of a transaction's record is not known")
    reader.flexible = version >= FLEXIBLE_SINCE
    producer_id, epoch, timeout_ms, status = reader.i64(), reader.i16(), reader.i32(), reader.i8()
    try:
        state = State(status)
    except ValueError:
        raise _corrupt(f"state {status} of a transaction is not known") from None
    topics = reader.nullable_array(lambda: _read_topic(reader)) or []
    update_ms, start_ms = reader.i64(), reader.i64()
    tags = reader.tags()
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        epoch=epoch,
        last_epoch=_i16(tags, _LAST_EPOCH, NO_EPOCH),
        previous_producer_id=_i64(tags, _PREVIOUS_PRODUCER_ID),
        next_producer_id=_i64(tags, _NEXT_PRODUCER_ID),
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(one for topic in topics for one in topic),
        start_ms=start_ms,
        update_ms=update_ms,
        client_version=_i16(tags, _CLIENT_VERSION, 0),
        has_timed_out=_HAS_TIMED_OUT in tags,
    )


def _read_topic(reader: Reader) -> list[TopicPartition]:
    topic = reader.string()
    partitions = reader.array(reader.i32)
    reader.tags()
    return [(topic, partition) for partition in partitions]


def _i64(tags: Mapping[int, bytes], tag: int) -> int:
    return int(_I64.unpack(tags[tag])[0]) if len(tags.get(tag, b"")) == _I64.size else NO_PRODUCER_ID


def _i16(tags: Mapping[int, bytes], tag: int, default: int) -> int:
    return int(_I16.unpack(tags[tag])[0]) if len(tags.get(tag, b"")) == _I16.size else default


def _corrupt(why: str) -> CorruptLogError:
    return CorruptLogError(
        why, TRANSACTIONS_TOPIC, "Restore the partition from another replica, or use the software that wrote it"
    )
