"""A topic is deleted and made again while a transaction is open in it: the transaction ends in the new one, too.

Coordinators name partitions by topic and number, as in Kafka, and send their markers to whatever has that name
(`MarkerSender` says why). Of a client before transaction version 2, whose sequences go on from one transaction to the
next.
"""

from __future__ import annotations

import pytest

from sexton.client.errors import RefusedError
from sexton.client.producer import Message
from sexton.client.transactions import TransactionalProducer
from sexton.protocol.errors import ErrorCode
from tests.log.helpers import read_all
from tests.simulated import TOPIC, Story


class Told:
    """Everything a client does, in the order in which a test says it."""

    def __init__(self) -> None:
        self.story = Story(3)
        self.producer = TransactionalProducer(self.story.admin.client, "app", 60_000)

    async def begin(self) -> None:
        """In the topic's first life."""
        await self.story.start()
        await self.story.create_topic([1, 2])
        await self.story.client_does(self.producer.init())
        self.producer.begin()
        await self.send(b"old")

    async def make_again(self) -> None:
        await self.story.client_does(self.story.admin.delete_topic(TOPIC))
        await self.story.create_topic([2, 1])
        await self.story.client_does(self.story.admin.client.refresh([TOPIC]))

    async def send(self, value: bytes) -> None:
        await self.story.client_does(self.producer.send(TOPIC, 0, [Message(b"k", value)]))

    async def end(self, *, is_commit: bool) -> None:
        """Waits until nothing is open in the topic that is there."""
        await self.story.client_does(self.producer.commit() if is_commit else self.producer.abort())
        replica = self.story.replica(2)
        await self.story.until(lambda: any(batch.is_control for batch in read_all(replica.log)))
        await self.story.until(lambda: replica.last_stable_offset == replica.log.end_offset)

    def values(self) -> list[bytes | None]:
        return [batch.records[0].value for batch in read_all(self.story.replica(2).log) if not batch.is_control]


@pytest.mark.parametrize("is_commit", [False, True])
def test_what_was_written_to_the_new_topic_is_ended_though_the_old_one_had_joined(is_commit: bool) -> None:
    """Its client does not join again: it knows nothing of a new topic. A marker for the old one alone would leave this
    open for ever."""
    told = Told()

    async def tale() -> None:
        await told.begin()
        await told.make_again()
        await told.send(b"new")
        await told.end(is_commit=is_commit)
        told.producer.begin()
        await told.send(b"next")
        await told.end(is_commit=True)
        assert told.values() == [b"new", b"next"]

    told.story.run(tale())


@pytest.mark.parametrize("is_commit", [False, True])
def test_who_wrote_nothing_to_the_new_topic_starts_over_with_a_new_epoch(is_commit: bool) -> None:
    """The new topic knows it by the marker alone, so it takes nothing but sequence 0, as in Kafka. Nothing hangs."""
    told = Told()

    async def tale() -> None:
        await told.begin()
        await told.make_again()
        await told.end(is_commit=is_commit)
        told.producer.begin()
        with pytest.raises(RefusedError) as refused:
            await told.send(b"refused")
        assert refused.value.code is ErrorCode.out_of_order_sequence_number
        await told.story.client_does(told.producer.abort())
        await told.story.client_does(told.producer.init())
        told.producer.begin()
        await told.send(b"next")
        await told.end(is_commit=True)
        assert told.values() == [b"next"]

    told.story.run(tale())
