"""Requests that wait for a transaction's coordinator: whatever comes meanwhile, and whenever, stays behind them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sexton.broker.lifecycle.peers import Peers
from sexton.broker.transactions import verifier
from sexton.broker.transactions.verifier import Answers
from sexton.coordinators.groups.messages import OffsetCommitRequest
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.protocol.errors import ErrorCode
from sexton.simulate.broken import breaking
from sexton.types import TopicPartition
from tests.broker.api.transactional_client import batch
from tests.broker.serving import OTHER_LEADS, TOPIC, Client, ServingBroker, serving_broker
from tests.log.helpers import read_all
from tests.producers import producer_at

PRODUCE, WRITE_TXN_MARKERS, TXN_OFFSET_COMMIT = 0, 27, 28
OLD_PRODUCE, NEW_PRODUCE, OLD_COMMIT = 9, 12, 3
PRODUCER = producer_at(77, 3)
COORDINATOR_EPOCH = 6
TURNS_MAX = 8
"""More than there are between the coordinator's answer and all that follows from it."""


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[None]]:
    """Answers "yes" to each question when the test says so."""
    asked: list[asyncio.Future[None]] = []

    async def answer(broker: object, question: object, places: Sequence[TopicPartition]) -> Answers:
        asked.append(asyncio.get_running_loop().create_future())
        await asked[-1]
        return dict.fromkeys(places, ErrorCode.none)

    monkeypatch.setattr(verifier, "answer", answer)
    return asked


async def coordinating_broker(epoch: int = COORDINATOR_EPOCH) -> ServingBroker:
    """Leads the only partition of __transaction_state: it asks itself."""
    broker = await serving_broker()
    await broker.add_topic(TRANSACTIONS_TOPIC, uuid.UUID(int=71))
    await broker.change(topic=TRANSACTIONS_TOPIC, leader_epoch=epoch)
    return broker


def sequences(broker: ServingBroker) -> list[int]:
    """Of what is in the log, markers aside."""
    return [found.base_sequence for found in read_all(broker.replica().log) if found.base_sequence >= 0]


def send(client: Client, sequence: int, timeout_ms: int = 30_000, version: int = OLD_PRODUCE) -> None:
    data = [{"index": 0, "records": batch(PRODUCER, sequence, "value")}]
    body = {"transactional_id": "app", "acks": -1, "timeout": timeout_ms}
    client.ask(PRODUCE, version, {**body, "topic_data": [{"name": TOPIC, "partition_data": data}]})


