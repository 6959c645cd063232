"""What clients' settings promise, on Sexton and on Apache Kafka: the rows of docs/client-safety.md."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from sexton.harness import asking
from sexton.harness.brokers import SextonCluster
from sexton.harness.cluster import Cluster
from sexton.harness.kafka import BROKER_JVM_OPTIONS, KafkaCluster
from sexton.harness.proxy import PRODUCE, Liar, Proxy, Request
from sexton.verify import systems
from tests.project import PROJECT_DIR
from tests.transactions.test_docs import functions_of

PAGE = PROJECT_DIR / "docs" / "client-safety.md"
WAIT_S = 30.0
NUMBERS = count(1)


@pytest.fixture(
    scope="module",
    params=[pytest.param("sexton", marks=pytest.mark.cluster), pytest.param("kafka", marks=pytest.mark.kafka)],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster[Any]]:
    made: Cluster[Any]
    if request.param == "sexton":
        made = SextonCluster(nodes=1)
    else:
        made = KafkaCluster(heap="384m", jvm_options=BROKER_JVM_OPTIONS)
    with made:
        yield made


@pytest.fixture
def topic(cluster: Cluster[Any]) -> str:
    name = f"safety-{next(NUMBERS)}"
    cluster.create_topic(name)
    return name


class Sent:
    """What a producer was told of each record."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.told: list[tuple[KafkaError | None, Message]] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **named})

    def send(self, topic: str, value: bytes) -> tuple[KafkaError | None, Message]:
        known = len(self.told)
        self._producer.produce(topic, value, partition=0, on_delivery=lambda *told: self.told.append(told))
        assert self._producer.flush(WAIT_S) == 0
        return self.told[known]


def consumer(bootstrap: str, group: str = "nobody", **settings: Any) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    common = {"bootstrap.servers": bootstrap, "group.id": group, "enable.partition.eof": True}
    return Consumer({**common, "enable.auto.commit": False, **named})


def read_to_the_end(reader: Consumer, topic: str, offset: int | None = 0) -> list[bytes]:
    """Values, until the consumer is told that there is no more. Without an offset: from where its settings say."""
    place = TopicPartition(topic, 0) if offset is None else TopicPartition(topic, 0, offset)
    reader.assign([place])
    found = []
    while True:
        message = reader.poll(WAIT_S)
        assert message is not None
        error = message.error()
        if error is None:
            found.append(message.value() or b"")
        elif error.code() == KafkaError._PARTITION_EOF:
            return found
        else:
            raise KafkaException(error)


def log_of(bootstrap: str, topic: str) -> list[bytes]:
    reader = consumer(bootstrap, isolation_level="read_uncommitted")
    try:
        return read_to_the_end(reader, topic)
    finally:
        reader.close()


class LosesOneAnswer(Liar):
    """The first acknowledgement of a record is lost, with its connection."""

    def __init__(self) -> None:
        self.has_lost = False

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key == PRODUCE and not self.has_lost:
            self.has_lost = True
            raise ConnectionResetError
        return frame


def test_without_acks_nobody_tells_that_a_record_was_refused(cluster: Cluster[Any], topic: str) -> None:
    large = b"x" * 2_000_000
    told = {}
    for acks in (0, "all"):
        producer = Sent(cluster.bootstrap, acks=acks, message_max_bytes=4_000_000, enable_idempotence=False)
        told[acks], _ = producer.send(topic, large)
    assert told[0] is None
    refused = told["all"]
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert log_of(cluster.bootstrap, topic) == []


@pytest.mark.parametrize(("is_idempotent", "times"), [(True, 1), (False, 2)])
def test_a_retry_after_a_lost_answer_doubles_a_record_unless_the_producer_is_idempotent(
    cluster: Cluster[Any], topic: str, is_idempotent: bool, times: int
) -> None:
    liar = LosesOneAnswer()
    with Proxy(cluster.bootstrap, liar) as proxy:
        error, _ = Sent(proxy.bootstrap, enable_idempotence=is_idempotent, acks="all").send(topic, b"one")
    assert error is None
    assert liar.has_lost
    assert log_of(cluster.bootstrap, topic) == [b"one"] * times


def test_a_send_that_timed_out_may_still_be_written(cluster: Cluster[Any], topic: str) -> None:
    with Proxy(cluster.bootstrap) as proxy:
        late = proxy.hold(PRODUCE)
        error, _ = Sent(proxy.bootstrap, message_timeout_ms=1_000, acks="all").send(topic, b"late")
        assert error is not None
        assert error.code() == KafkaError._MSG_TIMED_OUT
        assert log_of(cluster.bootstrap, topic) == []
        late.wait(WAIT_S)
        proxy.release(late)
    assert log_of(cluster.bootstrap, topic) == [b"late"]


@pytest.mark.parametrize(("reset", "found"), [("earliest", [b"old"]), ("latest", [])])
def test_a_group_without_offsets_begins_where_its_reset_says(
    cluster: Cluster[Any], topic: str, reset: str, found: list[bytes]
) -> None:
    Sent(cluster.bootstrap).send(topic, b"old")
    reader = consumer(cluster.bootstrap, f"group-{topic}", auto_offset_reset=reset)
    assert read_to_the_end(reader, topic, offset=None) == found
    reader.close()


def test_a_group_that_may_not_reset_is_told_that_it_has_no_offset(cluster: Cluster[Any], topic: str) -> None:
    reader = consumer(cluster.bootstrap, f"group-{topic}", auto_offset_reset="error")
    with pytest.raises(KafkaException) as told:
        read_to_the_end(reader, topic, offset=None)
    assert told.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    reader.close()


