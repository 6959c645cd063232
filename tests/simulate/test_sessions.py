"""The simulator's consumer that keeps fetch sessions: it misses nothing but what a broker forgets to tell."""

from __future__ import annotations

import pytest

from sexton.broker.fetch.sessions import FetchSession, Wanted
from sexton.client.consumer import Consumer
from sexton.simulate.sessions import NO_SESSION, SessionConsumer
from tests.simulated import TOPIC, Story

OTHER = "other"
QUIET = "quiet"


def values_read(kind: type[Consumer]) -> list[bytes]:
    """Of two partitions with different leaders, one of which is replaced, beside one in which nothing happens."""
    story = Story(2)
    values: list[bytes] = []

    async def told() -> None:
        await story.start()
        for topic, brokers in ((TOPIC, [1, 2]), (OTHER, [2, 1]), (QUIET, [2])):
            await story.create_topic(brokers, topic=topic)
        await story.in_sync(1, 2)
        consumer = kind(story.admin.client)
        consumer.assign({(TOPIC, 0): 0, (OTHER, 0): 0, (QUIET, 0): 0})

        async def read() -> None:
            for _ in range(8):
                values.extend(each.record.value or b"" for each in await consumer.poll(200))

        async def write_and_read(number: int) -> None:
            for topic in (TOPIC, OTHER):
                await story.write((b"k", b"%s-%d" % (topic.encode(), number)), topic=topic)
            await story.client_does(read())

        await write_and_read(1)
        await write_and_read(2)
        assert isinstance(consumer, SessionConsumer)
        assert all(session.id != NO_SESSION and session.epoch > 2 for session in consumer.sessions.values())
        story.cluster.kill(story.node(1), power_lost=False)
        await story.led_by(2)
        await write_and_read(3)
        await story.start(1)
        await story.in_sync(1, 2)
        await write_and_read(4)

    story.run(told())
    return values


ALL = sorted(b"%s-%d" % (topic.encode(), number) for topic in (TOPIC, OTHER) for number in range(1, 5))


def test_it_is_told_everything_once_over_changes_of_leaders() -> None:
    assert sorted(values_read(SessionConsumer)) == ALL


def test_it_misses_what_a_broker_forgets_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(session: FetchSession, wanted: Wanted) -> None:
        """That there is more to read."""

    monkeypatch.setattr(FetchSession, "note", forget)
    assert len(values_read(SessionConsumer)) < len(ALL)
