"""Transactions request by request, on one real broker: both generations of clients, late requests, and bad input."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from sexton.broker.api import end_txn, produce
from sexton.harness.brokers import SextonCluster
from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import decode_response, encode_request
from tests.broker.api.transactional_client import (
    NEW_END,
    NEW_PRODUCE,
    OLD_PRODUCE,
    Producer,
    TransactionalClient,
    batch,
)
from tests.robustness.wire import API_VERSIONS, DELETE_TOPICS, produce_body

pytestmark = pytest.mark.cluster

NONE: Final = ErrorCode.none
WAIT_S: Final = 60.0
numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SextonCluster]:
    settings = {
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "offsets.topic.replication.factor": 1,
    }
    with SextonCluster(nodes=1, settings=settings) as made:
        with TransactionalClient(made.bootstrap, "first") as client:
            assert client.find() is NONE
        yield made


@pytest.fixture
def topic(cluster: SextonCluster) -> str:
    name = f"topic-{next(numbers)}"
    cluster.create_topic(name, 2)
    return name


@pytest.fixture
def connect(cluster: SextonCluster) -> Iterator[Callable[[], TransactionalClient]]:
    """Each call is a new connection of the same client."""
    name = f"app-{next(numbers)}"
    opened: list[TransactionalClient] = []

    def connect() -> TransactionalClient:
        opened.append(TransactionalClient(cluster.bootstrap, name))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def client(connect: Callable[[], TransactionalClient]) -> TransactionalClient:
    return connect()


def ended(client: TransactionalClient) -> str:
    """The state, once all markers are written."""
    deadline_s = time.monotonic() + WAIT_S
    while (state := client.state()).startswith("Prepare"):
        assert time.monotonic() < deadline_s
    return state


@contextmanager
def hanging_up() -> Iterator[None]:
    """The broker does not answer what is asked in here: whoever is still there has to connect anew."""
    with pytest.raises(AssertionError, match="the broker hung up"):
        yield


def write(client: TransactionalClient, topic: str, producer: Producer, sequence: int, value: str) -> None:
    assert client.send_batch(topic, batch(producer, sequence, value))[0] is NONE


# Both generations


def test_an_old_client_adds_writes_and_commits(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    for number in range(3):
        assert client.add(producer, topic) == [NONE]
        write(client, topic, producer, number, str(number))
        assert client.end(producer, True)[0] is NONE
        assert ended(client) == "CompleteCommit"
    assert client.committed(topic) == [6, 6]


def test_a_new_client_writes_and_commits_and_is_told_its_next_epoch(client: TransactionalClient, topic: str) -> None:
    producer = client.start(version=5)
    for number in range(3):
        records = batch(producer, 0, str(number))
        assert client.send_batch(topic, records, version=NEW_PRODUCE) == (NONE, 2 * number)
        assert client.state() == "Ongoing"
        code, after = client.end(producer, True, NEW_END)
        assert (code, after) == (NONE, (producer[0], producer[1] + 1))
        producer = after
    ended(client)
    assert client.committed(topic) == [6, 6]


def test_an_end_of_a_new_client_that_comes_again_ends_nothing_else(client: TransactionalClient, topic: str) -> None:
    first = client.start()
    client.send_batch(topic, batch(first, 0, "a"), version=NEW_PRODUCE)
    _, second = client.end(first, True, NEW_END)
    ended(client)
    assert client.end(first, True, NEW_END) == (NONE, second)
    client.send_batch(topic, batch(second, 0, "b"), version=NEW_PRODUCE)
    assert client.end(first, True, NEW_END)[0] is ErrorCode.producer_fenced
    assert client.state() == "Ongoing"
    assert client.committed(topic) == [2, 3]


def test_the_next_transaction_may_begin_before_the_markers_of_the_last_are_written(
    client: TransactionalClient, topic: str
) -> None:
    """End and next beginning are sent at once: the batch waits for the markers, one of which comes while it does."""
    producer = client.start()
    client.send_batch(topic, batch(producer, 0, "0"), version=NEW_PRODUCE)
    for number in range(1, 20):
        ending = {
            "transactional_id": client.transactional_id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": True,
        }
        producer = producer[0], producer[1] + 1
        body = produce_body(topic, batch(producer, 0, str(number)), 0, -1, 30_000)
        frames = encode_request(end_txn.API_KEY, NEW_END, 1, "x", ending)
        frames += encode_request(
            produce.API_KEY, NEW_PRODUCE, 2, "x", {**body, "transactional_id": client.transactional_id}
        )
        client.socket.sendall(frames)
        answers = client.receive(), client.receive()
        assert answers[0] is not None
        assert answers[1] is not None
        assert decode_response(end_txn.API_KEY, NEW_END, memoryview(answers[0]))[1].error_code is NONE
        told = decode_response(produce.API_KEY, NEW_PRODUCE, memoryview(answers[1]))[1]
        assert told.responses[0].partition_responses[0].error_code is NONE


def test_clients_are_told_of_the_features_that_brokers_have(client: TransactionalClient) -> None:
    software = {"client_software_name": "x", "client_software_version": "1"}
    answer = client.call(API_VERSIONS, 4, software)
    assert [(one.name, one.min_version, one.max_version) for one in answer.supported_features] == [
        ("group.version", 0, 1),
        ("metadata.version", 7, 30),
        ("transaction.version", 0, 2),
    ]
    finalized = [
        ("group.version", 1, 1),
        ("metadata.version", 30, 30),
        ("transaction.version", 2, 2),
    ]
    for told in (answer, client.call(API_VERSIONS, 3, software)):
        features = [(one.name, one.min_version_level, one.max_version_level) for one in told.finalized_features]
        assert features == finalized
        assert told.finalized_features_epoch >= 0
    older = client.call(API_VERSIONS, 3, software)
    assert [one.name for one in older.supported_features] == ["metadata.version"], "those that begin at 0 are left out"


# Late requests of old clients


def test_a_late_end_does_not_end_the_next_transaction(connect: Callable[[], TransactionalClient], topic: str) -> None:
    """KAFKA-17754: it was sent over a connection that the client has given up since."""
    old = connect()
    producer = old.start()
    old.add(producer, topic)
    write(old, topic, producer, 0, "a")
    new = connect()
    assert new.end(producer, True)[0] is NONE  # the client asks again, over another connection
    ended(new)
    assert new.add(producer, topic) == [NONE]
    write(new, topic, producer, 1, "b")
    with hanging_up():
        old.end(producer, True)  # the late one
    assert new.state() == "Ongoing"
    assert new.committed(topic) == [2, 3]
    assert new.end(producer, False)[0] is NONE


def test_a_late_produce_does_not_slide_into_the_next_transaction(
    connect: Callable[[], TransactionalClient], topic: str
) -> None:
    old = connect()
    producer = old.start()
    old.add(producer, topic)
    write(old, topic, producer, 0, "a")
    new = connect()
    write(new, topic, producer, 1, "b")
    assert new.end(producer, False)[0] is NONE
    ended(new)
    new.add(producer, topic)
    write(new, topic, producer, 2, "c")
    with hanging_up():
        old.send_batch(topic, batch(producer, 3, "late"))
    write(new, topic, producer, 3, "d")


def test_a_late_addition_is_not_taken_and_neither_are_late_offsets(
    connect: Callable[[], TransactionalClient], topic: str
) -> None:
    old, older, oldest = connect(), connect(), connect()
    producer = old.start()
    assert old.add_offsets(producer, "late") is NONE
    assert old.commit_offset(producer, "late", topic, 1) is NONE
    new = connect()
    assert new.add(producer, topic) == [NONE]
    assert new.commit_offset(producer, "late", topic, 2) is NONE
    with hanging_up():
        old.add(producer, topic, 1)
    with hanging_up():
        older.add_offsets(producer, "late")
    with hanging_up():
        oldest.commit_offset(producer, "late", topic, 1)
    assert new.end(producer, True)[0] is NONE
    ended(new)
    assert new.offset("late", topic) == (NONE, 2)


# Two clients that share a producer: Flink's writer, and the committer that ends its transactions


@pytest.mark.parametrize("is_commit", [True, False])
def test_who_is_still_there_ends_the_transaction_over_a_new_connection(
    connect: Callable[[], TransactionalClient], topic: str, is_commit: bool
) -> None:
    """Flink's committer: its connection is older than the writer's, whose transaction it is to end."""
    committer, writer = connect(), connect()
    committer.find()
    producer = writer.start()
    writer.add(producer, topic)
    write(writer, topic, producer, 0, "a")
    with hanging_up():
        committer.end(producer, is_commit)
    assert writer.state() == "Ongoing"
    again = connect()
    assert again.end(producer, is_commit)[0] is NONE
    assert ended(again) == ("CompleteCommit" if is_commit else "CompleteAbort")
    assert again.committed(topic) == [2, 2]


def test_an_end_that_was_done_is_told_so_over_whichever_connection(
    connect: Callable[[], TransactionalClient], topic: str
) -> None:
    """Flink's writer ends once more what its committer has ended. There is nothing open that it could hit."""
    writer, committer = connect(), connect()
    producer = writer.start()
    writer.add(producer, topic)
    write(writer, topic, producer, 0, "a")
    assert committer.end(producer, True)[0] is NONE
    assert writer.end(producer, True)[0] is NONE
    assert writer.end(producer, False)[0] in (ErrorCode.unknown_producer_id, ErrorCode.concurrent_transactions)
    assert ended(committer) == "CompleteCommit"
    assert committer.add(producer, topic) == [NONE]
    with hanging_up():
        writer.end(producer, True)
    assert committer.state() == "Ongoing"


