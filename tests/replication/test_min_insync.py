"""min.insync.replicas: a default asks for no more replicas than a partition has; a topic's own is kept to."""

from __future__ import annotations

import asyncio

import pytest

from sexton.client.admin import Resource
from sexton.client.errors import ProduceFailedError
from tests.simulated import TOPIC, Story

ONE, TWO, THREE = 1, 2, 3


async def asks_for_two(story: Story) -> None:
    """As the broker's default, such as `sexton up` sets it."""
    await story.start()
    await story.client_does(story.admin.change_settings(Resource.BROKER, "", {"min.insync.replicas": "2"}))
    await asyncio.sleep(1)  # metadata.poll.ms


async def reassign(story: Story, *replicas: int) -> None:
    await story.client_does(story.admin.reassign({(TOPIC, 0): replicas}))


def test_a_topic_with_one_replica_takes_acks_all_where_the_default_is_two() -> None:
    story = Story(3)

    async def told() -> None:
        await asks_for_two(story)
        await story.create_topic([ONE])
        assert story.replica(ONE).config.min_insync_replicas == 2
        await story.write((b"k", b"1"))
        assert story.replica(ONE).high_watermark == 1

    story.run(told())


def test_a_replica_that_is_being_added_is_not_asked_for_until_it_is_there() -> None:
    """It is cut off from its leader, so the move stands still; the one replica that there is goes on taking records."""
    story = Story(3)

    async def told() -> None:
        await asks_for_two(story)
        await story.create_topic([ONE])
        story.fabric.cut(story.node(TWO).name, story.node(ONE).name)
        await reassign(story, ONE, TWO)
        await story.until(lambda: story.replica(ONE).row.adding == (TWO,))
        await story.write((b"k", b"1"))
        story.fabric.heal(story.node(TWO).name, story.node(ONE).name)
        await story.in_sync(ONE, TWO)
        await story.until(lambda: not story.replica(ONE).row.adding)
        await story.write((b"k", b"2"))
        assert not story.replica(ONE).has_too_few_in_sync

    story.run(told())


def test_once_there_are_enough_replicas_the_default_counts_in_full() -> None:
    story = Story(3)

    async def told() -> None:
        await asks_for_two(story)
        await story.create_topic([ONE])
        await reassign(story, ONE, TWO)
        await story.in_sync(ONE, TWO)
        await story.until(lambda: not story.replica(ONE).row.adding)
        story.cluster.kill(story.node(TWO), power_lost=False)
        await story.in_sync(ONE)
        await story.until(lambda: story.replica(ONE).has_too_few_in_sync)
        with pytest.raises(ProduceFailedError, match=r"min\.insync\.replicas"):
            await story.write((b"k", b"1"))

    story.run(told())


def test_fewer_replicas_than_the_topic_itself_asks_for_are_all_that_is_asked_for() -> None:
    """As in Kafka: whoever takes replicas away from a topic means it to be written to."""
    story = Story(3)

    async def told() -> None:
        await story.start()
        await story.create_topic([ONE, TWO], {"min.insync.replicas": "2"})
        await reassign(story, ONE)
        await story.until(lambda: story.replica(ONE).row.replicas == (ONE,))
        await story.write((b"k", b"1"))

    story.run(told())
