"""The markers that end transactions: however often it goes wrong, each is sent until it is written, and not again."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.broker.broker import Broker
from sexton.broker.lifecycle.peers import CLIENT_ID, Peers
from sexton.broker.transactions import markers
from sexton.broker.transactions.markers import MarkerSender
from sexton.client.connection import Rpc
from sexton.coordinators.log import EndMarker
from sexton.coordinators.transactions.messages import Markers
from sexton.coordinators.transactions.service import DueMarkers
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import ControlType, Record
from sexton.simulate import transactional
from sexton.simulate.cluster import DATA
from sexton.simulate.disk import Trouble
from sexton.simulate.history import Outcome
from sexton.simulate.transactional import TransactionalProducer
from sexton.supervision import Supervisor
from sexton.types import ProducerIdAndEpoch, TopicPartition
from tests.log.helpers import read_all
from tests.producers import producer_at
from tests.simulated import TOPIC, Story

OTHER_TOPIC = "other"
NAMES = [str(number) for number in range(100)]
BROKER_ID, EPOCH = 1, 5
PLACES = [("t", partition) for partition in range(3)]
DUE = DueMarkers(0, EPOCH, Markers("app", producer_at(7, 0), True, 0, tuple(PLACES)))


def the_only_broker(written: list[TopicPartition]) -> Any:
    """Its coordinator owes what is not among those that are `written`."""
    broker: Any = SimpleNamespace(
        config=SimpleNamespace(node_id=BROKER_ID),
        supervisor=Supervisor(),
        view=SimpleNamespace(partition=lambda topic, partition: SimpleNamespace(leader=BROKER_ID)),
    )
    service = SimpleNamespace(
        owes=lambda due, place: place not in written, marker_written=lambda due, place: written.append(place)
    )
    broker.transactions = SimpleNamespace(service=service)
    return broker


@pytest.mark.parametrize("times", [1, 3])
def test_a_bug_in_one_marker_is_tried_again_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(markers, "BACK_OFF_MS", (1, 1))
    written: list[TopicPartition] = []
    broker = the_only_broker(written)
    bugs_left = times

    async def write(broker: object, marker: object, place: TopicPartition) -> ErrorCode:
        nonlocal bugs_left
        if place == PLACES[1] and bugs_left:
            bugs_left -= 1
            raise IndexError("nobody expected this")
        return ErrorCode.none

    monkeypatch.setattr(markers, "write_marker", write)

    async def body() -> None:
        sender = MarkerSender(cast(Broker, broker), cast(Peers, None))
        sender.send(DUE)
        async with asyncio.timeout(30):
            while len(written) < len(PLACES):
                await asyncio.sleep(0.001)
        await sender.close()

    asyncio.run(body())
    assert written == [PLACES[0], PLACES[2], PLACES[1]]
    assert broker.supervisor.bugs == {"markers": times}


def test_a_marker_that_is_on_its_way_is_not_sent_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator was loaded again, and sends all markers anew."""
    monkeypatch.setattr(markers, "RETRY_S", 0.001)
    written: list[TopicPartition] = []
    started: list[TopicPartition] = []
    broker = the_only_broker(written)

    async def body() -> None:
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        async def write(broker: object, marker: object, place: TopicPartition) -> ErrorCode:
            started.append(place)
            return await asyncio.shield(answer)

        monkeypatch.setattr(markers, "write_marker", write)
        sender = MarkerSender(cast(Broker, broker), cast(Peers, None))
        sender.send(DUE)
        await until(lambda: len(started) == len(PLACES))
        sender.send(DUE)
        for _ in range(20):
            await asyncio.sleep(0.001)  # many times as long as a marker waits to be repeated
        answer.set_result(ErrorCode.none)
        await until(lambda: len(written) == len(PLACES))
        for _ in range(20):
            await asyncio.sleep(0.001)
        await sender.close()

    asyncio.run(body())
    assert started == PLACES
    assert written == PLACES


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_true():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("after_ms", [500, 540])
def test_a_marker_that_was_to_be_repeated_does_not_end_the_next_transaction(after_ms: int) -> None:
    """Of a client before transaction version 2, whose transactions share an epoch. The disk is full: a marker is
    refused, and is to be repeated. So is a record of its coordinator, which is loaded again. When there is room the
    marker is written, and the client goes on at once."""
    story = Story(1)

    async def told() -> None:
        await story.start()
        await story.create_topic([1])
        app = producer_of(story, "app")
        await story.client_does(app.init())
        service = story.broker(1).transactions.service
        partition = service.partition_of("app")
        other_id = next(name for name in map(str, range(100)) if service.partition_of(name) == partition)
        other = producer_of(story, other_id)
        await story.client_does(other.init())
        await story.client_does(write(app, b"aborted"))
        volume = story.node(1).volume
        volume.troubles = [Trouble(errno.ENOSPC, f"{DATA}/{TOPIC}-0")]
        await story.client_does(app.abort())
        committing = asyncio.ensure_future(story.client_does(commit(app)))
        await asyncio.sleep(after_ms / 1000)
        volume.troubles.append(Trouble(errno.ENOSPC, f"{DATA}/__transaction_state-{partition}"))
        before = service.led[partition]
        refused = asyncio.ensure_future(story.client_does(other.init()))
        await story.until(lambda: service.led[partition] is not before)
        volume.troubles = []
        await refused
        assert await committing is Outcome.OK

        log = story.replica(1).log
        await story.until(lambda: story.replica(1).last_stable_offset == log.end_offset)
        batches = read_all(log)
        ended = {batch.base_offset: batch.control_type for batch in batches if batch.is_control}
        sent = {batch.records[0].value: batch.base_offset for batch in batches if not batch.is_control}
        between = [offset for offset in ended if sent[b"first"] < offset < sent[b"last"]]
        assert not between, f"{ended} ended what was written to {sent}"

    story.run(told())


