"""A topic is deleted and made again in a cluster: a group that had read the former one reads all of the new one."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sexton.client.consumer import EARLIEST
from sexton.client.errors import ConnectionLostError
from sexton.client.groups import GroupConsumer, fetch_offsets
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.simulate.broken import breaking
from tests.simulated import TOPIC, Story

GROUP = "g"
PLACE = (TOPIC, 0)


def leader_of(story: Story) -> int:
    """Of the partition that keeps the group."""
    for node in story.cluster.nodes.values():
        broker = node.broker
        if broker is None:
            continue
        number = broker.groups.partition_of(GROUP)
        if broker.replicas.local(OFFSETS_TOPIC, number).is_leader:
            return broker.config.node_id
    raise AssertionError("nobody leads it")


async def write(story: Story, *values: bytes) -> None:
    await story.write(*((b"k", value) for value in values))


async def read_and_commit(story: Story) -> list[bytes | None]:
    """By a member that joins, reads what is there, commits it and leaves."""

    async def read() -> list[bytes | None]:
        member = GroupConsumer(story.admin.client, GROUP, [TOPIC], start_at=EARLIEST)
        values: list[bytes | None] = []
        while read := await member.poll(500):
            values += [one.record.value for one in read]
        await member.commit()
        await member.close()
        return values

    return await story.client_does(read())


async def committed(story: Story) -> int | None:
    return (await story.client_does(fetch_offsets(story.admin.client, GROUP, [PLACE]))).get(PLACE)


async def make_again(story: Story, broker_id: int) -> None:
    await story.client_does(story.admin.delete_topic(TOPIC))
    await story.create_topic([broker_id])
    await story.client_does(story.admin.client.refresh([TOPIC]))


def test_a_group_reads_a_topic_that_was_made_again_from_its_beginning() -> None:
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([1])
        await write(story, b"old-1", b"old-2")
        assert await read_and_commit(story) == [b"old-1", b"old-2"]
        await make_again(story, 2)
        await write(story, b"new-1", b"new-2", b"new-3")
        assert await read_and_commit(story) == [b"new-1", b"new-2", b"new-3"]
        assert await committed(story) == 3
        for node in story.cluster.nodes.values():
            story.cluster.kill(node, power_lost=False)
        await story.start()
        assert await committed(story) == 3, "what was taken back was that of the former topic alone"

    story.run(told())


def test_by_name_alone_a_group_goes_on_at_its_old_offset() -> None:
    """As it once did: the simulator's switch puts it back."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([1])
        await write(story, b"old-1")
        await read_and_commit(story)
        await make_again(story, 2)
        await write(story, b"skipped", b"new-2")
        assert await read_and_commit(story) == [b"new-2"]

    with breaking("offsets-by-name"):
        story.run(told())


def test_a_deletion_while_nobody_kept_the_group_counts_all_the_same() -> None:
    """Its coordinator dies, the topic is deleted and made again, and only then somebody else takes over."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([1])
        await write(story, b"old-1")
        await read_and_commit(story)
        dead = leader_of(story)
        other = 3 - dead
        if story.row().leader == dead:
            await make_again(story, other)
            await write(story, b"old-1")
            await read_and_commit(story)
        assert leader_of(story) == dead
        assert await committed(story) == 1
        story.cluster.kill(story.node(dead), power_lost=False)
        with suppress(ConnectionLostError):  # the client notices
            await story.client_does(story.admin.client.refresh([TOPIC]))
        await make_again(story, other)
        with pytest.raises(AssertionError, match="nobody leads it"):
            leader_of(story)
        await story.until(lambda: bool(story.broker(other).groups.partitions()))
        assert await committed(story) is None

    story.run(told())
