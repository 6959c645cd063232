"""The client against Apache Kafka itself: the oracle for everything that the client believes of the protocol."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from sexton.adapters.clock import SystemClock
from sexton.adapters.sockets import SocketNetwork
from sexton.client import group_admin
from sexton.client.admin import Admin, Resource
from sexton.client.client import Client
from sexton.client.consumer import EARLIEST, LATEST, Consumed, Consumer, fetch, list_offsets, start_positions
from sexton.client.errors import ProduceFailedError, RefusedError
from sexton.client.fetching import READ_COMMITTED
from sexton.client.groups import GroupConsumer, commit_body, commit_offsets, fetch_offsets
from sexton.client.producer import Message, Producer
from sexton.client.transactions import TransactionalProducer
from sexton.harness.kafka import KafkaCluster
from sexton.protocol.errors import ErrorCode
from sexton.settings.layers import ConfigSource

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(settings={"group.initial.rebalance.delay.ms": 0}) as cluster:
        yield cluster


@asynccontextmanager
async def connected(kafka: KafkaCluster) -> AsyncIterator[Client]:
    host, port = kafka.bootstrap.split(",")[0].split(":")
    client = Client(SocketNetwork(), [(host, int(port))], clock=SystemClock(), rng=random.Random(1))
    await client.open()
    try:
        yield client
    finally:
        client.close()


def run(kafka: KafkaCluster, scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connected(kafka) as client:
            await scenario(client)

    asyncio.run(main())


async def read_until(poll: Callable[[], Awaitable[list[Consumed]]], count: int) -> list[Consumed]:
    found: list[Consumed] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await poll()
    return found


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Kafka's brokers learn of a change a moment after it was acknowledged."""
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.05)


