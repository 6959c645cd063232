"""A produce that must fail: Kafka's error code, base offset -1 (rule 9), nothing in the log, and the broker goes on."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from sexton.harness.brokers import SextonCluster
from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import encode_request
from sexton.records.batch import Record, encode, make_batch
from tests.robustness.conftest import Watched, wait_until
from tests.robustness.wire import DELETE_TOPICS, NOW_MS, PRODUCE, batch, produce_body, refused

pytestmark = pytest.mark.cluster

VERSIONS = (3, 7, 9, 12)
"""Of those that name topics: the oldest, one with messages, the first compact one, the newest."""


def nothing_was_written(broker: Watched, topic: str) -> bool:
    with broker.wire() as wire:
        assert wire.end_offset(topic) == 0
    return broker.serves()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
def test_a_wrong_crc_is_a_corrupt_message(broker: Watched, version: int, acks: int) -> None:
    topic = broker.new_topic()
    damaged = bytearray(batch(b"value"))
    damaged[-1] ^= 0xFF
    with broker.wire() as wire:
        assert refused(wire.produce(topic, bytes(damaged), version=version, acks=acks), ErrorCode.corrupt_message)
    assert nothing_was_written(broker, topic)


def test_a_batch_that_is_none_is_refused(broker: Watched) -> None:
    topic = broker.new_topic()
    good = batch(b"value")
    old_format = bytearray(good)
    old_format[16] = 1
    longer = bytearray(good)
    struct.pack_into(">i", longer, 8, len(good) + 100)
    with broker.wire() as wire:
        for records, code in (
            (b"", ErrorCode.invalid_record),
            (good[:40], ErrorCode.corrupt_message),
            (bytes(longer), ErrorCode.corrupt_message),
            (bytes(old_format), ErrorCode.unsupported_for_message_format),
            (good + good, ErrorCode.invalid_record),
        ):
            assert refused(wire.produce(topic, records), code)
    assert nothing_was_written(broker, topic)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_above_max_message_bytes_is_too_large(broker: Watched, version: int) -> None:
    topic = broker.new_topic(max_message_bytes=1000)
    with broker.wire() as wire:
        assert refused(wire.produce(topic, batch(bytes(2000)), version=version), ErrorCode.message_too_large)
        assert wire.produce(topic, batch(bytes(100)), version=version).base_offset == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_records_without_a_key_do_not_get_into_a_compacted_topic(broker: Watched, version: int) -> None:
    topic = broker.new_topic(cleanup_policy="compact")
    with broker.wire() as wire:
        assert refused(wire.produce(topic, batch(b"value", key=None), version=version), ErrorCode.invalid_record)
        mixed = encode(make_batch([Record(0, NOW_MS, b"key", b"a"), Record(1, NOW_MS, None, b"b")]))
        assert refused(wire.produce(topic, mixed, version=version), ErrorCode.invalid_record)
        assert wire.produce(topic, batch(b"value"), version=version).base_offset == 0


def test_a_topic_or_partition_that_does_not_exist_is_unknown(broker: Watched) -> None:
    topic = broker.new_topic()
    with broker.wire() as wire:
        assert refused(wire.produce("nowhere", batch(b"x")), ErrorCode.unknown_topic_or_partition)
        assert refused(wire.produce(topic, batch(b"x"), partition=7), ErrorCode.unknown_topic_or_partition)
        assert refused(wire.produce(topic, batch(b"x"), partition=-1), ErrorCode.unknown_topic_or_partition)
        nobodys = {"topic_id": uuid.uuid4(), "partition_data": [{"index": 0, "records": batch(b"x")}]}
        body = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [nobodys]}
        (told,) = wire.call(PRODUCE, 13, body).responses
        (part,) = told.partition_responses
        assert refused(part, ErrorCode.unknown_topic_id)
    assert broker.serves()


def test_a_deleted_topic_is_unknown(broker: Watched) -> None:
    topic = broker.new_topic()
    with broker.wire() as wire:
        assert wire.produce(topic, batch(b"x")).base_offset == 0
        (deleted,) = wire.call(DELETE_TOPICS, 5, {"topic_names": [topic], "timeout": 10_000}).responses
        assert deleted.error_code == ErrorCode.none
        assert refused(wire.produce(topic, batch(b"x")), ErrorCode.unknown_topic_or_partition)
    assert broker.serves()


def test_acks_other_than_kafkas_three_are_refused(broker: Watched) -> None:
    topic = broker.new_topic()
    with broker.wire() as wire:
        for acks in (2, -2, 32_767):
            assert refused(wire.produce(topic, batch(b"x"), acks=acks), ErrorCode.invalid_required_acks)
    assert nothing_was_written(broker, topic)


def test_without_acks_a_failure_ends_the_connection(broker: Watched) -> None:
    """The client has no other way to notice."""
    with broker.wire() as wire:
        wire.send(_without_acks("nowhere"))
        assert wire.is_hung_up()
    assert "acks=0 failed" in broker.new_log()
    assert broker.serves()


def _without_acks(topic: str) -> bytes:
    return encode_request(PRODUCE, 9, 1, "x", produce_body(topic, batch(b"x"), 0, 0, 1000))


def test_a_stale_producer_epoch_is_fenced_and_a_sequence_with_a_gap_refused(broker: Watched) -> None:
    topic = broker.new_topic()

    def idempotent(epoch: int, sequence: int) -> bytes:
        records = [Record(0, NOW_MS, b"k", b"v")]
        return encode(make_batch(records, producer_id=1000, producer_epoch=epoch, base_sequence=sequence))

    with broker.wire() as wire:
        assert wire.produce(topic, idempotent(1, 0)).base_offset == 0
        assert refused(wire.produce(topic, idempotent(0, 1)), ErrorCode.invalid_producer_epoch)
        assert refused(wire.produce(topic, idempotent(1, 5)), ErrorCode.out_of_order_sequence_number)
        assert wire.produce(topic, idempotent(1, 0)).base_offset == 0  # a repetition is answered as before
        assert wire.produce(topic, idempotent(1, 1)).base_offset == 1
    assert broker.serves()


def test_a_stale_leader_epoch_is_fenced_and_one_from_the_future_unknown(broker: Watched) -> None:
    """A produce names no leader epoch; a fetch does."""
    topic = broker.new_topic()
    with broker.wire() as wire:
        wire.produce(topic, batch(b"x"))
        epoch = wire.partition(topic).leader_epoch
        assert wire.fetch(topic, 0, epoch=epoch).error_code == ErrorCode.none
        assert wire.fetch(topic, 0, epoch=epoch + 1).error_code == ErrorCode.unknown_leader_epoch
        if epoch > 0:
            assert wire.fetch(topic, 0, epoch=epoch - 1).error_code == ErrorCode.fenced_leader_epoch
    assert broker.serves()


def test_a_broker_that_does_not_lead_refuses_and_names_the_leader(three_brokers: SextonCluster) -> None:
    topic = f"led-elsewhere-{uuid.uuid4()}"
    three_brokers.create_topic(topic, replication_factor=3)
    wait_until(lambda: bool(three_brokers.leaders(topic)))
    leader = three_brokers.leaders(topic)[0]
    for node_id in three_brokers.node_ids:
        broker = Watched(three_brokers, node_id)
        with broker.wire() as wire:
            wait_until(lambda wire=wire: wire.leader_and_isr(topic)[0] == leader)  # type: ignore[misc]
            if node_id == leader:
                assert wire.produce(topic, batch(b"x")).base_offset == 0
                continue
            for version in VERSIONS:
                part = wire.produce(topic, batch(b"x"), version=version)
                assert refused(part, ErrorCode.not_leader_or_follower)
                assert version < 10 or _hinted_leader(part) == leader
        assert broker.serves()


def _hinted_leader(part: Any) -> int:
    return int(part.current_leader.leader_id)
