"""Topics that acknowledge before the flush, where only a process has ended: its machine still has everything in its
page cache (docs/decisions, 19)."""

from __future__ import annotations

import asyncio
import errno

from sexton.simulate.cluster import DATA
from sexton.simulate.disk import Trouble
from tests.replication.test_logs_in_a_cluster import isr_changes
from tests.replication.test_lost_tails import lose_power
from tests.simulated import TOPIC, Ledger, Story

UNFLUSHED = {"flush.before.ack": "false"}
DIRECTORY = f"{DATA}/{TOPIC}-0"


async def two_that_hold_ten(story: Story) -> Ledger:
    await story.start()
    await story.create_topic([1, 2], UNFLUSHED)
    await story.in_sync(1, 2)
    ledger = Ledger(story)
    await ledger.write(10)
    assert len(ledger.acknowledged) == 10
    return ledger


def kill(story: Story, broker_id: int) -> None:
    story.cluster.kill(story.node(broker_id), power_lost=False)


def test_a_broker_that_was_only_killed_is_not_left_out_for_one_that_lost_power() -> None:
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        kill(story, 1)
        lose_power(story, 2)
        story.cluster.start(story.node(1))
        await story.led_by(1)
        await story.start(2)
        await story.in_sync(1, 2)
        assert not ledger.lost(1)
        await story.until(lambda: story.replica(2).high_watermark == 10)
        assert not ledger.lost(2)

    story.run(script())


def test_whoever_lost_power_leaves_it_to_the_one_that_was_killed_whoever_is_back_first() -> None:
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        kill(story, 1)
        lose_power(story, 2)
        await story.start(2)
        await story.in_sync(1)
        await story.start(1)
        await story.in_sync(1, 2)
        assert not ledger.lost(1)

    story.run(script())


def test_a_machine_that_lost_power_vouches_again_for_what_it_holds_since() -> None:
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        lose_power(story, 1)
        await story.start(1)
        await story.in_sync(1, 2)
        await ledger.write(5)
        changes = isr_changes(story)
        kill(story, 1)
        story.cluster.start(story.node(1))
        await story.until(lambda: story.node(1).is_started)
        assert not any(who == "broker-1.3" and 1 not in isr for who, isr in changes)
        assert len(ledger.acknowledged) > 10
        assert not ledger.lost(1)

    story.run(script())


def test_a_process_whose_flush_failed_does_not_vouch_for_the_page_cache() -> None:
    """What a kernel could not write it may show to the next process, or not."""
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        node = story.node(1)
        node.disk_may_fail = True
        node.volume.weather.flush_failure_probability = 1.0
        await _fail_to_flush(story, 1)
        node.volume.weather.flush_failure_probability = 0.0
        changes = isr_changes(story)
        kill(story, 1)
        story.cluster.start(node)
        await story.until(lambda: story.node(1).is_started)
        assert any(who == "broker-1.2" and isr == (2,) for who, isr in changes)
        await story.in_sync(1, 2)
        assert not ledger.lost(1)
        assert not ledger.lost(2)

    story.run(script())


async def _fail_to_flush(story: Story, broker_id: int) -> None:
    process, log = story.node(broker_id).process, story.replica(broker_id).log
    assert process is not None

    async def flush() -> None:
        await asyncio.gather(log.flush(), return_exceptions=True)

    await story.loop.spawn(process, flush())
    assert log.failure is not None


def test_a_log_that_could_not_be_read_back_is_not_vouched_for_by_the_next_process() -> None:
    story = Story(3)

    async def script() -> None:
        ledger = await two_that_hold_ten(story)
        volume = story.node(1).volume
        kill(story, 1)
        volume.troubles = [Trouble(errno.EIO, DIRECTORY, ".log")]
        story.cluster.start(story.node(1))
        await story.until(lambda: story.node(1).is_started)
        kill(story, 1)
        volume.troubles = []
        mark = dict(volume.files(DIRECTORY))["acknowledges-unflushed"]
        assert not mark.content
        await story.start(1)
        await story.in_sync(1, 2)
        assert not ledger.lost(1)

    story.run(script())
