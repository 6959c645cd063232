"""A disk that is full for a while. What it could not make durable then is made so afterwards, though nobody appends."""

from __future__ import annotations

import asyncio
import errno

import pytest

from sexton.protocol.errors import ErrorCode
from sexton.simulate.disk import Trouble
from tests.broker.api.test_produce import PRODUCE, body, outcomes
from tests.broker.serving import Client, MemoryDisk, ServingBroker, batch_of, serving_broker


async def full_when_it_rolls(monkeypatch: pytest.MonkeyPatch) -> tuple[ServingBroker, Client, bytes]:
    """A broker whose disk had no room for the index of a segment that was closed: a batch is appended, its producer was
    told that the disk failed, and there is room again."""
    monkeypatch.setattr("sexton.replication.local_replica.FLUSH_AGAIN_MS", 20)
    broker = await serving_broker()
    await broker.configure(segment_bytes="200")
    client = Client(broker)
    volume = broker.disk.volume if isinstance(broker.disk, MemoryDisk) else None
    assert volume is not None
    first, second = (batch_of(b"v" * 100, producer_id=5, producer_epoch=0, base_sequence=n) for n in range(2))
    assert outcomes(await client.call(PRODUCE, 9, body(acks=-1, batches={0: first}))) == [(0, ErrorCode.none, 0)]
    volume.troubles = [Trouble(errno.ENOSPC, broker.replica().log.directory, ".index")]
    answer = await client.call(PRODUCE, 9, body(acks=-1, batches={0: second}))
    assert outcomes(answer) == [(0, ErrorCode.kafka_storage_error, -1)]
    assert broker.replica().log.end_offset == 2
    volume.troubles = []
    return broker, client, second


async def test_what_a_full_disk_could_not_flush_is_committed_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, _, _ = await full_when_it_rolls(monkeypatch)
    async with asyncio.timeout(5):
        while broker.replica().high_watermark < 2:
            await asyncio.sleep(0.01)


async def test_a_producer_that_tries_again_is_answered_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch is in the log already, so that trying again appends nothing."""
    _, client, second = await full_when_it_rolls(monkeypatch)
    async with asyncio.timeout(5):
        answer = await client.call(PRODUCE, 9, body(acks=-1, batches={0: second}))
    assert outcomes(answer) == [(0, ErrorCode.none, 1)]


async def test_a_disk_that_stays_full_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, _, _ = await full_when_it_rolls(monkeypatch)
    assert isinstance(broker.disk, MemoryDisk)
    broker.disk.volume.troubles = [Trouble(errno.ENOSPC, broker.replica().log.directory, ".index")]
    await asyncio.sleep(0.2)
    assert sum("flushing failed" in record.message for record in caplog.records) == 1
    assert broker.replica().high_watermark == 1