def test_two_who_take_turns_are_slow_and_lose_nothing(connect: Callable[[], TransactionalClient], topic: str) -> None:
    one, other = connect(), connect()
    producer = one.start()
    for number in range(4):
        assert other.add(producer, topic) == [NONE]
        write(other, topic, producer, number, str(number))
        with hanging_up():
            one.end(producer, True)
        one = connect()
        assert one.end(producer, True)[0] is NONE
        ended(one)
        with hanging_up():
            other.add(producer, topic)
        other = connect()
    assert other.committed(topic) == [8, 8]


# Verification


def test_a_batch_for_a_partition_that_was_not_added_is_refused_and_leaves_nothing_open(
    client: TransactionalClient, topic: str
) -> None:
    producer = client.start()
    client.add(producer, topic, 1)
    assert client.send_batch(topic, batch(producer, 0, "a")) == (ErrorCode.invalid_txn_state, -1)
    assert client.send_batch(topic, batch(producer, 0, "a"), version=11) == (ErrorCode.transaction_abortable, -1)
    assert client.committed(topic) == [0, 0]


def test_a_batch_that_comes_after_its_transaction_ended_does_not_hang(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    client.add(producer, topic)
    client.end(producer, False)
    ended(client)
    assert client.send_batch(topic, batch(producer, 0, "late"))[0] is ErrorCode.invalid_txn_state
    assert len(set(client.committed(topic))) == 1


def test_a_new_clients_transaction_begins_with_its_first_batch_or_not_at_all(
    client: TransactionalClient, topic: str
) -> None:
    """Every transaction of such a client has a new epoch, and so begins at sequence 0 in each partition."""
    producer = client.start()
    late = ErrorCode.out_of_order_sequence_number, -1
    assert client.send_batch(topic, batch(producer, 1, "b"), version=NEW_PRODUCE) == late
    assert client.send_batch(topic, batch(producer, 0, "a"), version=NEW_PRODUCE) == (NONE, 0)
    assert client.send_batch(topic, batch(producer, 1, "b"), version=NEW_PRODUCE) == (NONE, 1)


def test_a_retry_of_what_is_there_is_answered_as_the_first_time(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    client.add(producer, topic)
    records = batch(producer, 0, "a")
    assert client.send_batch(topic, records) == (NONE, 0)
    assert client.send_batch(topic, records) == (NONE, 0)
    client.end(producer, True)
    ended(client)
    assert client.send_batch(topic, records) == (NONE, 0)


def test_a_zombies_batch_has_an_epoch_that_is_over(connect: Callable[[], TransactionalClient], topic: str) -> None:
    zombie, owner = connect(), connect()
    old = zombie.start()
    new = owner.start()
    for version in (OLD_PRODUCE, NEW_PRODUCE):
        code, offset = zombie.send_batch(topic, batch(old, 0, "zombie"), version=version)
        assert (code, offset) == (ErrorCode.invalid_producer_epoch, -1)
    assert zombie.end(old, True)[0] is ErrorCode.producer_fenced
    assert zombie.end(old, True, 1)[0] is ErrorCode.invalid_producer_epoch
    assert zombie.add(old, topic) == [ErrorCode.producer_fenced]
    assert zombie.add(old, topic, version=1) == [ErrorCode.invalid_producer_epoch]
    assert zombie.init(old)[0] is ErrorCode.producer_fenced
    assert zombie.init(old, version=3)[0] is ErrorCode.invalid_producer_epoch
    assert owner.add(new, topic) == [NONE]


def test_many_batches_sent_at_once_are_appended_in_their_order(client: TransactionalClient, topic: str) -> None:
    """The first of them waits for the coordinator, and those behind it wait for it."""
    producer = client.start()
    frames = b""
    for number in range(20):
        body = produce_body(topic, batch(producer, number, str(number)), 0, -1, 30_000)
        body["transactional_id"] = client.transactional_id
        frames += encode_request(produce.API_KEY, NEW_PRODUCE, number, "x", body)
    client.socket.sendall(frames)
    for number in range(20):
        answer = client.receive()
        assert answer is not None
        correlation_id, entity = decode_response(produce.API_KEY, NEW_PRODUCE, memoryview(answer))
        part = entity.responses[0].partition_responses[0]
        assert (correlation_id, part.error_code, part.base_offset) == (number, NONE, number)


def test_brokers_ask_for_many_at_once(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    assert client.ask_as_broker(producer, topic, 0, verify_only=True) == [ErrorCode.transaction_abortable]
    assert client.ask_as_broker(producer, topic, 0, verify_only=False) == [NONE]
    assert client.ask_as_broker(producer, topic, 0, 1, verify_only=True) == [NONE, ErrorCode.transaction_abortable]
    assert client.ask_as_broker(producer, topic, 0, verify_only=True, version=4) == [NONE]


# Offsets


@pytest.mark.parametrize("is_commit", [False, True])
def test_offsets_wait_for_the_transaction(client: TransactionalClient, topic: str, is_commit: bool) -> None:
    group = f"group-{is_commit}"
    producer = client.start()
    assert client.commit_offset(producer, group, topic, 5) is ErrorCode.invalid_txn_state, "not added"
    assert client.add_offsets(producer, group) is NONE
    assert client.commit_offset(producer, group, topic, 5) is NONE
    assert client.offset(group, topic) == (ErrorCode.unstable_offset_commit, -1)
    assert client.offset(group, topic, require_stable=False) == (NONE, -1)
    client.end(producer, is_commit)
    ended(client)
    assert client.offset(group, topic) == (NONE, 5 if is_commit else -1)


def test_a_new_client_need_not_add_its_group(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    assert client.commit_offset(producer, "new-group", topic, 5, version=5) is NONE
    assert [one.topic for one in client.describe().topics] == ["__consumer_offsets"]
    client.end(producer, True, NEW_END)
    ended(client)
    assert client.offset("new-group", topic) == (NONE, 5)


def test_offsets_of_a_zombie_a_stranger_and_for_no_topic_are_refused(
    connect: Callable[[], TransactionalClient], topic: str
) -> None:
    zombie, owner = connect(), connect()
    old, new = zombie.start(), owner.start()
    assert zombie.commit_offset(old, "z", topic, 1) is ErrorCode.invalid_producer_epoch
    assert owner.add_offsets(new, "z") is NONE
    assert owner.commit_offset(new, "z", "nowhere", 1) is ErrorCode.unknown_topic_or_partition
    refusal = owner.commit_offset(new, "z", topic, 1, generation_id=3, member_id="m")
    assert refusal is ErrorCode.illegal_generation
    assert owner.commit_offset(new, "", topic, 1) is ErrorCode.invalid_group_id


# Timeouts


def test_a_new_client_whose_transaction_timed_out_aborts_and_goes_on(client: TransactionalClient, topic: str) -> None:
    producer = client.start(timeout_ms=50)
    client.send_batch(topic, batch(producer, 0, "late"), version=NEW_PRODUCE)
    deadline_s = time.monotonic() + WAIT_S
    while client.state() != "CompleteAbort":
        assert time.monotonic() < deadline_s
    records = batch(producer, 1, "later")
    assert client.send_batch(topic, records, version=NEW_PRODUCE) == (ErrorCode.transaction_abortable, -1)
    assert client.end(producer, True, NEW_END)[0] is ErrorCode.transaction_abortable
    code, after = client.end(producer, False, NEW_END)
    assert (code, after) == (NONE, (producer[0], producer[1] + 1))
    assert client.send_batch(topic, batch(after, 0, "in time"), version=NEW_PRODUCE)[0] is NONE


def test_an_old_client_whose_transaction_timed_out_starts_over(client: TransactionalClient, topic: str) -> None:
    producer = client.start(timeout_ms=1_000)
    client.add(producer, topic)
    client.add_offsets(producer, "late-group")
    write(client, topic, producer, 0, "late")
    deadline_s = time.monotonic() + WAIT_S
    while client.state() != "CompleteAbort":
        assert time.monotonic() < deadline_s
    assert client.send_batch(topic, batch(producer, 1, "later")) == (ErrorCode.invalid_txn_state, -1)
    assert client.commit_offset(producer, "late-group", topic, 1) is ErrorCode.illegal_generation
    assert client.commit_offset(producer, "late-group", topic, 1, version=4) is ErrorCode.transaction_abortable
    assert client.end(producer, True)[0] is ErrorCode.unknown_producer_id
    for _ in range(2):
        assert client.end(producer, False)[0] is NONE
    assert client.add_offsets(producer, "late-group") is ErrorCode.producer_fenced
    assert client.init(producer) == (NONE, (producer[0], producer[1] + 1))


# Markers


def test_a_marker_of_a_former_coordinator_is_refused(client: TransactionalClient, topic: str) -> None:
    assert client.mark((77, 0), topic, coordinator_epoch=5) is NONE
    assert client.mark((77, 0), topic, coordinator_epoch=4) is ErrorCode.transaction_coordinator_fenced
    assert client.mark((77, -1), topic, coordinator_epoch=5) is ErrorCode.invalid_producer_epoch
    assert client.mark((77, 0), "nowhere") is ErrorCode.unknown_topic_or_partition


def test_a_marker_that_raises_the_epoch_is_written_once(client: TransactionalClient, topic: str) -> None:
    for _ in range(3):
        assert client.mark((78, 1), topic, transaction_version=2) is NONE
    assert client.committed(topic) == [1, 1]


def test_an_operator_can_end_a_transaction_that_hangs(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    client.add(producer, topic)
    write(client, topic, producer, 0, "hangs")
    assert client.committed(topic) == [0, 1]
    assert client.mark(producer, topic, is_commit=False) is NONE
    assert client.committed(topic) == [2, 2]
    client.end(producer, True)
    assert ended(client) == "CompleteCommit", "the coordinator gets over it"


def test_a_partition_that_was_deleted_counts_as_done(
    cluster: SextonCluster, client: TransactionalClient, topic: str
) -> None:
    gone = f"{topic}-gone"
    cluster.create_topic(gone, 1)
    producer = client.start()
    client.add(producer, topic)
    client.add(producer, gone)
    write(client, topic, producer, 0, "kept")
    write(client, gone, producer, 0, "lost")
    client.call(DELETE_TOPICS, 6, {"topics": [{"name": gone, "topic_id": None}], "timeout": 10_000})
    assert client.end(producer, True)[0] is NONE
    assert ended(client) == "CompleteCommit"
    assert client.committed(topic) == [2, 2]


# Bad input, and looking


def test_what_does_not_exist_cannot_be_added_and_nothing_else_is(client: TransactionalClient, topic: str) -> None:
    producer = client.start()
    assert client.add(producer, topic, 0, 7) == [
        ErrorCode.operation_not_attempted,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert client.add(producer, "nowhere") == [ErrorCode.unknown_topic_or_partition]
    assert client.state() == "Empty"


def test_bad_requests_for_an_id_are_told_so(connect: Callable[[], TransactionalClient]) -> None:
    client = connect()
    assert client.init(timeout_ms=0)[0] is ErrorCode.invalid_transaction_timeout
    assert client.init(timeout_ms=900_001)[0] is ErrorCode.invalid_transaction_timeout
    assert client.init((5, -1))[0] is ErrorCode.invalid_request
    assert client.init(version=6)[0] is ErrorCode.unsupported_version, "two-phase commit is not offered"
    assert client.end((5, 0), True)[0] is ErrorCode.invalid_producer_id_mapping
    client.transactional_id = ""
    assert client.init()[0] is ErrorCode.invalid_request


def test_nothing_can_be_aborted_and_not_committed(client: TransactionalClient) -> None:
    producer = client.start()
    assert client.end(producer, True)[0] is ErrorCode.invalid_txn_state
    assert client.end(producer, True, NEW_END)[0] is ErrorCode.concurrent_transactions, "they may be on their way"
    assert client.end(producer, False)[0] is NONE, "a client may not know that nothing has begun"
    assert client.end(producer, False, NEW_END)[0] is NONE


@pytest.mark.parametrize("producer", [(-1, 0), (2**62, 0), (-(2**63), -1)])
def test_producers_that_do_not_exist_are_refused(client: TransactionalClient, topic: str, producer: Producer) -> None:
    client.start()
    assert client.end(producer, True)[0] is ErrorCode.invalid_producer_id_mapping
    assert client.add(producer, topic) == [ErrorCode.invalid_producer_id_mapping]
    assert client.send_batch(topic, batch(producer, 0, "x"))[0] is not NONE


def test_transactions_are_described_and_listed(client: TransactionalClient, topic: str) -> None:
    assert client.describe().error_code is ErrorCode.transactional_id_not_found
    producer = client.start(timeout_ms=12_345)
    told = client.describe()
    assert (told.transaction_state, told.transaction_start_time, told.topics) == ("Empty", None, ())
    client.add(producer, topic, 1, 0)
    told = client.describe()
    assert told.transaction_start_time is not None
    assert (told.producer_id, told.producer_epoch, told.transaction_state) == (*producer, "Ongoing")
    assert told.transaction_timeout.total_seconds() == 12.345
    assert [(one.topic, one.partitions) for one in told.topics] == [(topic, (0, 1))]
    pattern = client.transactional_id

    def found(**filters: object) -> list[str]:
        return [one.transaction_state for one in client.listed(**filters).transaction_states]  # type: ignore[arg-type]

    assert found(transactional_id_pattern=pattern) == ["Ongoing"]
    assert found(transactional_id_pattern=pattern, state_filters=["Empty"]) == []
    assert found(producer_id_filters=[producer[0]]) == ["Ongoing"]
    assert found(transactional_id_pattern=pattern, duration_filter=3_600_000) == []
    assert client.listed(state_filters=["Nonsense"]).unknown_state_filters == ("Nonsense",)
    assert client.listed(transactional_id_pattern="(").error_code is ErrorCode.invalid_regular_expression
    client.end(producer, False)
