"""AddPartitionsToTxn, versions 0 to 5: adds partitions to a transaction.

Versions 0 to 3 come from producers before transaction version 2, one transaction per request. Versions 4 and 5 come
from brokers (KIP-890), many transactions per request, to add partitions on behalf of newer producers, or only to verify
that they are in the transaction. If one of the partitions does not exist none is added: UNKNOWN_TOPIC_OR_PARTITION for
it, OPERATION_NOT_ATTEMPTED for the others. Unlike in Kafka, a request that arrives while the markers of the previous
transaction are being written waits for them for a moment before it gets CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from sexton.broker.api.txn_common import OLD_CLIENT_VERSION, for_version
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import TRANSACTION_VERSION_2, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

from sexton.broker.transactions.verifier import Answers, Question, answer

API_KEY = 24
VERSIONS = (0, 5)

BATCHED_SINCE = 4
NEW_CLIENTS_SINCE = 5
FENCED_SINCE = 2


def handle(broker: Broker, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    if request.version >= BATCHED_SINCE:
        return _add_many(broker, request)
    transactional_id = body.v3_and_below_transactional_id
    producer = ProducerIdAndEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    places = _places(body.v3_and_below_topics)
    try:
        broker.transactions.check_coordinated(transactional_id, *producer, request.connection)
    except KafkaError as error:
        return _old_answer(body, dict.fromkeys(places, error.code), request.version)
    return _add_one(broker, request, Question(transactional_id, producer, OLD_CLIENT_VERSION, True), places)


async def _add_one(broker: Broker, request: Request, question: Question, places: Sequence[TopicPartition]) -> Body:
    return _old_answer(request.body, await answer(broker, question, places), request.version)


def _old_answer(body: Any, codes: Answers, version: int) -> Body:
    return {"results_by_topic_v3_and_below": _topics(body.v3_and_below_topics, codes, version)}


async def _add_many(broker: Broker, request: Request) -> Body:
    """Handles all transactions concurrently, so that one that must wait does not delay the others."""
    client_version = TRANSACTION_VERSION_2 if request.version >= NEW_CLIENTS_SINCE else OLD_CLIENT_VERSION
    transactions = request.body.transactions

    def one(transaction: Any) -> Awaitable[Answers]:
        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        question = Question(transaction.transactional_id, producer, client_version, not transaction.verify_only)
        return answer(broker, question, _places(transaction.topics))

    answers = await asyncio.gather(*map(one, transactions))
    return {
        "error_code": ErrorCode.none,
        "results_by_transaction": [
            {
                "transactional_id": transaction.transactional_id,
                "topic_results": _topics(transaction.topics, codes, request.version),
            }
            for transaction, codes in zip(transactions, answers, strict=True)
        ],
    }


def _places(topics: Any) -> list[TopicPartition]:
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]


def _topics(topics: Any, codes: Answers, version: int) -> list[Body]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": partition,
                    "partition_error_code": for_version(codes[(topic.name, partition)], version, FENCED_SINCE),
                }
                for partition in topic.partitions
            ],
        }
        for topic in topics
    ]
