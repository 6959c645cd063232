"""Transactions on three real brokers, with librdkafka: as people use them, and with brokers that are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from sexton.coordinators.hashing import partition_for
from sexton.harness.brokers import SextonCluster
from sexton.protocol.errors import ErrorCode
from tests.broker.api.transactional_client import TransactionalClient

pytestmark = pytest.mark.cluster

WAIT_S: Final = 60.0
"""Until something that should take a moment has surely failed: the machine may be busy."""
STATE_PARTITIONS: Final = 4
TIMEOUT_MS: Final = 1_500
NOT_YET: Final = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SextonCluster]:
    settings = {"transaction.state.log.num.partitions": STATE_PARTITIONS, "offsets.topic.num.partitions": 4}
    with SextonCluster(nodes=3, settings=settings) as made:
        yield made


def topic(cluster: SextonCluster, name: str, partitions: int = 3) -> str:
    cluster.create_topic(name, partitions, 3, {"min.insync.replicas": 2})
    return name


def producer(cluster: SextonCluster, name: str, **settings: str | int) -> Producer:
    config = {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 0}
    made = Producer({**config, **{key.replace("_", "."): value for key, value in settings.items()}})
    made.init_transactions(WAIT_S)
    return made


def send(made: Producer, name: str, *values: str, partition: int = 0) -> None:
    for value in values:
        made.produce(name, value.encode(), partition=partition)


def read(cluster: SextonCluster, name: str, partitions: int = 3, *, isolation: str = "read_committed") -> list[str]:
    """Everything up to the end, as it is now."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": f"read-{name}", "isolation.level": isolation}
    consumer = Consumer({**config, "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0})
    consumer.assign([TopicPartition(name, number, 0) for number in range(partitions)])
    values: list[str] = []
    ended: set[int] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline_s, f"the end was not reached; so far {values}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition() or 0)
            continue
        values.append((message.value() or b"").decode())
    consumer.close()
    return sorted(values)


def comes_to_read(cluster: SextonCluster, name: str, expected: list[str], partitions: int = 3) -> bool:
    """A commit is answered when it is decided; what it makes visible follows at once, but follows."""
    deadline_s = time.monotonic() + WAIT_S
    while (values := read(cluster, name, partitions)) != expected:
        assert time.monotonic() < deadline_s, f"{values}, not {expected}"
    return True


def fails(made: Producer) -> KafkaException:
    with pytest.raises(KafkaException) as caught:
        made.commit_transaction(WAIT_S)
    return caught.value


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(cluster: SextonCluster) -> None:
    name = topic(cluster, "committed")
    made = producer(cluster, "committed")
    for number in range(6):
        made.begin_transaction()
        for partition in range(3):
            send(made, name, f"{number}", partition=partition)
        made.flush(WAIT_S)  # an abort must have something to take back
        (made.abort_transaction if number % 2 else made.commit_transaction)(WAIT_S)
    assert comes_to_read(cluster, name, sorted(["0", "2", "4"] * 3))
    assert read(cluster, name, isolation="read_uncommitted") == sorted([str(number) for number in range(6)] * 3)


def test_an_open_transaction_is_not_seen_and_holds_back_what_comes_after_it(cluster: SextonCluster) -> None:
    name = topic(cluster, "open", 1)
    made = producer(cluster, "open")
    made.begin_transaction()
    send(made, name, "open")
    made.flush(WAIT_S)
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    send(plain, name, "plain")
    plain.flush(WAIT_S)
    assert read(cluster, name, 1) == []
    assert read(cluster, name, 1, isolation="read_uncommitted") == ["open", "plain"]
    made.commit_transaction(WAIT_S)
    assert comes_to_read(cluster, name, ["open", "plain"], 1)


def test_a_copy_that_commits_its_offsets_in_the_transaction_loses_and_doubles_nothing(cluster: SextonCluster) -> None:
    source, target = topic(cluster, "source", 1), topic(cluster, "target", 1)
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    send(plain, source, *(f"{number:02}" for number in range(40)))
    plain.flush(WAIT_S)
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "copy", "isolation.level": "read_committed"}
    consumer = Consumer({**config, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([source])
    made = producer(cluster, "copy")
    copied, attempt, deadline_s = 0, 0, time.monotonic() + WAIT_S
    while copied < 40:
        assert time.monotonic() < deadline_s
        messages = [one for one in consumer.consume(7, 1.0) if one.error() is None]
        if not messages:
            continue
        attempt += 1
        made.begin_transaction()
        for message in messages:
            send(made, target, (message.value() or b"").decode())
        positions = consumer.position(consumer.assignment())
        made.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
        if attempt % 3 == 2:  # and back to what is committed
            made.abort_transaction(WAIT_S)
            for place in consumer.committed(consumer.assignment(), WAIT_S):
                consumer.seek(place)
            continue
        made.commit_transaction(WAIT_S)
        copied += len(messages)
    [committed] = consumer.committed([TopicPartition(source, 0)], WAIT_S)
    consumer.close()
    assert committed.offset == 40
    assert comes_to_read(cluster, target, [f"{number:02}" for number in range(40)], 1)


def test_an_instance_that_was_replaced_is_fenced_and_its_transaction_aborted(cluster: SextonCluster) -> None:
    name = topic(cluster, "fenced", 1)
    zombie = producer(cluster, "fenced")
    zombie.begin_transaction()
    send(zombie, name, "zombie")
    zombie.flush(WAIT_S)
    owner = producer(cluster, "fenced")
    owner.begin_transaction()
    send(owner, name, "owner")
    error = fails(zombie).args[0]
    assert error.fatal()
    assert error.name() == "_FENCED"
    owner.commit_transaction(WAIT_S)
    assert comes_to_read(cluster, name, ["owner"], 1)


def test_a_producer_whose_transaction_timed_out_aborts_and_goes_on(cluster: SextonCluster) -> None:
    """It is not told that another producer has taken its place (KIP-588)."""
    name = topic(cluster, "late", 1)
    made = producer(cluster, "late", transaction_timeout_ms=TIMEOUT_MS)
    made.begin_transaction()
    send(made, name, "late")
    made.flush(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while read(cluster, name, 1, isolation="read_uncommitted") != ["late"] or _is_held_back(cluster, name):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    error = fails(made).args[0]
    assert not error.fatal()
    assert error.txn_requires_abort()
    made.abort_transaction(WAIT_S)
    made.begin_transaction()
    send(made, name, "in time")
    made.commit_transaction(WAIT_S)
    assert comes_to_read(cluster, name, ["in time"], 1)


def _is_held_back(cluster: SextonCluster, name: str) -> bool:
    """Whether the transaction is open: then the last stable offset is not the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "look",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        return consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=WAIT_S)[1] < 2
    finally:
        consumer.close()


@pytest.mark.parametrize("moment", ["open", "flushed", "committed"])
def test_transactions_survive_the_death_of_their_coordinator(cluster: SextonCluster, moment: str) -> None:
    name = topic(cluster, f"killed-{moment}")
    made = producer(cluster, name)
    made.begin_transaction()
    send(made, name, "before")
    made.commit_transaction(WAIT_S)
    coordinator = cluster.leaders("__transaction_state")[partition_for(name, STATE_PARTITIONS)]
    made.begin_transaction()
    for partition in range(3):
        send(made, name, "during", partition=partition)
    if moment == "flushed":
        made.flush(WAIT_S)
    if moment == "committed":
        made.commit_transaction(WAIT_S)  # its markers may be on their way
    cluster.kill_node(coordinator)
    try:
        if moment != "committed":
            made.commit_transaction(WAIT_S)
        made.begin_transaction()
        send(made, name, "after")
        made.commit_transaction(WAIT_S)
        assert comes_to_read(cluster, name, sorted(["before", *["during"] * 3, "after"]))
    finally:
        cluster.start_node(coordinator)


def test_a_connection_from_before_the_coordinator_took_over_must_be_opened_again(cluster: SextonCluster) -> None:
    """What comes first on it may have been sent when that broker was the coordinator the time before."""
    name = topic(cluster, "unproven", 1)
    addresses = dict(zip(cluster.node_ids, cluster.bootstrap.split(","), strict=True))
    former = cluster.leaders("__transaction_state")[partition_for(name, STATE_PARTITIONS)]
    with TransactionalClient(addresses[former], name) as client:
        producer = client.start()
        assert client.add(producer, name) == [ErrorCode.none]
    early = {node: TransactionalClient(address, name) for node, address in addresses.items() if node != former}
    cluster.kill_node(former)
    try:
        latter = _next_coordinator(cluster, name, former)
        codes = _ends(early[latter], producer)
        assert set(codes) <= NOT_YET
        with TransactionalClient(addresses[latter], name) as again:
            deadline_s = time.monotonic() + WAIT_S
            while (code := again.end(producer, True)[0]) in NOT_YET:
                assert time.monotonic() < deadline_s
            assert code is ErrorCode.none
    finally:
        cluster.start_node(former)
        for client in early.values():
            client.close()


def _next_coordinator(cluster: SextonCluster, name: str, former: int) -> int:
    deadline_s = time.monotonic() + WAIT_S
    while (leader := cluster.leaders("__transaction_state")[partition_for(name, STATE_PARTITIONS)]) in (former, -1):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return leader


def _ends(client: TransactionalClient, producer: tuple[int, int]) -> list[ErrorCode]:
    """What the broker says to EndTxn, over and over on one connection, until it hangs up."""
    codes = []
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        try:
            codes.append(client.end(producer, True)[0])
        except (AssertionError, OSError):
            return codes
        time.sleep(0.05)
    raise AssertionError(f"it never hung up: {codes[-3:]}")
