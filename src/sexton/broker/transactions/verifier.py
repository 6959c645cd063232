"""Asks coordinators about partitions that a transactional producer is about to write to (KIP-890).

For producers of transaction version 2 the request is to add the partition to the transaction (they do not send
AddPartitionsToTxn any more); for older ones, to verify that it is in the transaction. Questions about one partition by
one producer that come while one is in flight share its answer. Questions of one turn of the event loop to one
coordinator are sent together.

**No batch overtakes a waiting one.** All callbacks that wait for an answer run in the turn of the event loop in which
it arrives, in the order of asking: a batch that arrives before finds the question in flight and queues behind them, one
that arrives afterwards finds their work done. If they ran one turn later, a batch that arrives in between would find
neither, and the next one, which finds the transaction open, would be appended ahead of it.

**A deposed coordinator is not asked.** One whose clock stood still with it (a virtual machine that its host froze)
takes its lease for valid and answers from memory, about a transaction that its successor has ended. The broker that
asks does not know of the successor yet, but its log does, if the transaction's marker is there: a coordinator whose
epoch is below the marker's has been replaced. (Where there is no marker of the successor yet, the transaction is still
as it was: the state that a verification is based on is committed, so the successor has it too. A marker that arrives
while a question is in flight voids the answer.)

The answer is an error code of the coordinator; `NETWORK_EXCEPTION` if it could not be asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sexton.broker.admin import is_serving
from sexton.coordinators.transactions.messages import AddRequest
from sexton.errors import SextonError
from sexton.log.producers import ProducerStates
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.ports.metastore import MetastoreUnavailableError, PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import TRANSACTION_VERSION_2, ProducerId, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.lifecycle.peers import Peers

logger = logging.getLogger(__name__)

ADD_PARTITIONS_TO_TXN = 24
NEW_CLIENTS_VERSION = 5
OLD_CLIENTS_VERSION = 4
"""The version of the request tells the coordinator which kind of producer it is about."""

RETRIABLE = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
"""Errors after which the client should retry."""


NO_COORDINATOR_EPOCH = -1


class Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    client_version: int
    adds: bool
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    """Coordinator epoch of this producer's last marker in the log of the broker that asks: no coordinator with a lower
    epoch may answer."""


Answers = Mapping[TopicPartition, ErrorCode]

Asked = Mapping[TopicPartition, Sequence[object]]
"""The partitions of a question, each with the verifications that wait for the answer."""

GoOn = Callable[[ErrorCode], None]
"""Called with the answer, at once. It must do all its work in the call: a later request could find it undone."""


class Verifier:
    def __init__(self, broker: Broker, peers: Peers) -> None:
        self._broker = broker
        self._peers = peers
        self._under_way: dict[tuple[Question, TopicPartition, object], list[GoOn]] = {}
        self._gathered: dict[Question, dict[TopicPartition, list[object]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, question: Question, place: TopicPartition, verification: object, go_on: GoOn) -> None:
        """`verification` is what the batch holds meanwhile (`log/producers.py`). A marker voids it: a batch that
        arrives afterwards has another one, and does not share an answer from before the marker."""
        waiting = self._under_way.get((question, place, verification))
        if waiting is not None:
            waiting.append(go_on)
            return
        self._under_way[question, place, verification] = [go_on]
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._send)
        self._gathered.setdefault(question, {}).setdefault(place, []).append(verification)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for key in list(self._under_way):
            _resume(self._under_way.pop(key, ()), ErrorCode.network_exception)

    def _send(self) -> None:
        """The results of a request name no producer, so two questions about one transactional id, of two instances of
        an application, go in two requests."""
        gathered, self._gathered = self._gathered, {}
        by_request: dict[tuple[int, int, int], dict[Question, Asked]] = {}
        seen: Counter[str] = Counter()
        for question, asked in gathered.items():
            leader = self._coordinator_of(question)
            if leader is None:
                self._answer_all(question, asked, ErrorCode.coordinator_not_available)
            elif leader == self._broker.config.node_id:
                self._spawn(partial(self._ask_here, question, asked), {question: asked})
            else:
                is_new = question.client_version >= TRANSACTION_VERSION_2
                version = NEW_CLIENTS_VERSION if is_new else OLD_CLIENTS_VERSION
                request = leader, version, seen[question.transactional_id]
                by_request.setdefault(request, {})[question] = asked
                seen[question.transactional_id] += 1
        for (leader, version, _), questions in by_request.items():
            self._spawn(partial(self._ask_there, leader, version, questions), questions)

    def _coordinator_of(self, question: Question) -> int | None:
        broker = self._broker
        try:
            partition = broker.transactions.service.partition_of(question.transactional_id)
        except KafkaError:
            return None
        row = broker.view.partition(TRANSACTIONS_TOPIC, partition)
        if row is None or not is_serving(broker.view.broker(row.leader)):
            return None
        return row.leader if _may_answer(row, question) else None

    async def _ask_here(self, question: Question, asked: Asked) -> None:
        answers = await answer(self._broker, question, list(asked))
        for place in asked:
            self._answer(question, place, asked, answers[place])

    async def _ask_there(self, leader: int, version: int, questions: Mapping[Question, Asked]) -> None:
        try:
            codes = await self._call(leader, version, questions)
        except SextonError as error:
            logger.info("cannot ask broker %d to verify transactions: %s", leader, error)
            codes = {}
        for question, asked in questions.items():
            for place in asked:
                code = codes.get((question.transactional_id, place), ErrorCode.network_exception)
                self._answer(question, place, asked, code)

    async def _call(
        self, leader: int, version: int, questions: Mapping[Question, Asked]
    ) -> dict[tuple[str, TopicPartition], ErrorCode]:
        row = self._broker.view.broker(leader)
        assert row is not None
        body = {"transactions": [_body(question, list(asked)) for question, asked in questions.items()]}
        response = await self._peers.call(row, ADD_PARTITIONS_TO_TXN, version, body)
        if response.error_code is not ErrorCode.none:
            return {
                (q.transactional_id, place): response.error_code for q, asked in questions.items() for place in asked
            }
        return {
            (result.transactional_id, (topic.name, one.partition_index)): one.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        }

    def _answer_all(self, question: Question, asked: Asked, code: ErrorCode) -> None:
        for place in asked:
            self._answer(question, place, asked, code)

    def _answer(self, question: Question, place: TopicPartition, asked: Asked, code: ErrorCode) -> None:
        for verification in asked[place]:
            _resume(self._under_way.pop((question, place, verification), ()), code)

    def _spawn(self, asking: Callable[[], Awaitable[None]], questions: Mapping[Question, Asked]) -> None:
        task = self._broker.supervisor.work(self._answered(asking, questions), "verification")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, asking: Callable[[], Awaitable[None]], questions: Mapping[Question, Asked]) -> None:
        """If asking fails with a bug, the questions are answered all the same, so that the clients retry."""
        try:
            await asking()  # not made before: a task that is cancelled before it began would never await it
        except Exception:
            for question, asked in questions.items():
                self._answer_all(question, asked, ErrorCode.network_exception)
            raise


def last_coordinator_epoch(producers: ProducerStates, producer_id: ProducerId) -> int:
    known = producers.get(producer_id)
    return NO_COORDINATOR_EPOCH if known is None else known.coordinator_epoch


def _may_answer(row: PartitionRow, question: Question) -> bool:
    return row.leader_epoch >= question.coordinator_epoch


def _resume(waiting: Sequence[GoOn], code: ErrorCode) -> None:
    """An exception in one callback does not keep the others from running."""
    for go_on in waiting:
        try:
            go_on(code)
        except Exception:
            logger.exception("a request that waited for a transaction's coordinator failed")


async def answer(broker: Broker, question: Question, places: Sequence[TopicPartition]) -> Answers:
    """Answers as the coordinator."""
    request = AddRequest(question.transactional_id, question.producer, places, question.client_version)
    try:
        if not question.adds:
            return await broker.transactions.service.verify(request)
        missing = await _missing(broker, places)
        if missing:  # the whole request is refused, as in Kafka
            return {
                place: ErrorCode.unknown_topic_or_partition if place in missing else ErrorCode.operation_not_attempted
                for place in places
            }
        await broker.transactions.service.add(request)
    except KafkaError as error:
        return dict.fromkeys(places, error.code)
    return dict.fromkeys(places, ErrorCode.none)


async def _missing(broker: Broker, places: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Returns the partitions that do not exist. Catches up first: a client may have seen a new topic sooner than this
    broker."""
    missing = [place for place in places if broker.view.partition(*place) is None]
    if missing:
        with suppress(MetastoreUnavailableError):
            await broker.catch_up()
        missing = [place for place in missing if broker.view.partition(*place) is None]
    return missing


def _body(question: Question, places: Sequence[TopicPartition]) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return {
        "transactional_id": question.transactional_id,
        "producer_id": question.producer.producer_id,
        "producer_epoch": question.producer.epoch,
        "verify_only": not question.adds,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
