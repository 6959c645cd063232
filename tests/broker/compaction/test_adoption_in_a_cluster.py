"""Adoption among real brokers under virtual time: what one partition meets is not the end of its broker."""

from __future__ import annotations

import asyncio

import pytest

from sexton.simulate.broken import breaking
from tests.simulated import Story

SETTINGS = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.0"}


def test_a_follower_whose_log_starts_at_its_leaders_bound_goes_on() -> None:
    """Defect 4. Both have compacted up to an offset, and the leader deletes up to it; the follower leads before it has
    heard of that. So the one that deleted is offered a compaction of which it holds nothing any more."""
    story = Story(2)

    async def body() -> None:
        await story.start()
        await story.create_topic([1, 2], SETTINGS)
        await story.write(*((b"key %d" % (number % 3), b"value") for number in range(30)))
        bound = await story.compact(1)
        assert bound == 30
        await story.until(lambda: min(story.replica(2).coordination.watermarks.compacted) == bound)
        await story.write((b"more", b"value"))
        for direction in ((1, 2), (2, 1)):
            story.fabric.cut(*(f"broker-{one}" for one in direction))
        await story.replica(1).delete_records(bound)
        story.cluster.kill(story.node(1), power_lost=True)
        await story.led_by(2)
        for direction in ((1, 2), (2, 1)):
            story.fabric.heal(*(f"broker-{one}" for one in direction))
        await story.start(1)
        await story.in_sync(1, 2)
        log = story.replica(1).log
        assert (log.start_offset, story.replica(2).log.start_offset) == (bound, 0)
        process = story.node(1).process
        await asyncio.sleep(5)  # several looks of the adopter, fewer than until the preferred leader is elected
        assert story.node(1).process is process, "it did not end by itself"
        assert not story.broker(1).supervisor.bugs, story.broker(1).supervisor.bugs
        leaders = story.broker(2).compaction.memory.last_of_log(story.replica(2))
        assert story.broker(1).compaction.memory.last_of_log(story.replica(1)).made_ms == leaders.made_ms, (
            "it is not asked again"
        )

    story.run(body())


def test_with_the_defect_it_would_meet_a_bug() -> None:
    """So there is an offer in the story above of which the follower holds nothing."""
    with breaking("adopter-empty-group"), pytest.raises(AssertionError, match="adoption"):
        test_a_follower_whose_log_starts_at_its_leaders_bound_goes_on()
