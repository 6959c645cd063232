"""A broker that is stopped while it cannot hand anything over still stops in good order."""

from __future__ import annotations

import asyncio

from tests.simulated import Ledger, Story


def test_a_broker_that_is_stopped_without_a_metastore_closes_its_logs_and_loses_nothing() -> None:
    story = Story(2)
    ledger = Ledger(story)

    async def told() -> None:
        await story.start()
        await story.create_topic([1, 2], {"flush.before.ack": "false"})
        await story.in_sync(1, 2)
        await ledger.write(20)
        story.cluster.metastore.is_down = True
        stopped = asyncio.Event()
        story.cluster.stop_orderly(story.node(1), stopped.set)
        async with asyncio.timeout(30):
            await stopped.wait()
        story.cluster.metastore.is_down = False
        await story.start(1)
        await story.in_sync(1, 2)
        await story.until(lambda: story.row().leader > 0)
        await story.led_by(story.row().leader)
        assert ledger.lost(story.row().leader) == []

    story.run(told())