def producer_of(story: Story, transactional_id: str) -> TransactionalProducer:
    return TransactionalProducer(
        client=story.admin.client,
        transactional_id=transactional_id,
        version=1,
        timeout_ms=60_000,
        patience_s=60,
        rng=random.Random(1),
        may_start_at=lambda place, offset: False,
        backoff_s=transactional.QUICK_BACKOFF_S,
    )


async def write(producer: TransactionalProducer, value: bytes, topic: str = TOPIC) -> None:
    await producer.add([(topic, 0)])
    await producer.send((topic, 0), [Record(0, 1, b"k", value)])


async def commit(producer: TransactionalProducer) -> Outcome:
    await write(producer, b"first")
    await asyncio.sleep(10 * markers.RETRY_S)
    await write(producer, b"last")
    return await producer.commit()


def test_a_late_marker_of_a_former_coordinator_does_not_end_a_later_transaction() -> None:
    """Of a client before transaction version 2. The first coordinator's marker is late, and was sent again and written
    meanwhile; the second coordinator has ended a transaction in another partition of the same broker."""
    story = Story(3)

    async def told() -> None:
        await story.start()
        await story.create_topic([3])
        await story.create_topic([3], topic=OTHER_TOPIC)
        transactional_id = await coordinated_by(story, 2)
        app = producer_of(story, transactional_id)
        await story.client_does(app.init())
        service = story.broker(2).transactions.service
        led = service.led[service.partition_of(transactional_id)]
        older = await story.client_does(as_broker(story, 2, to=3))
        await story.client_does(write(app, b"committed"))
        assert await story.client_does(app.commit()) is Outcome.OK
        await story.until(lambda: not led.coordinator.unmarked(transactional_id) and led.is_committed)

        story.cluster.kill(story.node(2), power_lost=False)
        await story.client_does(write(app, b"committed", OTHER_TOPIC))
        assert await story.client_does(app.commit()) is Outcome.OK

        await story.client_does(write(app, b"first"))
        (producer,) = story.replica(3).log.producers
        owner = ProducerIdAndEpoch(producer.producer_id, producer.epoch)
        marker = EndMarker(owner, is_commit=True, coordinator_epoch=led.epoch)
        late = await story.client_does(send_marker(older, marker))
        await story.client_does(write(app, b"last"))
        await story.client_does(app.abort())

        log = story.replica(3).log
        await story.until(lambda: story.replica(3).last_stable_offset == log.end_offset)
        ended = [batch.control_type for batch in read_all(log) if batch.is_control]
        assert (late, ended) == (ErrorCode.not_leader_or_follower, [ControlType.COMMIT, ControlType.ABORT])

    story.run(told())


async def coordinated_by(story: Story, broker_id: int) -> str:
    """A transactional id of which that broker is the coordinator."""
    await story.client_does(producer_of(story, "before").init())
    service = story.broker(broker_id).transactions.service
    await story.until(lambda: any(map(service.is_ready, NAMES)))
    return next(filter(service.is_ready, NAMES))


async def as_broker(story: Story, broker_id: int, *, to: int) -> Rpc:
    row = story.broker(to).view.brokers[to]
    return await Rpc.connect(story.network, row.host, row.port, client_id=f"{CLIENT_ID}-{broker_id}")


async def send_marker(rpc: Rpc, marker: EndMarker) -> ErrorCode:
    asked = {
        "producer_id": marker.owner.producer_id,
        "producer_epoch": marker.owner.epoch,
        "transaction_result": marker.is_commit,
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.transaction_version,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
    }
    answer = await rpc.call(markers.WRITE_TXN_MARKERS, markers.VERSION, {"markers": [asked]}, timeout_ms=10_000)
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)
