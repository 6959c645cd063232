"""`sexton txn` on real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer

from sexton.cli.broker import UsageError
from sexton.client.errors import RefusedError
from sexton.client.transaction_admin import ONGOING, ProducerAt, TransactionDescription, is_hanging
from tests.cli.conftest import Sexton, eventually

WAIT_S = 60

Open = Callable[[str], Producer]


@pytest.fixture
def opened(sexton: Sexton, topic: str) -> Iterator[Open]:
    """A producer with one record in partition 0, in a transaction that is still open."""
    made: list[Producer] = []

    def make(transactional_id: str) -> Producer:
        producer = Producer({"bootstrap.servers": sexton.bootstrap, "transactional.id": transactional_id})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        assert producer.flush(WAIT_S) == 0
        made.append(producer)
        return producer

    yield make
    for producer in made:
        with suppress(KafkaException):  # the test has ended it
            producer.abort_transaction(WAIT_S)


def listed(sexton: Sexton) -> dict[str, str]:
    document = json.loads(sexton("txn", "list", "--json").stdout)
    return {each["transactional_id"]: each["state"] for each in document}


@pytest.mark.cluster
def test_a_transaction_is_shown_from_its_begin_to_its_end(sexton: Sexton, topic: str, opened: Open) -> None:
    name = f"of-{topic}"
    producer = opened(name)
    assert listed(sexton)[name] == ONGOING
    described = json.loads(sexton("txn", "describe", name, "--json").stdout)
    assert described["state"] == ONGOING
    assert described["places"] == [{"topic": topic, "partition": 0}]
    assert 0 <= described["age_ms"] < WAIT_S * 1000
    assert topic in sexton("txn", "describe", name).stdout
    producer.commit_transaction(WAIT_S)
    eventually(lambda: listed(sexton)[name] == "CompleteCommit")
    ended = json.loads(sexton("txn", "describe", name, "--json").stdout)
    assert (ended["places"], ended["age_ms"]) == ([], None)
    assert name in sexton("txn", "list").stdout


@pytest.mark.cluster
def test_an_id_that_nobody_knows_is_told_so(sexton: Sexton) -> None:
    with pytest.raises(RefusedError, match="no coordinator knows"):
        sexton("txn", "describe", "nobody")


@pytest.mark.cluster
def test_an_open_transaction_that_its_coordinator_knows_does_not_hang(sexton: Sexton, topic: str, opened: Open) -> None:
    opened(f"of-{topic}")
    assert json.loads(sexton("txn", "find-hanging", "--topic", topic, "--older-than", "0", "--json").stdout) == []


@pytest.mark.cluster
def test_what_is_aborted_by_force_blocks_nobody_any_more(sexton: Sexton, topic: str, opened: Open) -> None:
    opened(f"of-{topic}")
    sexton.produce(topic, "after", options=("--partition", "0"))
    arguments = (
        "consume",
        topic,
        "--partition",
        "0",
        "--from-beginning",
        "--exit-at-end",
        "--isolation",
        "read_committed",
    )
    assert sexton.process(*arguments).stdout == b""
    with pytest.raises(UsageError, match="no open transaction begins at offset 1"):
        sexton("txn", "abort", topic, 0, 1, "--yes")
    assert "Aborted" in sexton("txn", "abort", topic, 0, 0, "--yes").stdout
    eventually(lambda: sexton.process(*arguments).stdout == b"after\n")


def producer_at(place: tuple[str, int], producer_id: int = 7) -> ProducerAt:
    return ProducerAt(place, producer_id, 0, 0, 0, 0, 5)


def description(producer_id: int, *places: tuple[str, int]) -> TransactionDescription:
    return TransactionDescription("id", 1, producer_id, 0, ONGOING, 60_000, 0, places)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, True),
        ({7: description(7, ("t", 0), ("t", 1))}, False),
        ({7: description(7, ("t", 1))}, True),
        ({7: description(8, ("t", 0))}, True),
        ({8: description(8, ("t", 0))}, True),
    ],
    ids=[
        "nobody knows it",
        "its coordinator has it",
        "without this partition",
        "another producer by now",
        "another id",
    ],
)
def test_a_transaction_hangs_if_no_coordinator_will_end_it(
    known: dict[int, TransactionDescription], expected: bool
) -> None:
    assert is_hanging(producer_at(("t", 0)), known) is expected
