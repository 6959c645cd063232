"""What no client would send, and what Kafka answers to it: the same error, nothing hung, nothing half done.

The expected errors are those of Apache Kafka 4.3.0 (`--against kafka` asks it).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from sexton.client.apis import Api
from sexton.client.client import Peer
from sexton.protocol.errors import ErrorCode
from sexton.verify.clients.base import Failure
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, places_of, settled, values
from tests.transactions.steps import transact
from tests.transactions.under_test import WAIT_S, UnderTest, wait_until
from tests.transactions.wire import asking

pytestmark = pytest.mark.cluster

INIT_PRODUCER_ID = Api(22, "InitProducerId", 4, 4)
ADD_PARTITIONS = Api(24, "AddPartitionsToTxn", 3, 3)
END_TXN = Api(26, "EndTxn", 3, 3)
"""As clients speak that know nothing of transaction version 2."""

MINUTE_MS = 60_000


async def init(peer: Peer, name: str, timeout_ms: int = MINUTE_MS, producer_id: int = -1, epoch: int = -1) -> Any:
    """Again while the coordinator says that it is not ready."""
    while True:
        answer = await peer.call(
            INIT_PRODUCER_ID,
            {
                "transactional_id": name,
                "transaction_timeout": timeout_ms,
                "producer_id": producer_id,
                "producer_epoch": epoch,
            },
        )
        if not answer.error_code.retriable:
            return answer
        await asyncio.sleep(0.05)


async def end(peer: Peer, name: str, producer_id: int, epoch: int, committed: bool = True) -> ErrorCode:
    body = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, "committed": committed}
    code: ErrorCode = (await peer.call(END_TXN, body)).error_code
    return code


async def add(
    peer: Peer, name: str, producer_id: int, epoch: int, topic: str, partitions: list[int]
) -> list[ErrorCode]:
    body = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": partitions}],
    }
    answer = await peer.call(ADD_PARTITIONS, body)
    return [one.partition_error_code for one in answer.results_by_topic_v3_and_below[0].results_by_partition]


@pytest.mark.parametrize(
    ("timeout_ms", "expected"),
    [(0, "invalid_transaction_timeout"), (900_001, "invalid_transaction_timeout"), (900_000, "none")],
)
def test_a_timeout_that_is_no_timeout_or_above_the_maximum_is_refused(
    timeout_ms: int, expected: str, cluster: UnderTest
) -> None:
    name = cluster.name("id")
    assert asking(cluster, name, lambda peer: init(peer, name, timeout_ms)).error_code.name == expected


@pytest.mark.parametrize(
    ("id_off", "epoch_off", "expected"),
    [
        (0, 0, "invalid_txn_state"),
        (1, 0, "invalid_producer_id_mapping"),
        (0, -1, "producer_fenced"),
        (0, 1, "producer_fenced"),
    ],
    ids=["no transaction", "another id", "an older epoch", "an epoch that never was"],
)
def test_an_end_that_means_nothing_is_refused(id_off: int, epoch_off: int, expected: str, cluster: UnderTest) -> None:
    name = cluster.name("id")

    async def work(peer: Peer) -> ErrorCode:
        await init(peer, name)
        made = await init(peer, name)
        return await end(peer, name, made.producer_id + id_off, made.producer_epoch + epoch_off)

    assert asking(cluster, name, work).name == expected


@pytest.mark.parametrize("producer_id", [-1, 12_345])
def test_an_end_for_an_id_that_nobody_initialised_is_refused(producer_id: int, cluster: UnderTest) -> None:
    name = cluster.name("id")
    code = asking(cluster, name, lambda peer: end(peer, name, producer_id, 0))
    assert code.name == "invalid_producer_id_mapping"


def test_a_partition_that_does_not_exist_is_refused_and_takes_the_others_along(cluster: UnderTest) -> None:
    name, topic = cluster.name("id"), cluster.topic()

    async def work(peer: Peer) -> tuple[list[ErrorCode], ErrorCode]:
        made = await init(peer, name)
        codes = await add(peer, name, made.producer_id, made.producer_epoch, topic, [0, 7])
        return codes, await end(peer, name, made.producer_id, made.producer_epoch)

    codes, ended = asking(cluster, name, work)
    assert [code.name for code in codes] == ["operation_not_attempted", "unknown_topic_or_partition"]
    assert ended.name == "invalid_txn_state"  # nothing was added, so nothing has begun


def test_an_epoch_that_goes_back_at_initialisation_is_fenced(cluster: UnderTest) -> None:
    name = cluster.name("id")

    async def work(peer: Peer) -> Any:
        first = await init(peer, name)
        for _ in range(3):
            await init(peer, name)
        return await init(peer, name, producer_id=first.producer_id, epoch=first.producer_epoch)

    assert asking(cluster, name, work).error_code.name == "producer_fenced"


def test_an_end_repeated_on_the_same_connection_is_answered_alike(cluster: UnderTest) -> None:
    """A retry after an answer was lost. The other way round it is refused."""
    name, topic = cluster.name("id"), cluster.topic()

    async def work(peer: Peer) -> list[str]:
        made = await init(peer, name)
        producer = made.producer_id, made.producer_epoch
        await add(peer, name, *producer, topic, [0])
        ends = [await end(peer, name, *producer)]
        for committed in (True, False):
            code = ErrorCode.concurrent_transactions
            while code is ErrorCode.concurrent_transactions:  # while markers are written
                code = await end(peer, name, *producer, committed=committed)
            ends.append(code)
        return [code.name for code in ends]

    refusal = "unknown_producer_id" if cluster.is_sexton else "invalid_txn_state"
    assert asking(cluster, name, work) == ["none", "none", refusal]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_ends_though_one_of_its_topics_was_deleted(
    commit: bool, rdkafka: Kit, cluster: UnderTest
) -> None:
    kept, deleted = cluster.topic("kept"), cluster.topic("deleted")
    producer = rdkafka.ready(cluster.name("writer"))
    producer.begin()
    for topic in (kept, deleted):
        producer.send(topic, 0, numbers(0, 3))
    producer.flush()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in admin.delete_topics([deleted], operation_timeout=WAIT_S).values():
        done.result(WAIT_S)
    producer.commit() if commit else producer.abort()
    assert values(settled(cluster.bootstrap, [(kept, 0)])) == (numbers(0, 3) if commit else [])

    def goes_on() -> bool:
        try:
            transact(producer, kept, [b"next"])
        except Failure:
            producer.abort()
            return False
        return True

    wait_until(goes_on, "the next transaction")
    assert values(settled(cluster.bootstrap, [(kept, 0)]))[-1] == b"next"


def test_a_transaction_over_a_thousand_partitions_is_whole(rdkafka: Kit, cluster: UnderTest) -> None:
    cluster = UnderTest(cluster.bootstrap, cluster.kind, cluster.running, replication=1)
    topics = [cluster.topic("wide", 250) for _ in range(4)]
    places = places_of(topics, 250)
    producer = rdkafka.ready(cluster.name("writer"))
    producer.begin()
    for topic, partition in places:
        producer.send(topic, partition, [b"x"])
    producer.flush()
    producer.commit()
    assert len(settled(cluster.bootstrap, places)) == 1_000
