"""What Prometheus is told of a broker, under the names that people look for."""

from __future__ import annotations

import asyncio

from sexton.broker.observe.metrics import PRIVATE_NAMES, metrics
from tests.simulated import TOPIC, Story


def test_every_message_between_our_own_processes_has_a_name() -> None:
    story = Story(1)

    async def body() -> None:
        await story.start()
        known = set(story.broker(1).dispatch.private)
        assert known == set(PRIVATE_NAMES)

    story.run(body())
    assert len(set(PRIVATE_NAMES.values())) == len(PRIVATE_NAMES)


def test_the_event_loop_goes_on_while_metrics_are_written() -> None:
    story = Story(1)

    async def body() -> None:
        await story.start()
        await story.create_topic([1], {"cleanup.policy": "compact"})
        writing = asyncio.ensure_future(metrics(story.broker(1)))
        turns = 0
        while not writing.done():
            turns += 1
            await asyncio.sleep(0)
        assert f'sexton_compaction_mcco{{topic="{TOPIC}",partition="0"}}'.encode() in writing.result()
        assert turns > 10, "a piece for each family of the compacted partitions, at least"

    story.run(body())
