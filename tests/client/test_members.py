"""Members by KIP-848, and consumers that read from a follower in their rack, on a simulated cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from sexton.broker.api import fetch
from sexton.client import apis
from sexton.client.client import Peer
from sexton.client.consumer import EARLIEST, Consumer
from sexton.client.members import ConsumerMember
from tests.simulated import TOPIC, Story

RECORDS = [(b"k", f"v{number}".encode()) for number in range(6)]


async def polled(member: ConsumerMember, count: int) -> list[bytes | None]:
    """Until it has got so many."""
    got: list[bytes | None] = []
    while len(got) < count:
        got += [record.value for _, _, record in await member.poll()]
    await member.commit()
    return got


def test_members_share_partitions_and_take_over_from_one_that_leaves() -> None:
    story = Story(1)

    async def tell() -> None:
        await story.start()
        await story.client_does(story.admin.create_topic(TOPIC, 2, 1))
        await story.client_does(share())

    async def share() -> None:
        members = [ConsumerMember(story.new_client(), "g", [TOPIC], start_at=EARLIEST) for _ in range(2)]
        while [len(member.assigned) for member in members] != [1, 1]:
            for member in members:
                await member.poll(10)
        assert members[0].assigned != members[1].assigned
        await members[0].close()
        while len(members[1].assigned) < 2:
            await members[1].poll(10)
        await members[1].close()

    story.run(tell())


def test_a_member_goes_on_where_the_group_has_come_to() -> None:
    story = Story(1)

    async def tell() -> None:
        await story.start()
        await story.create_topic([1])
        await story.write(*RECORDS)
        await story.client_does(read())

    async def read() -> None:
        first = ConsumerMember(story.new_client(), "g", [TOPIC], start_at=EARLIEST)
        assert await polled(first, len(RECORDS)) == [value for _, value in RECORDS]
        await first.close()
        second = ConsumerMember(story.new_client(), "g", [TOPIC], start_at=EARLIEST)
        while not second.assigned:
            await second.poll(10)
        assert second.consumer.positions == {(TOPIC, 0): len(RECORDS)}
        await second.close()

    story.run(tell())


def test_a_member_says_what_it_owns_only_when_that_has_changed() -> None:
    """As Java's does: a coordinator that expects more would take it for one that has given everything up."""
    story = Story(1)
    said: list[Any] = []

    async def tell() -> None:
        await story.start()
        await story.create_topic([1])
        await story.client_does(beat())

    async def beat() -> None:
        client = story.new_client()
        call = Peer.call

        async def listening(self: Peer, api: apis.Api, body: Any, timeout_ms: int | None = None) -> Any:
            if api is apis.CONSUMER_GROUP_HEARTBEAT:
                said.append((body["member_epoch"], body["topic_partitions"]))
            return await call(self, api, body, timeout_ms)

        Peer.call = listening  # type: ignore[method-assign]
        try:
            member = ConsumerMember(client, "g", [TOPIC], start_at=EARLIEST)
            while sum(epoch > 0 for epoch, _ in said) < 4:
                await member.poll(10)
            await member.close()
        finally:
            Peer.call = call  # type: ignore[method-assign]

    story.run(tell())
    assert all(each == [] for epoch, each in said if epoch == 0), "whoever joins owns nothing"
    owned = [each for epoch, each in said if epoch > 0 and each is not None]
    assert len(owned) == 1
    assert owned[0][0]["partitions"] == [0]


def test_a_consumer_in_a_followers_rack_hears_that_its_position_is_gone() -> None:
    """It is not sent back and forth between a leader that names the follower and a follower that refuses."""
    story = Story(2)

    async def tell() -> None:
        await story.start()
        await story.create_topic([1, 2])
        await story.write(*RECORDS)
        await story.in_sync(1, 2)
        await story.client_does(story.admin.delete_records({(TOPIC, 0): 4}))
        await story.until(lambda: story.replica(2).log.start_offset == 4)
        consumer = Consumer(story.new_client(), rack="rack-0", reset_to=EARLIEST)  # broker 2's
        consumer.assign({(TOPIC, 0): 0})
        got = await story.client_does(read(consumer))
        assert got == [value for _, value in RECORDS[4:]]

    async def read(consumer: Consumer) -> list[bytes | None]:
        async with asyncio.timeout(30):
            got: list[bytes | None] = []
            while len(got) < 2:
                got += [record.value for _, _, record in await consumer.poll(100)]
            return got

    story.run(tell())


def test_a_consumer_reads_from_a_follower_in_its_rack_and_from_the_leader_when_that_is_gone() -> None:
    story = Story(2)

    async def tell() -> None:
        await story.start()
        await story.create_topic([1, 2])
        await story.write(*RECORDS)
        await story.in_sync(1, 2)
        consumer = Consumer(story.new_client(), rack="rack-0")  # broker 2's
        consumer.assign({(TOPIC, 0): 0})
        fetches = story.broker(2).dispatch.traffic.of(fetch.API_KEY)
        assert fetches.requests_count == 0
        await story.client_does(read(consumer, 6))
        assert fetches.requests_count > 0, "a follower's own fetches are of another API"
        story.cluster.kill(story.node(2), power_lost=False)
        await story.write((b"k", b"last"))
        await story.client_does(read(consumer, 1))

    async def read(consumer: Consumer, count: int) -> None:
        got = 0
        while got < count:
            got += len(await consumer.poll(100))
            await asyncio.sleep(0.05)

    story.run(tell())
