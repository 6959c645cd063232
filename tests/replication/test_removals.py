"""Replicas that are removed throw away what they have: not while nobody else is known to have it."""

from __future__ import annotations

import asyncio

from sexton.simulate.metastore import HOST as METASTORE
from tests.simulated import TOPIC, Ledger, Story


async def two_that_hold_ten(story: Story) -> Ledger:
    await story.start()
    await story.create_topic([2, 3])
    await story.in_sync(2, 3)
    ledger = Ledger(story)
    await ledger.write(10)
    assert len(ledger.acknowledged) == 10
    return ledger


async def reassign(story: Story, *broker_ids: int) -> None:
    await story.client_does(story.admin.reassign({(TOPIC, 0): broker_ids}))


def test_a_replica_is_not_removed_for_one_whose_disk_is_gone_and_whose_lease_is_not() -> None:
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        story.cluster.kill(story.node(2), power_lost=False)  # the client is told, and asks another broker at once
        story.cluster.replace_disk(story.node(2))
        await reassign(story, 2)  # the client asks again until broker 2 counts as dead, and no longer as in sync
        assert story.row().isr == (3,)
        assert 3 in story.row().replicas
        await story.start(2)
        await story.until(lambda: story.row().replicas == (2,))
        await story.led_by(2)
        assert not ledger.lost(2)

    story.run(script())


def test_a_move_does_not_end_with_one_whose_disk_is_gone_and_whose_lease_is_not() -> None:
    """Broker 1 started first, and so is the controller. It has nothing itself."""
    story = Story(3)

    async def script() -> None:
        await story.start(1)
        await story.start(2, 3)
        await story.create_topic([3])
        ledger = Ledger(story)
        await ledger.write(10)
        await reassign(story, 2)
        await story.in_sync(2, 3)
        story.cluster.kill(story.node(2), power_lost=True)
        story.cluster.replace_disk(story.node(2))
        await story.in_sync(3)  # its lease has run out
        assert story.row().replicas == (2, 3)
        await story.start(2)
        await story.until(lambda: story.row().replicas == (2,))
        await story.led_by(2)
        assert len(ledger.acknowledged) == 10
        assert not ledger.lost(2)

    story.run(script())


def test_a_replica_that_does_not_answer_can_be_removed() -> None:
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        story.cluster.kill(story.node(2), power_lost=True)
        await reassign(story, 3)
        await asyncio.sleep(1)
        assert story.row().replicas == (3,)
        await story.led_by(3)
        assert not ledger.lost(3)

    story.run(script())


def test_a_replica_that_was_removed_while_its_broker_was_fenced_is_gone_when_it_is_back() -> None:
    """Seed 136: the broker kept the replica, and set its directory aside under it."""
    story = Story(3)

    async def script() -> None:
        await two_that_hold_ten(story)
        story.fabric.cut(story.node(3).name, METASTORE)
        await story.in_sync(2)  # the lease of broker 3 has run out
        await reassign(story, 2)
        await story.until(lambda: story.row().replicas == (2,))
        story.fabric.heal(story.node(3).name, METASTORE)
        await story.until(lambda: not story.broker(3).replicas.all())
        await asyncio.sleep(1)
        assert not [name for name in story.node(3).volume.directories("/data") if name.startswith(f"{TOPIC}-")]

    story.run(script())
