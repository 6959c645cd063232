"""The transactional part of Produce.

A batch that would open a transaction in its partition waits until the transaction's coordinator allows it (KIP-890):
for producers of transaction version 2 (Produce version 12 on) the coordinator adds the partition, for older ones it
must have been added before. Batches of one producer for one partition wait for the same answer and are appended in the
order of their arrival; other partitions of the request do not wait with them.

The errors that a client gets. A zombie: INVALID_PRODUCER_EPOCH, as from Kafka. A producer that may abort and continue
(the partition is not part of the transaction, the transaction timed out, or the client has used a newer connection):
TRANSACTION_ABORTABLE, and INVALID_TXN_STATE before version 11. Both make Java's client abort and raise its epoch, and
librdkafka abort (which, after a timeout, learns with its next transaction that it must raise the epoch, and aborts that
one too). INVALID_PRODUCER_EPOCH, in contrast, is fatal to a librdkafka producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sexton.broker.api.txn_common import OLD_CLIENT_VERSION
from sexton.broker.transactions.verifier import RETRIABLE, Question, last_coordinator_epoch
from sexton.log.producers import Verification
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import HEADER_BYTES, TRANSACTIONAL, attribute_bits, unpack
from sexton.replication.replica import Replica
from sexton.types import TRANSACTION_VERSION_2, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request

NEW_CLIENTS_SINCE = 12
ABORTABLE_SINCE = 11


def is_in_transaction(records: Buffer) -> bool:
    return len(records) >= HEADER_BYTES and bool(attribute_bits(records) & TRANSACTIONAL)


class HeldBatch(NamedTuple):
    """A batch that waits for the transaction's coordinator."""

    question: Question
    place: TopicPartition
    verification: Verification
    sequence: int


def hold(broker: Broker, request: Request, replica: Replica, records: Buffer) -> HeldBatch | None:
    """Returns None if the batch may be appended at once: its transaction is open in this partition, or it is a retry of
    a batch that is in the log."""
    head = unpack(records)
    producer_id, epoch, sequence = head.producer_id, head.producer_epoch, head.base_sequence
    is_new = request.version >= NEW_CLIENTS_SINCE
    if not is_new:
        broker.transactions.check_produced(producer_id, epoch, request.connection)
    producers = replica.log.producers
    if producers.is_open(producer_id, epoch):
        return None
    if producers.duplicate_of(producer_id, epoch, sequence, head.last_offset - head.base_offset + 1) is not None:
        return None
    transactional_id = request.body.transactional_id
    if not transactional_id:
        raise KafkaError(ErrorCode.invalid_txn_state, "a transactional batch without a transactional id")
    producer = ProducerIdAndEpoch(producer_id, epoch)
    version = TRANSACTION_VERSION_2 if is_new else OLD_CLIENT_VERSION
    coordinator_epoch = last_coordinator_epoch(producers, producer_id)
    verification = producers.begin_verification(producer_id, epoch)
    question = Question(transactional_id, producer, version, is_new, coordinator_epoch)
    place = (replica.topic, replica.partition)
    return HeldBatch(question, place, verification, sequence)


def check_answer(replica: Replica, held: HeldBatch, code: ErrorCode, version: int) -> None:
    """Raises the error for the client if the coordinator refused, or if a producer of transaction version 2 does not
    start its transaction with sequence 0: it has a new epoch in every transaction, so a batch before this one is still
    to come."""
    producer_id = held.question.producer.producer_id
    if code is ErrorCode.none:
        is_known = replica.log.producers.get(producer_id) is not None
        if version >= NEW_CLIENTS_SINCE and held.sequence != 0 and not is_known:
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"the transaction of producer {producer_id} begins with sequence {held.sequence}, not 0",
            )
        return
    replica.log.producers.end_verification(producer_id, held.verification)
    raise KafkaError(code_for_client(code, version), f"the transaction's coordinator says {code.name.upper()}")


def code_for_client(code: ErrorCode, version: int) -> ErrorCode:
    """Translates the coordinator's error into one that clients understand in a Produce response."""
    if code in RETRIABLE:
        return ErrorCode.not_enough_replicas  # all clients retry after it
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code in (ErrorCode.transaction_abortable, ErrorCode.unknown_producer_id):  # not in the transaction, or timed out
        return ErrorCode.transaction_abortable if version >= ABORTABLE_SINCE else ErrorCode.invalid_txn_state
    return code
