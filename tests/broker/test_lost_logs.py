"""A log that is missing where the metastore expects it: one that was lost, or one that was never made.

The last in-sync replica whose log was lost must not lead from nothing. But neither a forced election nor a topic of the
same name from before may make a log look lost that is not.
"""

from __future__ import annotations

import asyncio

from sexton.cluster.incarnations import is_missing
from tests.simulated import TOPIC, Story

OWNER, OTHER = 1, 2


def test_a_lost_log_whose_leader_was_forced_is_an_ordinary_log_after_the_next_restart() -> None:
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([OWNER])
        await story.write((b"k", b"1"))
        story.cluster.kill(story.node(OWNER), power_lost=True)
        story.cluster.replace_disk(story.node(OWNER))
        await story.start(OWNER)
        assert is_missing(story.row(), OWNER)
        await story.client_does(story.admin.elect_leaders([(TOPIC, 0)], unclean=True))
        await story.led_by(OWNER)
        await story.write((b"k", b"2"), (b"k", b"3"))
        await story.until(lambda: (TOPIC, 0) in story.broker(OWNER).replicas.folder.high_watermarks)
        story.cluster.kill(story.node(OWNER), power_lost=False)
        await story.start(OWNER)
        await story.led_by(OWNER)
        assert story.replica(OWNER).log.end_offset == 2
        await story.write((b"k", b"4"))

    story.run(told())


def test_a_topic_made_again_under_the_same_name_while_its_broker_was_down_is_led_by_that_broker() -> None:
    """The folder has the log of the topic from before, under the same name."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([OWNER])
        await story.write((b"k", b"1"))
        await story.until(lambda: (TOPIC, 0) in story.broker(OWNER).replicas.folder.high_watermarks)
        story.cluster.kill(story.node(OWNER), power_lost=False)
        await asyncio.sleep(0.1)  # the client hears that its connection is gone
        await story.client_does(story.admin.delete_topic(TOPIC))
        await story.client_does(_create(story))
        assert story.row().leader == OWNER, "its lease has not run out"
        await story.start(OWNER)
        await story.led_by(OWNER)
        assert story.replica(OWNER).log.end_offset == 0
        await story.write((b"k", b"2"))

    story.run(told())


def test_a_topic_made_again_just_after_its_broker_had_removed_the_former_one_is_led_by_that_broker() -> None:
    """The folder has nothing of either, but its high watermarks were written when the former one was there."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([OWNER])
        await story.write((b"k", b"1"))
        await story.until(lambda: (TOPIC, 0) in story.broker(OWNER).replicas.folder.high_watermarks)
        disk = story.broker(OWNER).disk
        await story.client_does(story.admin.delete_topic(TOPIC))
        await story.until(lambda: not disk.exists(f"/data/{TOPIC}-0"))
        story.cluster.kill(story.node(OWNER), power_lost=False)
        await asyncio.sleep(0.1)  # the client hears that its connection is gone
        await story.client_does(_create(story))
        await story.start(OWNER)
        await story.led_by(OWNER)
        await story.write((b"k", b"2"))

    story.run(told())


def test_a_log_that_vanished_is_still_found_to_be_lost() -> None:
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([OWNER])
        await story.write((b"k", b"1"))
        await story.until(lambda: (TOPIC, 0) in story.broker(OWNER).replicas.folder.high_watermarks)
        disk = story.broker(OWNER).disk
        disk.remove_tree(f"/data/{TOPIC}-0")
        story.cluster.kill(story.node(OWNER), power_lost=False)
        await story.start(OWNER)
        assert is_missing(story.row(), OWNER)

    story.run(told())


async def _create(story: Story) -> None:
    await story.admin.create_topic(TOPIC, assignment=[[OWNER]])
