"""Kafka's own `TransactionsCommand` (kafka-transactions.sh)."""

from __future__ import annotations

import pytest

from sexton.harness.kafka_tools import run_tool
from tests.transactions.kit import Kit
from tests.transactions.reading import read, settled, values
from tests.transactions.under_test import UnderTest, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.kafka]

TOOL = "org.apache.kafka.tools.TransactionsCommand"


def tool(cluster: UnderTest, *arguments: str) -> list[dict[str, str]]:
    """The rows of the table that it prints, by its own headings."""
    lines = [
        line.split("\t") for line in run_tool(TOOL, "--bootstrap-server", cluster.bootstrap, *arguments).splitlines()
    ]
    lines = [[cell.strip() for cell in line] for line in lines if line != [""]]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]] if lines else []


def test_transactions_are_listed_described_and_seen_in_their_partitions(rdkafka: Kit, cluster: UnderTest) -> None:
    topic, name = cluster.topic(), cluster.name("writer")
    producer = rdkafka.ready(name)
    producer.begin()
    producer.send(topic, 0, [b"open"])
    producer.flush()
    (listed,) = [row for row in tool(cluster, "list") if row["TransactionalId"] == name]
    assert listed["TransactionState"] == "Ongoing"
    (described,) = tool(cluster, "describe", "--transactional-id", name)
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == f"{topic}-0"
    assert described["ProducerId"] == listed["ProducerId"]
    (writer,) = tool(cluster, "describe-producers", "--topic", topic, "--partition", "0")
    assert (writer["ProducerId"], writer["CurrentTransactionStartOffset"]) == (listed["ProducerId"], "0")
    producer.commit()
    wait_until(
        lambda: tool(cluster, "describe", "--transactional-id", name)[0]["TransactionState"] == "CompleteCommit",
        "the end of the transaction",
    )


def test_an_open_transaction_that_its_coordinator_knows_does_not_hang(rdkafka: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic()
    producer = rdkafka.ready(cluster.name("writer"))
    producer.begin()
    producer.send(topic, 0, [b"open"])
    producer.flush()
    arguments = ("find-hanging", "--topic", topic, "--partition", "0", "--max-transaction-timeout", "0")
    assert tool(cluster, *arguments) == []
    producer.commit()
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == [b"open"]


def test_a_transaction_is_aborted_by_force_in_one_partition(rdkafka: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic()
    first, second = rdkafka.ready(cluster.name("stuck")), rdkafka.ready(cluster.name("other"))
    first.begin()
    first.send(topic, 0, [b"stuck"])
    first.flush()
    second.begin()
    second.send(topic, 0, [b"whole"])
    second.commit()
    assert read(cluster.bootstrap, [(topic, 0)]) == []
    tool(cluster, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == [b"whole"]
