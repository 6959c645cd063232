"""Answers of a leader that arrive when the log which asked is not there any more, on a cluster of real brokers."""

from __future__ import annotations

import asyncio

import pytest

from sexton.records.batch import Record, encode, make_batch
from sexton.replication.local_replica import LocalReplica
from sexton.simulate.broken import breaking
from tests.log.helpers import read_all
from tests.simulated import TOPIC, Story

NOW_MS = 1_750_000_000_000


def contents(replica: LocalReplica) -> list[tuple[int, bytes | None]]:
    return [(batch.base_offset, record.value) for batch in read_all(replica.log) for record in batch.records]


def test_records_for_a_removed_replica_do_not_go_into_the_one_that_was_added_again() -> None:
    """Defect 3. The answer is on its way while an operator removes the follower and adds it again. With the leader's
    history in it (its log start has moved) nothing showed later that the new log lacked everything before."""
    story = Story(3)

    async def body() -> None:
        await story.start()
        await story.create_topic([1, 2])
        await story.write(*((b"k", b"first %d" % number) for number in range(60)))
        leader, first_log = story.replica(1), story.replica(2).log
        await story.until(lambda: story.replica(2).high_watermark == 60)
        await asyncio.sleep(0.1)  # of virtual time: it has nothing more to say, and waits at its leader
        story.fabric.cut("broker-1", "broker-2")
        await leader.delete_records(10)
        for number in range(30):  # in one turn of the loop: one answer has them all
            leader.append(encode(make_batch([Record(0, NOW_MS, b"k", b"more %d" % number)])), 1, NOW_MS)
        await leader.log.flush()
        await reassign(1)
        await story.until(lambda: not story.broker(2).replicas.all())
        await reassign(1, 2)
        await story.until(lambda: any(one.log is not first_log for one in story.broker(2).replicas.all()))
        assert first_log.end_offset == 60, "the answer is still on its way"
        story.fabric.heal("broker-1", "broker-2")
        await story.in_sync(1, 2)
        follower = story.replica(2)
        assert follower.log.end_offset == leader.log.end_offset == 90
        assert contents(follower) == contents(leader)

    async def reassign(*brokers: int) -> None:
        await story.client_does(story.admin.reassign({(TOPIC, 0): brokers}))
        await story.until(lambda: story.row().replicas == brokers)

    story.run(body())


def test_without_that_they_do() -> None:
    """So the answer is late in the story above, as it is meant to be."""
    with breaking("answer-names-no-log"), pytest.raises(AssertionError, match="more 0"):
        test_records_for_a_removed_replica_do_not_go_into_the_one_that_was_added_again()
