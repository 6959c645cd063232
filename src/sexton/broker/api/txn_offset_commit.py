"""TxnOffsetCommit, versions 0 to 5: commits a group's offsets as part of a transaction.

The group's coordinator sends the response when the offsets are on all in-sync replicas. They take effect when the
transaction commits. Until it completes, OffsetFetch with `require_stable` gets UNSTABLE_OFFSET_COMMIT. From version 3
on the request names the member of the group (KIP-447), and ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID
mean that the member has been replaced or removed, or the group has rebalanced. From version 5 on (transaction version
2) this request adds the group's partition to the transaction; before, AddOffsetsToTxn must have added it, which is
verified as for partitions (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from sexton.broker.api.txn_common import OLD_CLIENT_VERSION
from sexton.broker.transactions.verifier import RETRIABLE, Question, last_coordinator_epoch
from sexton.coordinators.groups.messages import NO_GENERATION, CommittedOffset, OffsetCommitRequest
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import TRANSACTION_VERSION_2, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 28
VERSIONS = (0, 5)

ABORTABLE_SINCE = 4
NEW_CLIENTS_SINCE = 5


def handle(broker: Broker, request: Request) -> Body | Awaitable[Body]:
    body = request.body
    if request.version < NEW_CLIENTS_SINCE:
        broker.transactions.check_offsets(body.producer_id, body.producer_epoch, request.connection)
    return _commit(broker, request)


async def _commit(broker: Broker, request: Request) -> Body:
    body = request.body
    known = [topic for topic in body.topics if broker.view.topic(topic.name) is not None]
    unknown = {
        (topic.name, one.partition_index): ErrorCode.unknown_topic_or_partition
        for topic in body.topics
        if broker.view.topic(topic.name) is None
        for one in topic.partitions
    }
    if not known:
        return _answer(body, unknown, ErrorCode.none)
    try:
        results = await _commit_known(broker, request, known)
    except KafkaError as error:
        return _answer(body, unknown, error.code)
    codes = {(name, partition): code for name, partitions in results for partition, code in partitions}
    return _answer(body, {**unknown, **codes}, ErrorCode.none)


async def _commit_known(broker: Broker, request: Request, topics: list[Any]) -> Any:
    body = request.body
    if not body.group_id:
        raise KafkaError(ErrorCode.invalid_group_id)
    owner = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
    commit = OffsetCommitRequest(
        group=body.group_id,
        member_id=getattr(body, "member_id", ""),
        instance_id=getattr(body, "group_instance_id", None),
        generation_or_epoch=getattr(body, "generation_id", NO_GENERATION),
        topics=[(topic.name, [_committed(one) for one in topic.partitions]) for topic in topics],
        version=request.version,
    )
    if broker.groups.is_in_transaction(body.group_id, owner):
        return await broker.groups.commit_in_transaction(commit, owner, None)
    return await (await _when_verified(broker, request, commit, owner))


def _when_verified(
    broker: Broker, request: Request, commit: OffsetCommitRequest, owner: ProducerIdAndEpoch
) -> asyncio.Future[Awaitable[Any]]:
    """Commits in the turn of the event loop in which the transaction's coordinator answers, before any commit that
    arrives later."""
    groups = broker.groups
    verification = groups.begin_verification(commit.group, owner)
    begun: asyncio.Future[Awaitable[Any]] = asyncio.get_running_loop().create_future()

    def go_on(answer: ErrorCode) -> None:
        if begun.done():
            return  # the request was cancelled
        try:
            code = _told(answer, request.version)
            if code is not ErrorCode.none:
                groups.end_verification(commit.group, owner, verification)
                raise KafkaError(code)
            begun.set_result(groups.commit_in_transaction(commit, owner, verification))
        except Exception as error:
            begun.set_exception(error)

    question, place = _question(broker, request)
    broker.transactions.verifier.ask(question, place, verification, go_on)
    return begun


def _question(broker: Broker, request: Request) -> tuple[Question, TopicPartition]:
    body = request.body
    is_new = request.version >= NEW_CLIENTS_SINCE
    place = (OFFSETS_TOPIC, broker.groups.partition_of(body.group_id))
    question = Question(
        body.transactional_id,
        ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
        TRANSACTION_VERSION_2 if is_new else OLD_CLIENT_VERSION,
        is_new,
        last_coordinator_epoch(broker.replicas.leader(*place).log.producers, body.producer_id),
    )
    return question, place


def _told(code: ErrorCode, version: int) -> ErrorCode:
    """Translates the coordinator's error into one that clients understand in this response."""
    if code in RETRIABLE:
        return ErrorCode.coordinator_not_available
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.unknown_producer_id:
        return _abortable(version)  # its transaction timed out
    if code is ErrorCode.transaction_abortable and version < ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    return code


def _abortable(version: int) -> ErrorCode:
    """Before version 4 there is no TRANSACTION_ABORTABLE: ILLEGAL_GENERATION makes Java's client and librdkafka
    abort."""
    return ErrorCode.transaction_abortable if version >= ABORTABLE_SINCE else ErrorCode.illegal_generation


def _committed(one: Any) -> CommittedOffset:
    return CommittedOffset(
        one.partition_index, one.committed_offset, getattr(one, "committed_leader_epoch", -1), one.committed_metadata
    )


def _answer(body: Any, codes: dict[tuple[str, int], ErrorCode], otherwise: ErrorCode) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": codes.get((topic.name, one.partition_index), otherwise),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }
