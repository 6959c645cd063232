"""Kafka's own opinion: its dump tool on logs that we wrote, and directories that go back and forth between both."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from sexton.adapters.files import FileDisk
from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_tools import DUMP_FAULTS, dump_log
from sexton.log import opening
from sexton.log.log import Log
from sexton.records.batch import ControlType
from sexton.records.checkpoints import read_partition_metadata
from sexton.settings.topic import TopicConfig
from tests.log.helpers import (
    EPOCH,
    NOW_MS,
    end_transaction,
    lead,
    marker,
    open_log,
    plain,
    read_all,
    run,
    sequenced,
)

pytestmark = pytest.mark.kafka

WAIT_S = 60
SMALL: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 300}


async def write_everything(path: Path) -> Log:
    """Plain and packed batches, an idempotent producer, transactions of both outcomes over several segments."""
    log = await open_log(path, **SMALL)
    await log.begin_epoch(EPOCH)
    for index in range(12):
        lead(log, plain(*[b"v" * 50] * 5, attributes=index % 5, time_ms=NOW_MS + 1000 * (index % 7)))
        lead(log, sequenced(2 * index, 2, pid=7), sequenced(index, pid=8, is_open=True))
        if index % 3 == 2:
            end_transaction(log, ControlType.ABORT if index % 2 else ControlType.COMMIT, pid=8)
    log.append_as_leader(marker(ControlType.ABORT, pid=99, epoch=4), EPOCH, NOW_MS, from_client=False)
    return log


def check_dump(path: Path, log: Log) -> None:
    directory = path / "orders-0"
    segments = sorted(directory.glob("*.log"))
    text = dump_log(segments, "--deep-iteration", "--print-data-log")
    assert not [fault for fault in DUMP_FAULTS if fault in text], text
    dumped = [int(found) for found in re.findall(r"^baseOffset: (\d+) ", text, re.MULTILINE)]
    assert dumped == [batch.base_offset for batch in read_all(log)]
    indexes = sorted(directory.glob("*index"))
    text = dump_log(indexes, "--index-sanity-check")
    text += dump_log([index for index in indexes if index.suffix in (".index", ".timeindex")], "--verify-index-only")
    assert not [fault for fault in DUMP_FAULTS if fault in text], text
    text = dump_log([index for index in indexes if index.suffix == ".txnindex"])
    aborted = [(int(pid), int(first)) for pid, first in re.findall(r"producerId: (\d+) .*?firstOffset: (\d+)", text)]
    assert aborted == log.aborted_transactions(0, log.end_offset + 1)
    assert len(aborted) == 2
    text = dump_log(max(directory.glob("*.snapshot")))
    assert {int(found) for found in re.findall(r"producerId: (\d+)", text)} == {7, 8, 99}
    assert f"lastSequence: {23}" in text


def test_kafkas_dump_tool_finds_no_fault_with_a_log_that_was_closed_or_that_crashed(tmp_path: Path) -> None:
    async def go(path: Path, crashes: bool) -> Log:
        log = await write_everything(path)
        if crashes:
            await log.flush()
            active = max((path / "orders-0").glob("*.log"))
            active.write_bytes(active.read_bytes()[:-5])
            log = await open_log(path, is_clean=False, **SMALL)
            log.append_as_leader(marker(ControlType.ABORT, pid=99, epoch=4), EPOCH, NOW_MS, from_client=False)
        await log.close()
        return log

    for crashes in (False, True):
        path = tmp_path / str(crashes)
        log = run(go(path, crashes))
        assert len(list((path / "orders-0").glob("*.log"))) > 2
        check_dump(path, log)


def produce(kafka: KafkaCluster, topic: str, values: list[str], *, is_kept: bool | None = None) -> None:
    """In a transaction, if it is said whether that is committed."""
    settings: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "enable.idempotence": True,
        "batch.size": 500,
        "log_level": 0,
    }
    errors: list[Any] = []
    if is_kept is not None:
        settings["transactional.id"] = f"{topic} {uuid.uuid4()}"
    producer = Producer(settings)
    if is_kept is not None:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, "k", on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(WAIT_S) == 0
    assert errors == []
    if is_kept is not None:
        producer.commit_transaction(WAIT_S) if is_kept else producer.abort_transaction(WAIT_S)


def consume(kafka: KafkaCluster, topic: str, count: int) -> list[str]:
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "g",
        "isolation.level": "read_committed",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[str] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(values) < count and time.monotonic() < deadline_s:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def read_committed(log: Log) -> list[str]:
    aborted = log.aborted_transactions(log.start_offset, log.end_offset)
    open_aborts: set[int] = set()
    values = []
    for batch in read_all(log, max_bytes=3000):
        open_aborts |= {one.producer_id for one in aborted if one.first_offset == batch.base_offset}
        if batch.is_control:
            open_aborts.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in open_aborts):
            values += [(record.value or b"").decode() for record in batch.records]
    return values


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_goes_from_kafka_to_us_and_back(is_clean: bool) -> None:
    """Written by Kafka, stopped or killed; read and appended to by us; read and appended to by Kafka again."""
    config = {"internal.segment.bytes": 2000, "index.interval.bytes": 200}
    with KafkaCluster() as kafka:
        kafka.create_topic("orders", config=config)
        produce(kafka, "orders", [f"plain {i} {'x' * 60}" for i in range(40)])
        produce(kafka, "orders", [f"aborted {i}" for i in range(20)], is_kept=False)
        produce(kafka, "orders", [f"committed {i}" for i in range(20)], is_kept=True)
        expected = [f"plain {i} {'x' * 60}" for i in range(40)] + [f"committed {i}" for i in range(20)]
        assert consume(kafka, "orders", len(expected)) == expected, "both markers are written"
        kafka.stop_node(1) if is_clean else kafka.kill_node(1)
        directory = kafka.partition_dir(1, "orders", 0)
        metadata = read_partition_metadata(directory / "partition.metadata")
        assert metadata is not None

        async def go() -> list[str]:
            log = await opening.open_log(
                FileDisk(),
                str(directory),
                "orders",
                0,
                metadata.topic_id,
                TopicConfig.of({key: str(value) for key, value in config.items()}),
                now_ms=int(time.time() * 1000),
                stopped_cleanly=is_clean,
            )
            assert log.epochs.latest_epoch >= 0
            assert len(log.producers) == 3
            assert log.last_stable_offset(log.end_offset) == log.end_offset
            found = read_committed(log)
            now_ms = int(time.time() * 1000)
            for index in range(30):
                log.append_as_leader(plain(f"ours {index}".encode(), time_ms=now_ms), log.epochs.latest_epoch, now_ms)
            await log.close()
            return found

        assert run(go()) == expected
        expected += [f"ours {i}" for i in range(30)]
        kafka.start_node(1)
        assert consume(kafka, "orders", len(expected)) == expected
        produce(kafka, "orders", ["last"])
        assert consume(kafka, "orders", len(expected) + 1) == [*expected, "last"]
        segments = sorted(directory.glob("*.log"))
        text = dump_log(segments, "--deep-iteration")
        assert not [fault for fault in DUMP_FAULTS if fault in text], text
