"""What Prometheus is told of a broker, under the names that people look for."""

from __future__ import annotations

from sexton.broker.observe.metrics import PRIVATE_NAMES
from tests.simulated import Story


def test_every_message_between_our_own_processes_has_a_name() -> None:
    story = Story(1)

    async def body() -> None:
        await story.start()
        known = set(story.broker(1).dispatch.private)
        assert known == set(PRIVATE_NAMES)

    story.run(body())
    assert len(set(PRIVATE_NAMES.values())) == len(PRIVATE_NAMES)