async def mark(broker: ServingBroker, *, is_commit: bool) -> None:
    """As the transaction's coordinator would."""
    marker = {
        "producer_id": PRODUCER.producer_id,
        "producer_epoch": PRODUCER.epoch,
        "transaction_result": is_commit,
        "coordinator_epoch": COORDINATOR_EPOCH,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
    }
    answer = await Client(broker).call(WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    assert answer.markers[0].topics[0].partitions[0].error_code is ErrorCode.none


def codes(client: Client) -> list[ErrorCode]:
    return [answer.responses[0].partition_responses[0].error_code for answer in client.answers()]


async def turns(count: int = 4 * TURNS_MAX) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def answered_while(
    asked: list[asyncio.Future[None]], sends: Sequence[Callable[[], None]], turns_before: int
) -> None:
    """The first is held and its question answered; the others come one a turn, from a given turn after that on."""
    sends[0]()
    await turns()
    asked[0].set_result(None)
    await turns(turns_before)
    for later in sends[1:]:
        later()
        await turns(1)
    await turns()
    while waiting := [each for each in asked if not each.done()]:
        waiting[0].set_result(None)
        await turns()


async def produced(asked: list[asyncio.Future[None]], turns_before: int) -> tuple[list[int], list[ErrorCode]]:
    asked.clear()
    broker = await coordinating_broker()
    client = Client(broker)
    await answered_while(asked, [lambda n=n: send(client, n) for n in range(3)], turns_before)  # type: ignore[misc]
    return sequences(broker), codes(client)


def test_a_batch_that_comes_while_held_ones_are_appended_is_not_overtaken(
    coordinator: list[asyncio.Future[None]],
) -> None:
    """Clients have several batches on the way; one that is refused for its sequence ends the producer (before 4.0)."""
    for turns_before in range(TURNS_MAX):
        found = asyncio.run(produced(coordinator, turns_before))
        assert found == ([0, 1, 2], [ErrorCode.none] * 3), f"the others came {turns_before} turns later"


def test_without_the_rule_it_is(coordinator: list[asyncio.Future[None]]) -> None:
    with breaking("batch-overtakes-verification"):
        found = [asyncio.run(produced(coordinator, turns_before))[1] for turns_before in range(TURNS_MAX)]
    assert any(ErrorCode.out_of_order_sequence_number in codes for codes in found)


async def test_a_transaction_whose_first_batch_was_refused_begins_with_it_and_with_no_other(
    coordinator: list[asyncio.Future[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator was still ending the transaction before when it was asked about the first batch."""
    say_yes = verifier.answer

    async def say_no(broker: object, question: object, places: Sequence[TopicPartition]) -> Answers:
        return dict.fromkeys(places, ErrorCode.concurrent_transactions)

    client = Client(await coordinating_broker())
    monkeypatch.setattr(verifier, "answer", say_no)
    send(client, 0, version=NEW_PRODUCE)
    await turns()
    monkeypatch.setattr(verifier, "answer", say_yes)
    for sequence in (1, 0, 1):
        send(client, sequence, version=NEW_PRODUCE)
        await turns()
        for question in coordinator:
            if not question.done():
                question.set_result(None)
        await turns()
    assert codes(client) == [ErrorCode.not_enough_replicas] * 2 + [ErrorCode.none] * 2


async def test_one_that_fails_in_an_unexpected_way_keeps_nobody_behind_it(
    coordinator: list[asyncio.Future[None]],
) -> None:
    told: list[ErrorCode] = []

    def fail(_: ErrorCode) -> None:
        raise AssertionError("a bug")

    ask = (await coordinating_broker()).transactions.verifier.ask
    question = verifier.Question("app", PRODUCER, 1, adds=False)
    for go_on in (fail, told.append):
        ask(question, (TOPIC, 0), None, go_on)
    await turns()
    coordinator[0].set_result(None)
    await turns()
    assert told == [ErrorCode.none]


async def test_what_was_sent_behind_a_batch_whose_time_ran_out_waits_until_that_comes_again(
    coordinator: list[asyncio.Future[None]],
) -> None:
    """Of a producer that the partition does not know any sequence could be the first."""

    broker = await coordinating_broker()
    client = Client(broker)
    send(client, 0, timeout_ms=0)
    send(client, 1)
    async with asyncio.timeout(10):
        while not (told := codes(client)):
            await asyncio.sleep(0)
    assert told == [ErrorCode.request_timed_out]
    coordinator[0].set_result(None)
    await turns()
    assert codes(client) == [ErrorCode.request_timed_out]
    assert sequences(broker) == []
    send(client, 0)
    await turns()
    coordinator[1].set_result(None)
    await turns()
    send(client, 1)
    await turns()
    assert codes(client) == [ErrorCode.none] * 2
    assert sequences(broker) == [0, 1]


@pytest.mark.parametrize(("known_epoch", "is_asked"), [(5, False), (6, True), (7, True)])
async def test_a_coordinator_before_the_one_whose_marker_is_here_is_not_asked(
    coordinator: list[asyncio.Future[None]], known_epoch: int, is_asked: bool
) -> None:
    """Frozen with its clock, it would take its lease for valid, and what its successor has ended for open."""
    broker = await coordinating_broker(known_epoch)
    client = await client_of_a_committed_transaction(broker, coordinator)
    send(client, 1)
    await turns()
    for question in coordinator[1:]:
        question.set_result(None)
    await turns()
    assert codes(client) == [ErrorCode.none if is_asked else ErrorCode.not_enough_replicas]
    assert (len(coordinator) == 2) == is_asked
    assert broker.replica().log.producers.is_open(*PRODUCER) == is_asked


async def client_of_a_committed_transaction(broker: ServingBroker, asked: list[asyncio.Future[None]]) -> Client:
    client = Client(broker)
    send(client, 0)
    await turns()
    asked[0].set_result(None)
    await turns()
    assert codes(client) == [ErrorCode.none]
    await mark(broker, is_commit=True)
    return client


async def test_a_batch_that_comes_after_a_marker_does_not_share_an_answer_from_before_it(
    coordinator: list[asyncio.Future[None]],
) -> None:
    """The same batch twice, over two connections: the first is held when the transaction is aborted, the second comes
    when it is over. It would open a transaction that nobody ends, or that the next one commits."""
    broker = await coordinating_broker()
    first, second = await client_of_a_committed_transaction(broker, coordinator), Client(broker)
    send(first, 1)
    await turns()
    assert len(coordinator) == 2
    await mark(broker, is_commit=False)
    send(second, 1)
    await turns()
    coordinator[1].set_result(None)
    await turns()
    assert codes(first) == [ErrorCode.invalid_txn_state]
    assert codes(second) == []
    assert len(coordinator) == 3
    assert not broker.replica().log.producers.is_open(*PRODUCER)


async def test_partitions_of_one_transaction_are_asked_about_together_and_instances_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What another coordinator answers names the transactional id and the partition, and not the producer."""
    requests: list[list[dict[str, Any]]] = []

    async def call(_: Peers, row: object, api_key: int, version: int, body: dict[str, Any]) -> Any:
        requests.append(body["transactions"])
        results = [
            SimpleNamespace(
                transactional_id=one["transactional_id"],
                topic_results=[
                    SimpleNamespace(
                        name=topic["name"],
                        results_by_partition=[
                            SimpleNamespace(
                                partition_index=number,
                                partition_error_code=ErrorCode.none
                                if one["producer_epoch"] == PRODUCER[1]
                                else ErrorCode.producer_fenced,
                            )
                            for number in topic["partitions"]
                        ],
                    )
                    for topic in one["topics"]
                ],
            )
            for one in body["transactions"]
        ]
        return SimpleNamespace(error_code=ErrorCode.none, results_by_transaction=results)

    broker = await coordinating_broker()
    await broker.change(topic=TRANSACTIONS_TOPIC, **OTHER_LEADS)
    monkeypatch.setattr(Peers, "call", call)
    asking = broker.transactions.verifier
    told: dict[tuple[int, int], ErrorCode] = {}
    for epoch in (PRODUCER[1], PRODUCER[1] - 1):
        question = verifier.Question("app", producer_at(PRODUCER[0], epoch), 2, adds=True)
        for number in (0, 1):
            answered = partial(told.__setitem__, (epoch, number))
            asking.ask(question, (TOPIC, number), object(), answered)
    await turns()
    assert [[len(one["topics"][0]["partitions"]) for one in request] for request in requests] == [[2], [2]]
    assert told == {
        (epoch, number): ErrorCode.none if epoch == PRODUCER[1] else ErrorCode.producer_fenced
        for epoch in (PRODUCER[1], PRODUCER[1] - 1)
        for number in (0, 1)
    }


def commit(client: Client, offset: int) -> None:
    one = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "transactional_id": "app",
        "group_id": "group",
        "producer_id": PRODUCER[0],
        "producer_epoch": PRODUCER[1],
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [one]}],
    }
    client.ask(TXN_OFFSET_COMMIT, OLD_COMMIT, body)


async def offsets(asked: list[asyncio.Future[None]], turns_before: int) -> list[int]:
    asked.clear()
    broker = await coordinating_broker()
    await broker.coordinate_groups()
    commit_in_transaction, committed = broker.groups.commit_in_transaction, []

    def noted(request: OffsetCommitRequest, *args: Any) -> Any:
        ((_, (one,)),) = request.topics
        committed.append(one.offset)
        return commit_in_transaction(request, *args)

    broker.groups.commit_in_transaction = noted  # type: ignore[method-assign, assignment]
    client = Client(broker)
    await answered_while(asked, [lambda n=n: commit(client, n) for n in range(3)], turns_before)  # type: ignore[misc]
    answers = client.answers()
    assert [answer.topics[0].partitions[0].error_code for answer in answers] == [ErrorCode.none] * 3
    return committed


def test_offsets_are_committed_in_the_order_in_which_they_came(coordinator: list[asyncio.Future[None]]) -> None:
    """The last of a transaction is what counts: an earlier one that comes after it would repeat what was processed."""
    for turns_before in range(TURNS_MAX):
        assert asyncio.run(offsets(coordinator, turns_before)) == [0, 1, 2], f"{turns_before} turns later"


def test_without_the_rule_offsets_go_back(coordinator: list[asyncio.Future[None]]) -> None:
    with breaking("batch-overtakes-verification"):
        found = [asyncio.run(offsets(coordinator, turns_before)) for turns_before in range(TURNS_MAX)]
    assert any(each != sorted(each) for each in found)


def test_a_question_in_which_there_is_a_bug_is_answered_and_may_be_asked_again(
    coordinator: list[asyncio.Future[None]],
) -> None:
    async def body() -> tuple[list[int], list[ErrorCode]]:
        broker = await coordinating_broker()
        client = Client(broker)
        send(client, 0)
        await turns()
        coordinator[0].set_exception(IndexError("nobody expected this"))
        await turns()
        assert broker.supervisor.bugs == {"verification": 1}
        send(client, 0)
        await turns()
        coordinator[1].set_result(None)
        await turns()
        return sequences(broker), codes(client)

    appended, answers = asyncio.run(body())
    assert (appended, answers[-1]) == ([0], ErrorCode.none)
    assert answers[0] is not ErrorCode.none
