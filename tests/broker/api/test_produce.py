"""Produce, in every version: what is answered, when, and that no failure looks like a success (rule 9)."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from sexton.broker.produce import refused
from sexton.broker.produce.refused import KEPT_MS
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Record, encode, make_batch
from sexton.records.codecs import Codec
from tests.broker.api.transactional_client import batch
from tests.broker.serving import (
    BOTH_IN_SYNC,
    BROKER_ID,
    OTHER_LEADS,
    TOPIC,
    TOPIC_ID,
    Client,
    ServingBroker,
    batch_of,
    serving_broker,
)
from tests.log.helpers import read_all
from tests.producers import producer_at

PRODUCE = 0
EVERY_VERSION = range(3, 14)


def body(
    *partitions: int,
    acks: int = 1,
    timeout_ms: int = 30_000,
    topic: str = TOPIC,
    topic_id: Any = TOPIC_ID,
    batches: Mapping[int, bytes | None] | None = None,
) -> dict[str, Any]:
    batches = batches or {partition: batch_of(b"batch %d" % partition) for partition in partitions}
    data = [{"index": partition, "records": records} for partition, records in batches.items()]
    return {
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": data}],
    }


def outcomes(answer: Any) -> list[tuple[int, ErrorCode, int]]:
    (topic,) = answer.responses
    return [(outcome.index, outcome.error_code, outcome.base_offset) for outcome in topic.partition_responses]


def values(broker: ServingBroker, partition: int = 0) -> list[bytes | None]:
    return [record.value for found in read_all(broker.replica(partition).log) for record in found.records]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_appended_batches_are_answered_with_their_offsets(version: int) -> None:
    broker = await serving_broker()
    await broker.write(*[b"older"] * 5, partition=1)
    client = Client(broker)
    answer = await client.call(PRODUCE, version, body(0, 1))
    assert outcomes(answer) == [(0, ErrorCode.none, 0), (1, ErrorCode.none, 5)]
    (topic,) = answer.responses
    assert (topic.topic_id if version >= 13 else topic.name) == (TOPIC_ID if version >= 13 else TOPIC)
    assert all(outcome.log_append_time is None for outcome in topic.partition_responses)
    if version >= 5:
        assert all(outcome.log_start_offset == 0 for outcome in topic.partition_responses)
    assert values(broker, 0) == [b"batch 0"]
    assert values(broker, 1)[5:] == [b"batch 1"]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_every_failure_has_base_offset_minus_one(version: int) -> None:
    broker = await serving_broker()
    await broker.configure(max_message_bytes="100")
    batches = {0: batch_of(b"x" * 100), 1: batch_of(b"x"), 9: batch_of(b"x")}
    answer = await Client(broker).call(PRODUCE, version, body(batches=batches))
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
        assert "max.message.bytes is 100" in first.error_message
        assert first.record_errors == ()


@pytest.mark.parametrize("version", EVERY_VERSION)
@pytest.mark.parametrize("client_id", ["mirror", "__admin_client"])
async def test_internal_topics_are_for_their_coordinators_to_write(version: int, client_id: str) -> None:
    broker = await serving_broker()
    topic_id = uuid.UUID(int=77)
    await broker.add_topic(OFFSETS_TOPIC, topic_id)
    asked = body(0, acks=-1, topic=OFFSETS_TOPIC, topic_id=topic_id)
    client = Client(broker)
    client.client_id = client_id
    answer = await client.call(PRODUCE, version, asked)
    assert outcomes(answer) == [(0, ErrorCode.invalid_topic_exception, -1)]
    assert broker.replica(topic=OFFSETS_TOPIC).log.end_offset == 0


async def test_time_of_appending_is_told_where_the_log_sets_it() -> None:
    broker = await serving_broker()
    await broker.configure(message_timestamp_type="LogAppendTime")
    client = Client(broker)
    for version in EVERY_VERSION:
        (outcome,) = (await client.call(PRODUCE, version, body(0))).responses[0].partition_responses
        assert outcome.log_append_time == datetime.fromtimestamp(broker.clock.now_ms() / 1000, UTC)


async def test_topic_that_is_not_there_by_name_or_by_id() -> None:
    client = Client(await serving_broker())
    answer = await client.call(PRODUCE, 12, body(0, topic="nobody"))
    assert outcomes(answer) == [(0, ErrorCode.unknown_topic_or_partition, -1)]
    for topic_id in (None, uuid.UUID(int=99)):
        answer = await client.call(PRODUCE, 13, body(0, topic_id=topic_id))
        assert outcomes(answer) == [(0, ErrorCode.unknown_topic_id, -1)]
        assert answer.responses[0].topic_id == topic_id


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_leader_is_named_when_it_is_elsewhere(version: int) -> None:
    broker = await serving_broker()
    await broker.change(**OTHER_LEADS)
    answer = await Client(broker).call(PRODUCE, version, body(0))
    assert outcomes(answer) == [(0, ErrorCode.not_leader_or_follower, -1)]
    if version >= 10:
        hint = answer.responses[0].partition_responses[0].current_leader
        assert (hint.leader_id, hint.leader_epoch) == (2, 9)
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (2, "host2", 9002, "rack2")


async def test_acks_all_waits_until_every_partition_is_committed() -> None:
    broker = await serving_broker()
    for partition in (0, 1):
        await broker.change(partition, **BOTH_IN_SYNC)
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, 1, 2, acks=-1))
    broker.fetched_by_follower(0)
    await asyncio.sleep(0.01)
    assert not client.connection.sent
    broker.fetched_by_follower(1)
    assert outcomes(await client.answer()) == [(n, ErrorCode.none, 0) for n in range(3)]


async def test_acks_all_waits_for_the_flush_and_acks_one_does_not() -> None:
    broker = await serving_broker()
    patient, hasty = Client(broker), Client(broker)
    with broker.held_flushes():
        patient.ask(PRODUCE, 9, body(0, acks=-1))
        hasty.ask(PRODUCE, 9, body(0, acks=1))
        assert outcomes(hasty.answers()[0]) == [(0, ErrorCode.none, 1)]
        await asyncio.sleep(0.01)
        assert not patient.connection.sent
    assert outcomes(await patient.answer()) == [(0, ErrorCode.none, 0)]


async def test_commit_that_fails_is_told_for_its_partition_alone() -> None:
    broker = await serving_broker()
    for partition in (0, 1):
        await broker.change(partition, **BOTH_IN_SYNC)
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, 1, acks=-1))
    await broker.change(0, **OTHER_LEADS)
    broker.fetched_by_follower(1)
    assert outcomes(await client.answer()) == [(0, ErrorCode.not_leader_or_follower, -1), (1, ErrorCode.none, 0)]


async def test_time_that_runs_out_is_a_failure_without_an_offset() -> None:
    broker = await serving_broker()
    await broker.change(0, **BOTH_IN_SYNC)
    client = Client(broker)
    answer = await client.call(PRODUCE, 9, body(0, 1, acks=-1, timeout_ms=20))
    assert outcomes(answer) == [(0, ErrorCode.request_timed_out, -1), (1, ErrorCode.none, 0)]
    broker.fetched_by_follower(0)
    await asyncio.sleep(0.01)
    assert broker.replica().high_watermark == 1
    assert not client.connection.sent


async def test_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    broker = await serving_broker()
    await broker.change(0, **BOTH_IN_SYNC)
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, acks=-1))
    client.receiver.closed(None)
    await broker.change(0, **OTHER_LEADS)
    await asyncio.sleep(0.01)
    assert not client.connection.sent


async def test_acks_zero_gets_no_answer_and_a_failure_closes_the_connection() -> None:
    broker = await serving_broker()
    client = Client(broker)
    client.ask(PRODUCE, 9, body(0, acks=0))
    assert not client.connection.sent
    assert values(broker) == [b"batch 0"]
    assert not client.connection.is_closed
    client.ask(PRODUCE, 9, body(0, 9, acks=0))
    assert client.connection.is_closed
    assert not client.connection.sent


@pytest.mark.parametrize("acks", [-2, 2, 32767])
async def test_acks_that_mean_nothing_are_refused_and_nothing_is_appended(acks: int) -> None:
    broker = await serving_broker()
    for version in EVERY_VERSION:
        answer = await Client(broker).call(PRODUCE, version, body(0, 1, acks=acks))
        assert [code for _, code, _ in outcomes(answer)] == [ErrorCode.invalid_required_acks] * 2
    assert broker.replica().log.end_offset == 0


async def test_partition_without_records_is_an_invalid_record() -> None:
    client = Client(await serving_broker())
    for records in (None, b""):
        answer = await client.call(PRODUCE, 9, body(batches={0: records}))
        assert outcomes(answer) == [(0, ErrorCode.invalid_record, -1)]


async def test_a_full_disk_is_a_storage_error_and_its_path_is_for_the_brokers_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = await serving_broker()
    broker.trouble(errno.ENOSPC)
    answer = await Client(broker).call(PRODUCE, 9, body(0, 1))
    assert outcomes(answer) == [(0, ErrorCode.kafka_storage_error, -1), (1, ErrorCode.none, 0)]
    message = answer.responses[0].partition_responses[0].error_message
    assert "No space left on device" in message
    assert "Make room on the disk" in message
    directory = broker.replica().log.directory
    assert directory not in message
    assert directory in caplog.text


async def test_requests_that_arrive_together_are_all_appended_before_anything_is_answered() -> None:
    broker = await serving_broker()
    client = Client(broker)
    with broker.held_flushes():
        client.feed(b"".join(client.frame(PRODUCE, 9, body(0, acks=-1)) for _ in range(20)))
        assert broker.replica().log.end_offset == 20
        await asyncio.sleep(0.01)
        assert not client.connection.sent
    await asyncio.sleep(0.01)
    assert [outcomes(answer)[0][2] for answer in client.answers()] == list(range(20))


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_the_records_to_blame_are_named_since_version_8(version: int) -> None:
    broker = await serving_broker()
    await broker.configure(cleanup_policy="compact")
    keyless = [Record(index, 0, None if index in (2, 700) else b"key", b"value") for index in range(701)]
    batches = {0: encode(make_batch(keyless, leader_epoch=-1)), 1: batch_of(b"value")}
    answer = await Client(broker).call(PRODUCE, version, body(batches=batches))
    assert outcomes(answer) == [(0, ErrorCode.invalid_record, -1), (1, ErrorCode.none, 0)]
    if version >= 8:
        first, second = answer.responses[0].partition_responses
        assert "has no key, and the topic is compacted" in first.error_message
        assert [one.batch_index for one in first.record_errors] == [2, 700]
        assert all("has no key" in one.batch_index_error_message for one in first.record_errors)
        assert second.record_errors == ()


async def test_a_retry_of_records_from_long_ago_is_not_written_twice() -> None:
    """The answer to the first attempt was lost, and idle producers are looked for before the second."""
    broker = await serving_broker()
    client = Client(broker)
    days_ago_ms = broker.clock.now_ms() - 2 * 86_400_000
    records = batch_of(b"once", days_ago_ms, producer_id=77, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        assert outcomes(await client.call(PRODUCE, 9, body(batches={0: records}))) == [(0, ErrorCode.none, 0)]
        await broker.replicas.run_retention()
    assert values(broker) == [b"once"]


# --- batches after one that was refused ---

NEW_PRODUCER = producer_at(77, 3)
LATER, LATER_ID = "later", uuid.UUID(int=8)


async def send(
    client: Client,
    sequence: int,
    epoch: int = NEW_PRODUCER[1],
    version: int = 9,
    topic: str = TOPIC,
    topic_id: uuid.UUID = TOPIC_ID,
) -> ErrorCode:
    """The error that a plain batch of one record gets."""
    records = batch((NEW_PRODUCER[0], epoch), sequence, "value", is_transactional=False)
    asked = body(acks=-1, topic=topic, topic_id=topic_id, batches={0: records})
    return outcomes(await client.call(PRODUCE, version, asked))[0][1]


async def lose_replicas(broker: ServingBroker) -> None:
    await broker.configure(min_insync_replicas="2")


async def regain_replicas(broker: ServingBroker) -> None:
    await broker.configure(min_insync_replicas="1")


async def lose_leadership(broker: ServingBroker) -> None:
    await broker.change(**OTHER_LEADS)


async def regain_leadership(broker: ServingBroker) -> None:
    await broker.change(leader=BROKER_ID, isr=(BROKER_ID,), leader_epoch=10)


async def not_make_the_topic(_: ServingBroker) -> None:
    """The client has heard of it from another broker."""


async def make_the_topic(broker: ServingBroker) -> None:
    await broker.add_topic(LATER, LATER_ID)


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize(
    ("refuse", "go_on", "topic"),
    [
        pytest.param(lose_replicas, regain_replicas, (TOPIC, TOPIC_ID), id="replicas are missing"),
        pytest.param(lose_leadership, regain_leadership, (TOPIC, TOPIC_ID), id="another broker leads"),
        pytest.param(not_make_the_topic, make_the_topic, (LATER, LATER_ID), id="the topic is not known yet"),
    ],
)
async def test_what_comes_after_a_refused_batch_of_a_new_producer_is_refused_until_that_has_come(
    version: int, refuse: Any, go_on: Any, topic: tuple[str, uuid.UUID]
) -> None:
    broker = await serving_broker()
    client = Client(broker)

    async def sent(sequence: int) -> ErrorCode:
        return await send(client, sequence, version=version, topic=topic[0], topic_id=topic[1])

    await refuse(broker)
    refusal = await sent(0)
    assert refusal.retriable
    assert await sent(1) is refusal
    await go_on(broker)
    assert await sent(2) is refusal
    assert await sent(1) is refusal
    assert [await sent(sequence) for sequence in (0, 1, 2, 3)] == [ErrorCode.none] * 4
    assert not broker.refused


async def test_what_comes_after_a_refused_batch_of_a_known_producer_is_no_gap_but_waits_for_it() -> None:
    """librdkafka takes a gap for lost records: it raises its epoch and doubles what it had no answer for."""
    broker = await serving_broker()
    client = Client(broker)
    assert await send(client, 0) is ErrorCode.none
    await lose_leadership(broker)
    assert await send(client, 1) is ErrorCode.not_leader_or_follower
    await regain_leadership(broker)
    assert await send(client, 3) is ErrorCode.not_leader_or_follower
    assert await send(client, 2) is ErrorCode.not_leader_or_follower
    assert await send(client, 0) is ErrorCode.none, "which is there, and is told as a duplicate"
    assert [await send(client, sequence) for sequence in (1, 2, 3)] == [ErrorCode.none] * 3
    assert await send(client, 5) is ErrorCode.out_of_order_sequence_number, "nobody refused 4"


async def test_what_was_refused_and_is_there_from_a_former_leader_holds_nothing_back() -> None:
    broker = await serving_broker()
    client = Client(broker)
    assert [await send(client, sequence) for sequence in (0, 1)] == [ErrorCode.none] * 2
    await lose_leadership(broker)
    assert await send(client, 1) is ErrorCode.not_leader_or_follower
    await regain_leadership(broker)
    assert await send(client, 2) is ErrorCode.none
    assert not broker.refused


async def test_of_several_refused_batches_the_log_may_have_the_first_and_lack_the_second() -> None:
    """The first was appended by a leader that died before it could answer."""
    broker = await serving_broker()
    client = Client(broker)
    assert [await send(client, sequence) for sequence in (0, 1)] == [ErrorCode.none] * 2
    await lose_leadership(broker)
    assert [await send(client, sequence) for sequence in (1, 2)] == [ErrorCode.not_leader_or_follower] * 2
    await regain_leadership(broker)
    assert await send(client, 3) is ErrorCode.not_leader_or_follower
    assert [await send(client, sequence) for sequence in (1, 2, 3, 4)] == [ErrorCode.none] * 4
    assert not broker.refused


async def test_the_first_batch_of_a_new_epoch_that_was_refused_is_waited_for() -> None:
    broker = await serving_broker()
    client = Client(broker)
    assert await send(client, 0) is ErrorCode.none
    await lose_replicas(broker)
    assert await send(client, 0, NEW_PRODUCER[1] + 1) is ErrorCode.not_enough_replicas
    await regain_replicas(broker)
    assert await send(client, 1, NEW_PRODUCER[1] + 1) is ErrorCode.not_enough_replicas
    assert await send(client, 0, NEW_PRODUCER[1] + 1) is ErrorCode.none
    assert await send(client, 1, NEW_PRODUCER[1] + 1) is ErrorCode.none


async def test_a_gap_that_nobody_refused_is_told_and_not_waited_for_for_ever() -> None:
    """A leader acknowledged what is missing, and lost it: no client sends it again."""
    broker = await serving_broker()
    client = Client(broker)
    assert await send(client, 0) is ErrorCode.none
    await lose_leadership(broker)
    assert await send(client, 3) is ErrorCode.not_leader_or_follower
    await regain_leadership(broker)
    assert await send(client, 3) is ErrorCode.out_of_order_sequence_number


async def test_only_a_refusal_for_another_reason_makes_the_wait_longer() -> None:
    broker = await serving_broker()
    client = Client(broker)
    assert [await send(client, sequence) for sequence in (0, 1)] == [ErrorCode.none] * 2
    await lose_leadership(broker)
    assert await send(client, 1) is ErrorCode.not_leader_or_follower
    broker.clock.ms += KEPT_MS - 1
    assert await send(client, 2) is ErrorCode.not_leader_or_follower
    await regain_leadership(broker)
    broker.clock.ms += KEPT_MS - 1
    assert await send(client, 3) is ErrorCode.not_leader_or_follower
    broker.clock.ms += 1
    assert await send(client, 3) is ErrorCode.out_of_order_sequence_number
    assert [await send(client, sequence) for sequence in (2, 3)] == [ErrorCode.none] * 2


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_late_batch_of_the_epoch_before_ends_no_wait(is_refused: bool) -> None:
    broker = await serving_broker()
    client = Client(broker)
    new = NEW_PRODUCER[1] + 1
    await lose_replicas(broker)
    assert await send(client, 0, new) is ErrorCode.not_enough_replicas
    if is_refused:
        assert await send(client, 7) is ErrorCode.not_enough_replicas
    await regain_replicas(broker)
    if not is_refused:
        assert await send(client, 7) is ErrorCode.none
    assert await send(client, 1, new) is ErrorCode.not_enough_replicas
    assert [await send(client, sequence, new) for sequence in (0, 1)] == [ErrorCode.none] * 2


async def test_a_refusal_that_no_client_tries_again_upon_leaves_no_gap() -> None:
    broker = await serving_broker()
    client = Client(broker)
    await broker.configure(max_message_bytes="10")
    assert await send(client, 0) is ErrorCode.message_too_large
    await broker.configure(max_message_bytes="1000")
    assert await send(client, 1) is ErrorCode.none


@pytest.mark.parametrize(("epoch", "pause_ms"), [(NEW_PRODUCER[1] + 1, 0), (NEW_PRODUCER[1], KEPT_MS)])
async def test_a_new_epoch_or_a_long_time_ends_the_wait_for_a_refused_batch(epoch: int, pause_ms: int) -> None:
    broker = await serving_broker()
    client = Client(broker)
    await lose_replicas(broker)
    assert await send(client, 0) is ErrorCode.not_enough_replicas
    await regain_replicas(broker)
    assert await send(client, 1) is ErrorCode.not_enough_replicas
    broker.clock.ms += pause_ms // 2
    assert await send(client, 1) is ErrorCode.not_enough_replicas
    broker.clock.ms += pause_ms // 2
    assert await send(client, 1, epoch) is ErrorCode.none
    assert not broker.refused


async def test_of_topics_that_are_gone_little_is_remembered_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are all that old versions send, and clients may try each of them for minutes."""
    monkeypatch.setattr(refused, "KEPT_MAX", 5)
    broker = await serving_broker()
    client = Client(broker)
    for number in range(20):
        assert await send(client, 0, topic=f"gone {number}") is ErrorCode.unknown_topic_or_partition
    assert len(broker.refused._refused) == 5
    broker.clock.ms += KEPT_MS
    assert await send(client, 0) is ErrorCode.none
    assert not broker.refused


async def test_sequences_that_wrap_around_are_in_order_too() -> None:
    broker = await serving_broker()
    client = Client(broker)
    await lose_replicas(broker)
    assert await send(client, 2**31 - 1) is ErrorCode.not_enough_replicas
    await regain_replicas(broker)
    assert await send(client, 0) is ErrorCode.not_enough_replicas
    assert await send(client, 2**31 - 1) is ErrorCode.none
    assert await send(client, 0) is ErrorCode.none


async def test_zstd_is_for_versions_whose_clients_know_it() -> None:
    client = Client(await serving_broker())
    packed = batch_of(b"value", attributes=Codec.ZSTD)
    for version in EVERY_VERSION:
        (found,) = outcomes(await client.call(PRODUCE, version, body(batches={0: packed})))
        assert found[1] is (ErrorCode.none if version >= 7 else ErrorCode.unsupported_compression_type)