@pytest.mark.parametrize(("stores_itself", "again"), [(True, []), (False, [b"one"])])
def test_auto_commit_covers_what_was_only_handed_over_unless_the_application_stores_offsets(
    cluster: Cluster[Any], topic: str, stores_itself: bool, again: list[bytes]
) -> None:
    Sent(cluster.bootstrap).send(topic, b"one")
    for expected in ([b"one"], again):
        reader = consumer(
            cluster.bootstrap,
            f"group-{topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=True,
            enable_auto_offset_store=stores_itself,
        )
        assert read_to_the_end(reader, topic, offset=None) == expected
        reader.close()  # it has processed nothing, and commits


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    return producer


@pytest.mark.parametrize(("isolation", "found"), [("read_committed", []), ("read_uncommitted", [b"aborted"])])
def test_who_reads_uncommitted_is_given_what_was_aborted(
    cluster: Cluster[Any], topic: str, isolation: str, found: list[bytes]
) -> None:
    producer = transactional(cluster.bootstrap, topic)
    producer.produce(topic, b"aborted", partition=0)
    producer.flush(WAIT_S)
    producer.abort_transaction(WAIT_S)
    reader = consumer(cluster.bootstrap, isolation_level=isolation)
    assert read_to_the_end(reader, topic) == found
    reader.close()


def test_an_open_transaction_holds_back_everything_behind_it(cluster: Cluster[Any], topic: str) -> None:
    producer = transactional(cluster.bootstrap, topic)
    producer.produce(topic, b"open", partition=0)
    producer.flush(WAIT_S)
    Sent(cluster.bootstrap).send(topic, b"behind")
    reader = consumer(cluster.bootstrap, isolation_level="read_committed")
    assert read_to_the_end(reader, topic) == []
    producer.commit_transaction(WAIT_S)
    assert read_to_the_end(reader, topic) == [b"open", b"behind"]
    reader.close()


def test_a_successor_with_the_same_transactional_id_fences_its_predecessor(cluster: Cluster[Any], topic: str) -> None:
    predecessor = transactional(cluster.bootstrap, topic)
    predecessor.produce(topic, b"old", partition=0)
    predecessor.flush(WAIT_S)
    successor = transactional(cluster.bootstrap, topic)
    with pytest.raises(KafkaException) as told:
        predecessor.commit_transaction(WAIT_S)
    assert told.value.args[0].fatal()
    successor.produce(topic, b"new", partition=0)
    successor.commit_transaction(WAIT_S)
    reader = consumer(cluster.bootstrap, isolation_level="read_committed")
    assert read_to_the_end(reader, topic) == [b"new"]
    reader.close()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("sexton", marks=pytest.mark.cluster),
        pytest.param("kafka-4.3.0", marks=[pytest.mark.kafka, pytest.mark.soak]),
    ],
)
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster[Any]]:
    directory = tmp_path_factory.mktemp("three") / "cluster"
    with systems.running(request.param, directory, {}, is_compacting=False) as system:
        assert system.cluster is not None
        yield system.cluster


@pytest.mark.parametrize(("acks", "is_acknowledged"), [(1, True), ("all", False)])
def test_what_only_the_leader_has_is_acknowledged_with_acks_1_and_lost_with_the_leader(
    three: Cluster[Any], acks: int | str, is_acknowledged: bool
) -> None:
    topic = f"safety-{next(NUMBERS)}"
    three.create_topic(topic, replication_factor=3, config={"min.insync.replicas": 2})
    assert Sent(three.bootstrap, acks="all").send(topic, b"everywhere")[0] is None
    producer = Sent(three.bootstrap, acks=acks, enable_idempotence=False, message_timeout_ms=1_000, retries=0)
    assert producer.send(topic, b"while all are there")[0] is None, "so it is connected"
    leader = asking.leaders_of(three.bootstrap, topic)[0]
    followers = [node_id for node_id in three.node_ids if node_id != leader]
    for node_id in followers:
        three.pause_node(node_id)
    try:
        producer.send(topic, b"on its way")  # a follower's fetch was waiting for it, and may be answered already
        error, _ = producer.send(topic, b"leader only")
    finally:
        three.kill_node(leader)
        for node_id in followers:
            three.resume_node(node_id)
    assert (error is None) is is_acknowledged
    others = ",".join(address for address in three.bootstrap.split(",") if is_up(address))
    deadline_s = time.monotonic() + WAIT_S
    while b"everywhere" not in (left := log_of(others, topic)):  # the next leader must hear first that all have it
        assert time.monotonic() < deadline_s
    assert b"leader only" not in left
    three.start_node(leader)
    three.wait_ready()


def is_up(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=WAIT_S).close()
    except OSError:
        return False
    return True


REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [line for line in lines if line not in ("|---|---|", "| what is so | shown by |")]


def test_every_sentence_of_the_page_names_a_test_that_exists() -> None:
    assert rows()
    for row in rows():
        _, _, shown_by, _ = row.split("|")
        named = REFERENCE.findall(shown_by)
        assert named, row
        for path, name in named:
            assert name in functions_of(PROJECT_DIR / path), f"{path}::{name}"


def test_every_test_here_is_on_the_page() -> None:
    here = "tests/verify/test_client_safety.py"
    named = {name for path, name in REFERENCE.findall(PAGE.read_text()) if path == here}
    about_the_page = {"test_every_sentence_of_the_page_names_a_test_that_exists", "test_every_test_here_is_on_the_page"}
    tests = {name for name in functions_of(PROJECT_DIR / here) if name.startswith("test_")}
    assert named == tests - about_the_page