def test_what_is_produced_is_consumed_in_order(kafka: KafkaCluster) -> None:
    async def scenario(client: Client) -> None:
        await Admin(client).create_topic("ordered", 2)
        producer = Producer(client)
        sent = [
            await producer.queue("ordered", number % 2, [Message(b"k", str(number).encode(), (("h", b"1"),))])
            for number in range(1000)
        ]
        assert [await each for each in sent] == [number // 2 for number in range(1000)]
        consumer = Consumer(client)
        consumer.assign({("ordered", 0): 0, ("ordered", 1): 250})
        found = await read_until(consumer.poll, 750)
        for partition, start in ((0, 0), (1, 500)):
            values = [int(each.record.value or b"") for each in found if each.partition == partition]
            assert values == list(range(start + partition, 1000, 2))
        assert found[0].record.headers[0].name == "h"
        assert consumer.is_at_end

    run(kafka, scenario)


def test_offsets_by_time_and_deleted_records(kafka: KafkaCluster) -> None:
    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic("times", 1, settings={"retention.ms": "-1"})
        producer = Producer(client, acks=1)
        for hour in range(5):
            await producer.send("times", 0, [Message(None, b"v", (), 1_700_000_000_000 + hour * 3_600_000)])
        place = ("times", 0)
        assert await list_offsets(client, {place: 1_700_000_000_000 + 3_600_001}) == {place: 2}
        assert await start_positions(client, [place], 1_900_000_000_000) == {place: 5}
        assert await admin.delete_records({place: 3}) == {place: 3}
        assert await list_offsets(client, {place: EARLIEST}) == {place: 3}
        assert await list_offsets(client, {place: LATEST}) == {place: 5}
        with pytest.raises(RefusedError) as refused:
            await fetch(client, "times", 0, 99)
        assert refused.value.code == ErrorCode.offset_out_of_range

    run(kafka, scenario)


def test_a_group_shares_partitions_and_remembers_where_it_was(kafka: KafkaCluster) -> None:
    async def scenario(client: Client) -> None:
        await Admin(client).create_topic("shared", 4)
        producer = Producer(client)
        for partition in range(4):
            await producer.send("shared", partition, [Message(None, b"a"), Message(None, b"b")])
        first = GroupConsumer(client, "team", ["shared"], start_at=EARLIEST)
        await read_until(first.poll, 8)
        await first.commit()
        async with connected(kafka) as other:
            second = GroupConsumer(other, "team", ["shared"], start_at=EARLIEST)

            async def poll_until_shared(member: GroupConsumer) -> None:
                while len(first.assigned) != 2 or len(second.assigned) != 2:
                    await member.poll(100)

            async with asyncio.timeout(60):
                await asyncio.gather(poll_until_shared(first), poll_until_shared(second))
            assert sorted(first.assigned + second.assigned) == [("shared", number) for number in range(4)]
            described = await group_admin.describe_group(client, "team")
            assert described.state == "Stable"
            assert sorted(each for member in described.members for each in member.assigned) == [
                ("shared", number) for number in range(4)
            ]
            assert "team" in [each.group for each in await group_admin.list_groups(client)]
            with pytest.raises(RefusedError):
                await group_admin.delete_group(client, "team")
            await second.close()
        await first.close()
        assert await fetch_offsets(client, "team") == {("shared", number): 2 for number in range(4)}
        await commit_offsets(client, "team", commit_body("team", {("shared", 0): 1}))
        assert (await fetch_offsets(client, "team"))["shared", 0] == 1
        await group_admin.delete_group(client, "team")
        with pytest.raises(RefusedError) as refused:
            await group_admin.describe_group(client, "team")
        assert refused.value.code == ErrorCode.group_id_not_found

    run(kafka, scenario)


def test_topics_settings_and_the_cluster_are_administered(kafka: KafkaCluster) -> None:
    async def scenario(client: Client) -> None:
        admin = Admin(client)
        assert await admin.create_topic("managed", 1, 1, {"retention.ms": "1000"}) == (1, 1)
        with pytest.raises(RefusedError) as refused:
            await admin.create_topic("managed")
        assert refused.value.code == ErrorCode.topic_already_exists
        await admin.change_settings(Resource.TOPIC, "managed", {"retention.ms": None, "segment.ms": "7200000"})
        settings = {each.name: each for each in await admin.settings(Resource.TOPIC, "managed")}
        assert settings["segment.ms"].value == "7200000"
        assert settings["segment.ms"].source is ConfigSource.TOPIC
        assert settings["retention.ms"].source is ConfigSource.DEFAULT
        await admin.create_partitions("managed", 3)

        async def are_all_there() -> bool:
            logs = (await admin.log_directories(1, ["managed"]))[0].logs
            return [each.topic for each in logs] == ["managed"] * 3

        await eventually(are_all_there)
        assert await admin.list_reassignments() == []
        failures = await admin.elect_leaders([("managed", 0)])
        assert (failures[("managed", 0)] or RefusedError("")).code == ErrorCode.election_not_needed
        assert [each.broker_id for each in (await admin.cluster()).brokers] == [1]
        await admin.delete_topic("managed")

        async def is_gone() -> bool:
            return (await client.refresh(["managed"])).errors.get("managed") == ErrorCode.unknown_topic_or_partition

        await eventually(is_gone)

    run(kafka, scenario)


def test_a_refused_produce_is_told_as_such_and_the_next_one_works(kafka: KafkaCluster) -> None:
    async def scenario(client: Client) -> None:
        await Admin(client).create_topic("small", 1, settings={"max.message.bytes": "2000"})
        producer = Producer(client)
        assert await producer.send("small", 0, [Message(None, b"fits")]) == 0
        with pytest.raises(ProduceFailedError) as failed:
            await producer.send("small", 0, [Message(None, random.Random(1).randbytes(5000))])
        assert failed.value.code == ErrorCode.message_too_large
        assert await producer.send("small", 0, [Message(None, b"fits too")]) == 1
        quiet = Producer(client, acks=0)
        assert await quiet.send("small", 0, [Message(None, b"hm")]) == -1
        async with asyncio.timeout(30):
            while (await fetch(client, "small", 0, 0)).next_offset < 3:
                await asyncio.sleep(0.05)

    run(kafka, scenario)


def test_an_idempotent_producer_outlives_the_broker(kafka: KafkaCluster) -> None:
    """Killed and started again in the middle: every record is there once, in order."""

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic("killed", 1)
        producer = Producer(client)
        sent = [await producer.queue("killed", 0, [Message(None, str(n).encode())]) for n in range(50)]
        await sent[0]
        await asyncio.to_thread(kafka.kill_node, 1)
        sent += [await producer.queue("killed", 0, [Message(None, str(n).encode())]) for n in range(50, 100)]
        await asyncio.to_thread(kafka.start_node, 1)
        assert [await each for each in sent] == list(range(100))
        consumer = Consumer(client)
        consumer.assign({("killed", 0): 0})
        found = await read_until(consumer.poll, 100)
        assert [int(each.record.value or b"") for each in found] == list(range(100))

    run(kafka, scenario)


def test_transactions_are_seen_when_committed_and_never_when_aborted(kafka: KafkaCluster) -> None:
    kafka.create_topic("in-transactions")

    async def scenario(client: Client) -> None:
        producer = TransactionalProducer(client, "one")
        await producer.init()
        for value, is_committed in ((b"1", True), (b"2", False), (b"3", True)):
            producer.begin()
            await producer.send("in-transactions", 0, [Message(b"k", value)])
            await producer.send("in-transactions", 0, [Message(b"k", value + b"+")])
            assert producer.is_open
            await (producer.commit() if is_committed else producer.abort())
            assert not producer.is_open
        producer.begin()
        await producer.commit()  # nothing was written: nothing to tell the coordinator
        consumer = Consumer(client, isolation=READ_COMMITTED)
        consumer.assign({("in-transactions", 0): 0})
        found = await read_until(consumer.poll, 4)
        assert [each.record.value for each in found] == [b"1", b"1+", b"3", b"3+"]

        successor = TransactionalProducer(client, "one")
        await successor.init()
        producer.begin()
        with pytest.raises(RefusedError) as refused:
            await producer.send("in-transactions", 0, [Message(b"k", b"late")])
        assert refused.value.code in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)

    run(kafka, scenario)
