"""A log that is missing where the metastore expects it: one that was lost, or one that was never made.

The last in-sync replica whose log was lost must not lead from nothing. But neither a forced election nor a topic of the
same name from before may make a log look lost that is not.
"""

from __future__ import annotations

import asyncio

import pytest

from sexton.metadata.incarnations import is_missing
from tests.simulated import TOPIC, Story, crashing_at

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


def test_a_topic_made_again_is_not_committed_as_far_as_the_former_one_was() -> None:
    """High watermarks are written every few seconds, under the partition's name. A record that only some of those in
    sync have is not committed because the log before this one had more."""
    story = Story(3)

    async def told() -> None:
        await story.start()
        await story.create_topic([2, OWNER, 3])
        await story.write(*[(b"k", b"%d" % number) for number in range(5)])
        await story.until(lambda: story.broker(OWNER).replicas.folder.high_watermarks.get((TOPIC, 0)) == 5)
        story.cluster.kill(story.node(OWNER), power_lost=False)
        await asyncio.sleep(0.1)  # the client hears that its connection is gone
        await story.client_does(story.admin.delete_topic(TOPIC))
        await story.create_topic([2, OWNER, 3])
        await story.start(OWNER)
        await story.in_sync(OWNER, 2, 3)
        await story.until(lambda: story.replica(OWNER).log.epochs.latest_epoch == story.row().leader_epoch)
        story.cluster.kill(story.node(3), power_lost=False)
        writing = story.loop.create_task(story.write((b"k", b"new")))
        await story.until(lambda: story.replica(OWNER).log.flushed_offset == 1)
        assert story.replica(OWNER).high_watermark == 0
        story.cluster.kill(story.node(OWNER), power_lost=False)
        story.cluster.start(story.node(OWNER))
        await story.until(lambda: story.node(OWNER).is_started)
        assert 3 in story.row().isr, "what it lacks is not committed"
        assert story.replica(2).high_watermark == 0
        assert story.replica(OWNER).log.end_offset == 1
        assert story.replica(OWNER).high_watermark == 0
        await writing

    story.run(told())


async def _create(story: Story) -> None:
    await story.admin.create_topic(TOPIC, assignment=[[OWNER]])


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_topic_made_again_is_led_by_its_broker_wherever_a_crash_interrupts_the_start(power_lost: bool) -> None:
    """The log of the topic before goes aside and another one is made: no step of that may look like a loss."""
    steps_count = 1  # the first marks the folder with the process, without which all of it counts as an old image
    while _leads_after_a_crash_at(steps_count, power_lost):
        steps_count += 1
    assert steps_count > 9, "nothing was interrupted"


def _leads_after_a_crash_at(step: int, power_lost: bool) -> bool:
    """False if the start has fewer steps."""
    story = Story(2, seed=step)
    crashes = 0

    async def told() -> None:
        nonlocal crashes
        await story.start()
        await story.create_topic([OWNER])
        await story.write((b"k", b"1"))
        await story.until(lambda: (TOPIC, 0) in story.broker(OWNER).replicas.folder.high_watermarks)
        node = story.node(OWNER)
        story.cluster.kill(node, power_lost=False)
        await asyncio.sleep(0.1)  # the client hears that its connection is gone
        await story.client_does(story.admin.delete_topic(TOPIC))
        await story.client_does(_create(story))
        with crashing_at(story, OWNER, step, power_lost=power_lost) as crashed:
            story.cluster.start(node)
            await story.until(lambda: node.is_started or crashed.is_set())
        crashes += crashed.is_set()
        await story.until(lambda: node.is_started or not node.is_up)
        await story.start(OWNER)
        assert not is_missing(story.row(), OWNER), f"a crash at step {step} looks like a loss"
        await story.led_by(OWNER)
        assert story.replica(OWNER).high_watermark == 0
        await story.write((b"k", b"2"))

    story.run(told())
    return crashes > 0
