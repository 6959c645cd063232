"""A broker that starts and cannot open a log, while the others that have it are down: it is not the one to wait for."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from sexton.client.admin import Resource
from sexton.log.flushed import MARK_FILE
from sexton.metadata.incarnations import is_missing
from sexton.ports.metastore import BrokerStatus
from sexton.simulate.cluster import DATA
from sexton.simulate.disk import Trouble
from tests.simulated import TOPIC, Ledger, Story

DIRECTORY = f"{DATA}/{TOPIC}-0"
WHOLE, UNREADABLE, CONTROLLER = 1, 2, 3


def damage(story: Story) -> None:
    """In the middle of what was flushed."""
    (log,) = (inode for name, inode in story.node(UNREADABLE).volume.files(DIRECTORY) if name.endswith(".log"))
    log.content[100:110] = bytes(10)


def device_fails(story: Story) -> None:
    story.node(UNREADABLE).volume.troubles.append(Trouble(errno.EIO, DIRECTORY, ".log"))


def flushed_offset(story: Story) -> int:
    """Up to where the broker has written down that the log was flushed: what is no batch below is damage."""
    point = story.broker(UNREADABLE).replicas.folder.flushed_points.get((TOPIC, 0))
    return 0 if point is None else point.offset


@pytest.mark.parametrize("fail", [damage, device_fails])
@pytest.mark.parametrize("replicas", [[WHOLE, UNREADABLE], [UNREADABLE, WHOLE]])
def test_a_log_that_cannot_be_opened_after_a_power_cut_is_left_to_the_member_that_comes_back_later(
    fail: Callable[[Story], None], replicas: list[int]
) -> None:
    story = Story(3)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic(replicas, {"min.insync.replicas": "1"})
        await story.in_sync(*replicas)
        await ledger.write(20)

        await story.until(lambda: flushed_offset(story) == 20)
        for broker_id in replicas:
            story.cluster.kill(story.node(broker_id), power_lost=True)
        fail(story)
        brokers = story.broker(CONTROLLER).view.brokers
        await story.until(lambda: all(brokers[b].status is BrokerStatus.FENCED for b in replicas))
        await story.start(UNREADABLE)
        assert WHOLE in story.row().isr, "nobody else can have what it has"
        await story.start(WHOLE)
        await story.led_by(WHOLE)
        assert len(ledger.acknowledged) == 20
        assert ledger.lost(WHOLE) == []
        await story.in_sync(WHOLE)
        await ledger.write(3)  # the first may meet a connection that the power cut broke
        assert len(ledger.acknowledged) > 20

    story.run(told())


def test_a_log_that_could_not_be_opened_at_first_catches_up_when_it_can() -> None:
    story = Story(2)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic([UNREADABLE, WHOLE], {"min.insync.replicas": "1"})
        await story.in_sync(WHOLE, UNREADABLE)
        await ledger.write(3)
        for broker_id in WHOLE, UNREADABLE:
            story.cluster.kill(story.node(broker_id), power_lost=True)
        device_fails(story)
        await story.start(UNREADABLE)
        await story.start(WHOLE)
        await story.led_by(WHOLE)
        await ledger.write(3)
        story.node(UNREADABLE).volume.troubles.clear()
        await story.in_sync(WHOLE, UNREADABLE)
        assert len(ledger.acknowledged) > 3
        assert ledger.lost(WHOLE) == ledger.lost(UNREADABLE) == []

    story.run(told())


def test_a_log_that_may_lack_its_end_is_not_left_to_a_member_whose_own_log_is_missing() -> None:
    """Nobody has more than it has: one whose log cannot be opened has nothing."""
    story = Story(3)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic([UNREADABLE, WHOLE], {"min.insync.replicas": "1"})
        await story.in_sync(WHOLE, UNREADABLE)
        await ledger.write(20)
        await story.until(lambda: flushed_offset(story) == 20)
        story.node(UNREADABLE).volume.troubles.append(Trouble(errno.ENOSPC, DIRECTORY, MARK_FILE))
        await story.client_does(story.admin.change_settings(Resource.TOPIC, TOPIC, {"flush.before.ack": "false"}))
        await story.until(lambda: story.node(WHOLE).volume.find(f"{DIRECTORY}/{MARK_FILE}") is not None)
        for broker_id in WHOLE, UNREADABLE:
            story.cluster.kill(story.node(broker_id), power_lost=True)
        damage(story)
        await story.client_does(story.admin.change_settings(Resource.TOPIC, TOPIC, {"flush.before.ack": "true"}))
        brokers = story.broker(CONTROLLER).view.brokers
        await story.until(lambda: all(brokers[b].status is BrokerStatus.FENCED for b in (WHOLE, UNREADABLE)))
        await story.start(UNREADABLE)
        assert is_missing(story.row(), UNREADABLE)
        await story.start(WHOLE)
        await story.led_by(WHOLE)
        assert len(ledger.acknowledged) == 20
        assert ledger.lost(WHOLE) == []

    story.run(told())
