"""A request that gives up waiting: what its broker had begun to take over is taken over all the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sexton.broker.admin import before_deadline
from sexton.client.admin import Resource
from sexton.simulate.disk import DiskWeather
from tests.simulated import TOPIC, Story

IMPATIENT, OTHER = 1, 2


def test_a_request_that_times_out_while_its_broker_takes_changes_over_leaves_none_of_them_out() -> None:
    """A topic is made, another one's settings are changed: one look at the metastore shows both, and making the new log
    takes longer than the client waits."""
    story = Story(2)

    async def told() -> None:
        await story.start()
        await story.create_topic([IMPATIENT, OTHER])
        await story.in_sync(IMPATIENT, OTHER)
        await story.write((b"k", b"1"))
        broker, node = story.broker(IMPATIENT), story.node(IMPATIENT)
        assert node.process is not None
        former = story.replica(IMPATIENT)
        broker.config = replace(broker.config, metadata_poll_ms=3_600_000)  # nobody looks but the request
        await asyncio.sleep(1)
        node.volume.weather = DiskWeather(flush_ns_min=10**9, flush_ns_max=10**9, hiccup_probability=0)
        story.isolate(IMPATIENT)  # the client asks the other one
        await story.client_does(change(story))
        waiting = story.loop.spawn(node.process, before_deadline(broker, lambda: False, 500))
        assert not await waiting
        assert broker.view.partition("made-meanwhile", 0) is not None, "it has looked"
        await story.until(lambda: former.config.min_insync_replicas == 2, seconds=30)
        await story.led_by(IMPATIENT, "made-meanwhile")

    story.run(told())


async def change(story: Story) -> None:
    await story.admin.change_settings(Resource.TOPIC, TOPIC, {"min.insync.replicas": "2"})
    await story.admin.create_topic("made-meanwhile", assignment=[[IMPATIENT]])
