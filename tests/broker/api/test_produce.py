"""Produce, in every version: what is answered, when, and that no failure looks like a success (rule 9)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from sexton.broker.produce.refused import KEPT_MS
from sexton.log.types import Appended
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.ports.metastore import TopicRow
from sexton.protocol.errors import ErrorCode, KafkaError, RecordFault, RecordsError
from sexton.records.batch import Record, encode, make_batch
from sexton.records.codecs import Codec
from tests.broker.api.transactional_client import batch
from tests.broker.fakes import TOPIC, TOPIC_ID, Client, FakeBroker, FakeReplica
from tests.producers import producer_at

PRODUCE = 0
EVERY_VERSION = range(3, 14)


def body(
    *partitions: int, acks: int = 1, timeout_ms: int = 30_000, topic: str = TOPIC, topic_id: Any = TOPIC_ID
) -> dict[str, Any]:
    data = [{"index": partition, "records": b"batch %d" % partition} for partition in partitions]
    return {
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": data}],
    }


def outcomes(answer: Any) -> list[tuple[int, ErrorCode, int]]:
    (topic,) = answer.responses
    return [(outcome.index, outcome.error_code, outcome.base_offset) for outcome in topic.partition_responses]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_appended_batches_are_answered_with_their_offsets(version: int) -> None:
    broker = FakeBroker()
    broker.replica(1).log.records += [b"older"] * 5
    client = Client(broker)
    answer = await client.call(PRODUCE, version, body(0, 1))
    assert outcomes(answer) == [(0, ErrorCode.none, 0), (1, ErrorCode.none, 5)]
    (topic,) = answer.responses
    assert (topic.topic_id if version >= 13 else topic.name) == (TOPIC_ID if version >= 13 else TOPIC)
    assert all(outcome.log_append_time is None for outcome in topic.partition_responses)
    if version >= 5:
        assert all(outcome.log_start_offset == 0 for outcome in topic.partition_responses)
    assert broker.replica(0).log.records == [b"batch 0"]
    assert broker.replica(1).log.records[5:] == [b"batch 1"]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_every_failure_has_base_offset_minus_one(version: int) -> None:
    broker = FakeBroker()
    broker.replica(0).error = KafkaError(ErrorCode.message_too_large, "larger than max.message.bytes")
    client = Client(broker)
    answer = await client.call(PRODUCE, version, body(0, 1, 9))
    assert outcomes(answer) == [
        (0, ErrorCode.message_too_large, -1),
        (1, ErrorCode.none, 0),
        (9, ErrorCode.unknown_topic_or_partition, -1),
    ]
    first = answer.responses[0].partition_responses[0]
    assert first.log_append_time is None
    if version >= 5:
        assert first.log_start_offset == -1
    if version >= 8:
        assert first.error_message == "larger than max.message.bytes"
        assert first.record_errors == ()


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("client_id", ["mirror", "__admin_client"])
async def test_internal_topics_are_for_their_coordinators_to_write(version: int, client_id: str) -> None:
    broker = FakeBroker()
    topic_id = uuid.UUID(int=77)
    broker.view.topics[OFFSETS_TOPIC] = TopicRow(topic_id, OFFSETS_TOPIC, True)
    broker.replicas.by_name[OFFSETS_TOPIC, 0] = replica = FakeReplica(OFFSETS_TOPIC, 0)
    asked = body(0, acks=-1, topic=OFFSETS_TOPIC, topic_id=topic_id)
    client = Client(broker)
    client.client_id = client_id
    answer = await client.call(PRODUCE, version, asked)
    assert outcomes(answer) == [(0, ErrorCode.invalid_topic_exception, -1)]
    assert replica.log.records == []


async def test_time_of_appending_is_told_where_the_log_sets_it() -> None:
    broker = FakeBroker()
    replica = broker.replica()
    replica.append = lambda _, acks, now_ms, **_more: (Appended(4, 4, now_ms, 2), None)  # type: ignore[method-assign]
    client = Client(broker)
    for version in EVERY_VERSION:
        (outcome,) = (await client.call(PRODUCE, version, body(0))).responses[0].partition_responses
        assert outcome.log_append_time == datetime.fromtimestamp(broker.clock.now_ms() / 1000, UTC)


async def test_topic_that_is_not_there_by_name_or_by_id() -> None:
    client = Client(FakeBroker())
    answer = await client.call(PRODUCE, 12, body(0, topic="nobody"))
    assert outcomes(answer) == [(0, ErrorCode.unknown_topic_or_partition, -1)]
    for topic_id in (None, type(TOPIC_ID)(int=99)):
        answer = await client.call(PRODUCE, 13, body(0, topic_id=topic_id))
        assert outcomes(answer) == [(0, ErrorCode.unknown_topic_id, -1)]
        assert answer.responses[0].topic_id == topic_id


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_leader_is_named_when_it_is_elsewhere(version: int) -> None:
    broker = FakeBroker()
    replica = broker.replica()
    replica.is_leader = False
    replica.row = type(replica.row)(TOPIC_ID, 0, (1, 2), (2,), 2, 9, 0)
    client = Client(broker)
    answer = await client.call(PRODUCE, version, body(0))
    assert outcomes(answer) == [(0, ErrorCode.not_leader_or_follower, -1)]
    if version >= 10:
        hint = answer.responses[0].partition_responses[0].current_leader
        assert (hint.leader_id, hint.leader_epoch) == (2, 9)
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (2, "host2", 9002, "rack2")


async def test_acks_all_waits_until_every_partition_is_committed() -> None:
    broker = FakeBroker()
    for partition in (0, 1):
        broker.replica(partition).commits_by_itself = False
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, 1, 2, acks=-1))
    broker.replica(0).commit()
    await asyncio.sleep(0.01)
    assert not client.connection.sent
    broker.replica(1).commit()
    assert outcomes(await client.answer()) == [(n, ErrorCode.none, 0) for n in range(3)]


async def test_acks_one_does_not_wait() -> None:
    broker = FakeBroker()
    broker.replica().commits_by_itself = False
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, acks=1))
    assert outcomes(client.answers()[0]) == [(0, ErrorCode.none, 0)]


async def test_commit_that_fails_is_told_for_its_partition_alone() -> None:
    broker = FakeBroker()
    for partition in (0, 1):
        broker.replica(partition).commits_by_itself = False
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, 1, acks=-1))
    broker.replica(0).commit(KafkaError(ErrorCode.not_leader_or_follower, "another broker leads by now"))
    broker.replica(1).commit()
    assert outcomes(await client.answer()) == [(0, ErrorCode.not_leader_or_follower, -1), (1, ErrorCode.none, 0)]


async def test_time_that_runs_out_is_a_failure_without_an_offset() -> None:
    broker = FakeBroker()
    broker.replica(0).commits_by_itself = False
    client = Client(broker)
    answer = await client.call(PRODUCE, 9, body(0, 1, acks=-1, timeout_ms=20))
    assert outcomes(answer) == [(0, ErrorCode.request_timed_out, -1), (1, ErrorCode.none, 0)]
    broker.replica(0).commit()
    await asyncio.sleep(0.01)
    assert not client.connection.sent


async def test_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    broker = FakeBroker()
    broker.replica(0).commits_by_itself = False
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, acks=-1))
    client.receiver.closed(None)
    broker.replica(0).commit(KafkaError(ErrorCode.kafka_storage_error))
    await asyncio.sleep(0.01)
    assert not client.connection.sent


async def test_acks_zero_gets_no_answer_and_a_failure_closes_the_connection() -> None:
    broker = FakeBroker()
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, acks=0))
    assert not client.connection.sent
    assert broker.replica().log.records == [b"batch 0"]
    assert not client.connection.is_closed
    client.ask(PRODUCE, 9, body(0, 9, acks=0))
    assert client.connection.is_closed
    assert not client.connection.sent


@pytest.mark.parametrize("acks", [-2, 2, 32767])
async def test_acks_that_mean_nothing_are_refused_and_nothing_is_appended(acks: int) -> None:
    broker = FakeBroker()
    for version in EVERY_VERSION:
        answer = await Client(broker).call(PRODUCE, version, body(0, 1, acks=acks))
        assert [code for _, code, _ in outcomes(answer)] == [ErrorCode.invalid_required_acks] * 2
    assert not broker.replica().log.records


async def test_partition_without_records_is_an_invalid_record() -> None:
    client = Client(FakeBroker())
    for records in (None, b""):
        data = {"partition_data": [{"index": 0, "records": records}], "name": TOPIC}
        answer = await client.call(PRODUCE, 9, {"acks": 1, "timeout": 1000, "topic_data": [data]})
        assert outcomes(answer) == [(0, ErrorCode.invalid_record, -1)]


async def test_disk_that_fails_is_a_storage_error() -> None:
    broker = FakeBroker()
    client = Client(broker)

    def full(records: bytes, acks: int, now_ms: int, **_more: object) -> Any:
        raise OSError(28, "No space left on device")

    broker.replica().append = full  # type: ignore[method-assign]
    answer = await client.call(PRODUCE, 9, body(0))
    assert outcomes(answer) == [(0, ErrorCode.kafka_storage_error, -1)]
    assert answer.responses[0].partition_responses[0].error_message == "No space left on device"


async def test_requests_that_arrive_together_are_all_appended_before_anything_is_answered() -> None:
    broker = FakeBroker()
    replica = broker.replica()
    replica.commits_by_itself = False
    client = Client(broker)
    client.feed(b"".join(client.frame(PRODUCE, 9, body(0, acks=-1)) for _ in range(20)))
    assert replica.log.end_offset == 20
    assert len(replica.waiting) == 20
    replica.commit()
    await asyncio.sleep(0.01)
    assert [outcomes(answer)[0][2] for answer in client.answers()] == list(range(20))


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_the_records_to_blame_are_named_since_version_8(version: int) -> None:
    broker = FakeBroker()
    faults = [RecordFault(2, "no key"), RecordFault(700, "no key either")]
    broker.replica(0).error = RecordsError(ErrorCode.invalid_record, "two of them", faults)
    answer = await Client(broker).call(PRODUCE, version, body(0, 1))
    assert outcomes(answer) == [(0, ErrorCode.invalid_record, -1), (1, ErrorCode.none, 0)]
    if version >= 8:
        first, second = answer.responses[0].partition_responses
        assert first.error_message == "two of them"
        assert [(one.batch_index, one.batch_index_error_message) for one in first.record_errors] == [
            (2, "no key"),
            (700, "no key either"),
        ]
        assert second.record_errors == ()


# --- batches after one that was refused ---

NEW_PRODUCER = producer_at(77, 3)


async def send(client: Client, sequence: int, epoch: int = NEW_PRODUCER[1], version: int = 9) -> ErrorCode:
    """The error that a plain batch of one record gets."""
    asked = body(0)
    records = batch((NEW_PRODUCER[0], epoch), sequence, "value", is_transactional=False)
    asked["topic_data"][0]["partition_data"][0]["records"] = records
    return outcomes(await client.call(PRODUCE, version, asked))[0][1]


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("how", ["replicas are missing", "another broker leads", "the topic is not known yet"])
async def test_what_comes_after_a_refused_batch_of_a_new_producer_is_refused_until_that_has_come(
    version: int, how: str
) -> None:
    broker = FakeBroker()
    replica = broker.replica()
    client = Client(broker)
    by_name = dict(broker.replicas.by_name)
    if how == "replicas are missing":
        replica.error = KafkaError(ErrorCode.not_enough_replicas)
    elif how == "another broker leads":
        replica.is_leader = False
    else:
        broker.view.topics.clear()
        broker.replicas.by_name.clear()
    refusal = await send(client, 0, version=version)
    assert refusal.retriable
    assert await send(client, 1, version=version) is refusal
    replica.error, replica.is_leader = None, True
    broker.view.topics[TOPIC] = TopicRow(TOPIC_ID, TOPIC, False)
    broker.replicas.by_name.update(by_name)
    assert await send(client, 2, version=version) is refusal
    assert await send(client, 1, version=version) is refusal
    assert await send(client, 0, version=version) is ErrorCode.none
    replica.log.producers.note_data(*NEW_PRODUCER, 0, 0, 0, broker.clock.now_ms(), False)
    assert await send(client, 1, version=version) is ErrorCode.none
    assert not broker.refused


async def test_a_refusal_that_no_client_tries_again_upon_leaves_no_gap() -> None:
    broker = FakeBroker()
    client = Client(broker)
    broker.replica().error = KafkaError(ErrorCode.message_too_large)
    assert await send(client, 0) is ErrorCode.message_too_large
    broker.replica().error = None
    assert await send(client, 1) is ErrorCode.none


async def test_a_new_epoch_or_a_long_time_ends_the_wait_for_a_refused_batch() -> None:
    broker = FakeBroker()
    client = Client(broker)
    replica = broker.replica()
    for epoch, pause_ms in ((NEW_PRODUCER[1] + 1, 0), (NEW_PRODUCER[1], KEPT_MS)):
        replica.error = KafkaError(ErrorCode.not_enough_replicas)
        assert await send(client, 0) is ErrorCode.not_enough_replicas
        replica.error = None
        assert await send(client, 1) is ErrorCode.not_enough_replicas
        broker.clock.ms += pause_ms // 2
        assert await send(client, 1) is ErrorCode.not_enough_replicas
        broker.clock.ms += pause_ms // 2
        assert await send(client, 1, epoch) is ErrorCode.none
        assert not broker.refused


async def test_sequences_that_wrap_around_are_in_order_too() -> None:
    broker = FakeBroker()
    client = Client(broker)
    broker.replica().error = KafkaError(ErrorCode.not_enough_replicas)
    assert await send(client, 2**31 - 1) is ErrorCode.not_enough_replicas
    broker.replica().error = None
    assert await send(client, 0) is ErrorCode.not_enough_replicas
    assert await send(client, 2**31 - 1) is ErrorCode.none


async def test_zstd_is_for_versions_whose_clients_know_it() -> None:
    broker = FakeBroker()
    client = Client(broker)
    packed = encode(make_batch([Record(0, 0, b"k", b"v")], attributes=Codec.ZSTD, leader_epoch=-1))
    for version in EVERY_VERSION:
        asked = body(0)
        asked["topic_data"][0]["partition_data"][0]["records"] = packed
        (found,) = outcomes(await client.call(PRODUCE, version, asked))
        assert found[1] is (ErrorCode.none if version >= 7 else ErrorCode.unsupported_compression_type)
